#include "kernels/group_norm/group_norm_cuda.h"
#include "kernels/group_norm/group_norm_forward.cuh"
#include "kernels/group_norm/group_norm_launch.cuh"
#include "kernels/group_norm/group_norm_split_forward.cuh"

namespace fuseboard::group_norm {
namespace {

using ForwardKernel = void (*)(ForwardArgs);

ForwardKernel SelectHeld(int32_t dtype, int packs) {
  return DispatchFloat(dtype, [&](auto tag) -> ForwardKernel {
    using X = typename decltype(tag)::type;
    return packs == 8 ? GroupNormForwardKernel<X, 8> : GroupNormForwardKernel<X, 4>;
  });
}

SplitKernel SelectPartMoments(int32_t dtype, bool alike) {
  return DispatchFloat(dtype, [&](auto tag) -> SplitKernel {
    using X = typename decltype(tag)::type;
    return alike ? PartMomentsKernel<X, kPackLanes<X>> : PartMomentsKernel<X, 1>;
  });
}

SplitKernel SelectApply(int32_t dtype, bool alike) {
  return DispatchFloat(dtype, [&](auto tag) -> SplitKernel {
    using X = typename decltype(tag)::type;
    return alike ? ApplyKernel<X, kPackLanes<X>> : ApplyKernel<X, 1>;
  });
}

Policy PolicyOf(const FbCall& call, const ForwardCall& f) {
  const int64_t packs = HeldPacks(f.x, f.shape, {&f.x, &f.y});
  return packs == 0 ? Policy{} : SelectForward(call.sm, packs);
}

// In the workspace: the moments of the pieces, and the statistics unless they are outputs.
struct SplitWorkspace {
  int64_t pieces;
  int64_t groups;
};

SplitWorkspace WorkspaceOf(const ForwardCall& f) {
  const int64_t parts = SelectSplit(f.shape.elements).parts;
  return {f.shape.examples * f.shape.channels * parts, f.shape.all_groups()};
}

int32_t LaunchSplit(const FbCall& call, const ForwardCall& f, void* workspace) {
  const Split split = SelectSplit(f.shape.elements);
  SplitArgs args = SplitArgsOf(f.shape, split);
  auto* const statistics = reinterpret_cast<float*>(static_cast<float2*>(workspace) + args.pieces);
  args.x = f.x.data;
  args.weight = DataOf(f.weight);
  args.bias = DataOf(f.bias);
  args.out = f.y.data;
  args.mean = IsAbsent(f.mean) ? statistics : static_cast<float*>(f.mean.data);
  args.rstd = IsAbsent(f.rstd) ? statistics + args.all_groups : static_cast<float*>(f.rstd.data);
  args.part_moments = static_cast<float2*>(workspace);
  args.weight_dtype = f.weight.dtype;
  args.bias_dtype = f.bias.dtype;
  args.eps = f.eps;
  // Of x alone any base is right; y must be aligned like it.
  const auto moments = SelectPartMoments(f.x.dtype, AreAlike({&f.x}));
  if (const cudaError_t error = LaunchPieces(moments, args, split, call.stream)) return error;
  if (const cudaError_t error = LaunchGroups(GroupMomentsKernel, args, call.stream)) return error;
  const auto apply = SelectApply(f.x.dtype, AreAlike({&f.x, &f.y}));
  return LaunchPieces(apply, args, split, call.stream);
}

}  // namespace

uint64_t ForwardCudaWorkspace(const FbCall* call) {
  const ForwardCall f = ForwardOf(*call);
  if (PolicyOf(*call, f).packs != 0) return 0;
  const SplitWorkspace w = WorkspaceOf(f);
  return static_cast<uint64_t>(w.pieces) * sizeof(float2) +
         static_cast<uint64_t>(w.groups) * 2 * sizeof(float);
}

int32_t LaunchForward(const FbCall& call, const Policy& policy) {
  const ForwardCall f = ForwardOf(call);
  const int64_t packs = f.shape.group_elements() / LanesOf(f.x);
  const auto group_channels = static_cast<int32_t>(f.shape.group_channels());
  const LaunchShape shape = {
      .blocks = BlocksOf(policy, f.shape.all_groups()),
      .threads = dim3(policy.threads, policy.groups_per_block),
      .cluster = policy.cluster,
      .shared_bytes = policy.groups_per_block * group_channels * static_cast<int>(sizeof(float2)),
      .stream = static_cast<cudaStream_t>(call.stream)};
  const float elements = static_cast<float>(f.shape.group_elements());
  return LaunchKernel(
      SelectHeld(f.x.dtype, policy.packs), shape,
      ForwardArgs{.x = f.x.data,
                  .weight = DataOf(f.weight),
                  .bias = DataOf(f.bias),
                  .y = f.y.data,
                  .mean = static_cast<float*>(DataOf(f.mean)),
                  .rstd = static_cast<float*>(DataOf(f.rstd)),
                  .all_groups = static_cast<uint32_t>(f.shape.all_groups()),
                  .groups = static_cast<uint32_t>(f.shape.groups),
                  .group_channels = group_channels,
                  .group_packs = static_cast<int32_t>(packs),
                  .channel_packs = DivisorOf(static_cast<uint32_t>(packs / group_channels)),
                  .weight_dtype = f.weight.dtype,
                  .bias_dtype = f.bias.dtype,
                  .inverse_elements = 1.0f / elements,
                  .eps = f.eps});
}

int32_t ForwardCuda(const FbCall* call, void* workspace) {
  const ForwardCall f = ForwardOf(*call);
  if (f.shape.examples == 0) return cudaSuccess;
  const Policy policy = PolicyOf(*call, f);
  return policy.packs != 0 ? LaunchForward(*call, policy) : LaunchSplit(*call, f, workspace);
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {4, 8}) {
      if (const cudaError_t error = LoadKernel(SelectHeld(dtype, packs))) return error;
    }
    for (const bool alike : {true, false}) {
      if (const cudaError_t error = LoadKernel(SelectPartMoments(dtype, alike))) return error;
      if (const cudaError_t error = LoadKernel(SelectApply(dtype, alike))) return error;
    }
  }
  return LoadKernel(GroupMomentsKernel);
}

}  // namespace fuseboard::group_norm
