#include <algorithm>
#include <utility>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/rope/rope.cuh"
#include "kernels/rope/rope_cuda.h"
#include "kernels/rope/rope_packed.cuh"

namespace fuseboard::rope {
namespace {

using Kernel = void (*)(Call, Plan);
using PackedKernel = void (*)(Call, PackedPlan);

// Runs of 16 bytes, of 8 (a half of 36 elements of 16 bits, as Qwen3-VL's vision has it), or
// elements.
constexpr int kRunBytes[] = {16, 8, 0};

template <typename T, int kLanes>
Kernel SelectForm(bool interleaved) {
  if constexpr (kLanes > 1) {
    if (interleaved) return RopeKernel<T, kLanes, true, WithinCut>;
  }
  return RopeKernel<T, kLanes, false, AcrossCut>;
}

Kernel SelectKernel(int32_t dtype, bool interleaved, int run_bytes) {
  return DispatchFloat(dtype, [&](auto tag) -> Kernel {
    using T = typename decltype(tag)::type;
    if (run_bytes == 16) return SelectForm<T, kPackLanes<T>>(interleaved);
    if (run_bytes == 8) return SelectForm<T, kPackLanes<T> / 2>(interleaved);
    return SelectForm<T, 1>(interleaved);
  });
}

PackedKernel SelectPacked(int32_t dtype) {
  return DispatchPacked(dtype, [&](auto tag) -> PackedKernel {
    return RopePackedKernel<typename decltype(tag)::type, PackedCut>;
  });
}

// The longest runs that the whole call is made of.
int RunBytesOf(const Call& call, int element_bytes) {
  const Rotation& r = call.rotation;
  for (const int bytes : kRunBytes) {
    if (bytes == 0) break;
    const auto aligned = [&](const Heads& heads) {
      return IsAlignedHeads(heads, r, element_bytes, bytes);
    };
    if (HasRuns(r, bytes / element_bytes) && std::all_of(call.in, call.in + 2, aligned) &&
        std::all_of(call.out, call.out + 2, aligned)) {
      return bytes;
    }
  }
  return 0;
}

bool HasTokensInside(const Call& call) {
  const Heads& larger = call.in[call.in[0].count >= call.in[1].count ? 0 : 1];
  return larger.position_stride < larger.head_stride;
}

int32_t Launch(const FbCall& raw, FbPhase phase) {
  const Call call = CallOf(raw, phase);
  const Rotation& r = call.rotation;
  const int64_t heads = call.in[0].count + call.in[1].count;
  if (heads == 0 || r.batch == 0 || r.positions == 0) return cudaSuccess;
  const int element_bytes = call.dtype == FB_F32 ? 4 : 2;
  const int run_bytes = RunBytesOf(call, element_bytes);
  const int lanes = std::max(run_bytes / element_bytes, 1);
  const auto stream = static_cast<cudaStream_t>(raw.stream);
  if (PackedPlan plan; run_bytes == 16 && IsPackable(r, call.dtype, lanes) &&
                       CutPacked<PackedCut>(r, call.in, lanes, &plan)) {
    const LaunchShape shape = {
        .blocks = plan.blocks(), .threads = dim3(PackedCut::kThreads), .stream = stream};
    return LaunchKernel(SelectPacked(call.dtype), shape, call, plan);
  }
  Plan plan = {};
  plan.slots = SlotsOf(r, lanes);
  plan.table_runs = HasTableRuns(r, lanes);
  plan.tokens_inside = HasTokensInside(call);
  const bool within = r.interleaved && lanes > 1;
  const Policy policy = within ? SelectPolicy<WithinCut>(plan.slots, heads, r.positions)
                               : SelectPolicy<AcrossCut>(plan.slots, heads, r.positions);
  plan.tiles = TilesOf(policy, r.batch, r.positions);
  if (plan.tiles.count <= UINT32_MAX) {
    plan.batch_tiles = ReciprocalOf(static_cast<uint32_t>(plan.tiles.per_batch));
  }
  const auto [inner, outer] = plan.tokens_inside ? std::pair{policy.token_lanes, policy.head_lanes}
                                                 : std::pair{policy.head_lanes, policy.token_lanes};
  const LaunchShape shape = {.blocks = std::min<int64_t>(plan.tiles.count, INT32_MAX),
                             .threads = dim3(policy.slots, inner, outer),
                             .stream = stream};
  return LaunchKernel(SelectKernel(call.dtype, r.interleaved, run_bytes), shape, call, plan);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) { return Launch(*call, FB_FORWARD); }

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) { return Launch(*call, FB_BACKWARD); }

int32_t LoadKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int run_bytes : kRunBytes) {
      for (const bool interleaved : {false, true}) {
        const cudaError_t error = LoadKernel(SelectKernel(dtype, interleaved, run_bytes));
        if (error != cudaSuccess) return error;
      }
    }
  }
  const cudaError_t error = LoadKernel(SelectPacked(FB_F16));
  return error != cudaSuccess ? error : LoadKernel(SelectPacked(FB_BF16));
}

}  // namespace fuseboard::rope
