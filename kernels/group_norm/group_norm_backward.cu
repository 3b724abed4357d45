#include "kernels/common/sum_partials.cuh"
#include "kernels/group_norm/group_norm_backward.cuh"
#include "kernels/group_norm/group_norm_cuda.h"
#include "kernels/group_norm/group_norm_launch.cuh"
#include "kernels/group_norm/group_norm_split_backward.cuh"

namespace fuseboard::group_norm {
namespace {

using BackwardKernel = void (*)(BackwardArgs);

BackwardKernel SelectHeld(int32_t dtype, int packs) {
  return DispatchFloat(dtype, [&](auto tag) -> BackwardKernel {
    using X = typename decltype(tag)::type;
    return packs == 4 ? GroupNormBackwardKernel<X, 4> : GroupNormBackwardKernel<X, 2>;
  });
}

SplitKernel SelectPartSums(int32_t dtype, bool alike) {
  return DispatchFloat(dtype, [&](auto tag) -> SplitKernel {
    using X = typename decltype(tag)::type;
    return alike ? PartSumsKernel<X, kPackLanes<X>> : PartSumsKernel<X, 1>;
  });
}

SplitKernel SelectInputGradient(int32_t dtype, bool alike) {
  return DispatchFloat(dtype, [&](auto tag) -> SplitKernel {
    using X = typename decltype(tag)::type;
    return alike ? InputGradientKernel<X, kPackLanes<X>> : InputGradientKernel<X, 1>;
  });
}

Policy PolicyOf(const FbCall& call, const BackwardCall& b) {
  const int64_t packs = HeldPacks(b.x, b.shape, {&b.dy, &b.x, &b.dx});
  return packs == 0 ? Policy{} : SelectBackward(call.sm, packs);
}

// Partial sums of each parameter, of `channels` floats: one per example and block or part.
int64_t HeldSums(const BackwardCall& b, const Policy& policy) {
  return b.shape.examples * policy.cluster;
}

int64_t SplitSums(const BackwardCall& b) {
  return b.shape.examples * SelectSplit(b.shape.elements).parts;
}

// dweight and dbias of what the blocks have added up.
cudaError_t SumParameters(const FbCall& call, const BackwardCall& b, const float* of_weight,
                          const float* of_bias, int64_t sums) {
  const auto of = [&](const FbTensor& out, const float* partials) {
    if (IsAbsent(out)) return PartialSums{};
    return PartialSums{partials, sums, b.shape.channels, out.data, out.dtype};
  };
  return LaunchTwoSums(of(b.dweight, of_weight), of(b.dbias, of_bias), call.sm >= 90 && sums > 0,
                       call.stream);
}

struct Partials {
  float* of_weight;  // Or NULL.
  float* of_bias;    // Or NULL.
};

Partials HeldPartials(const BackwardCall& b, int64_t sums, void* workspace) {
  auto* const partials = static_cast<float*>(workspace);
  const bool has_dweight = !IsAbsent(b.dweight);
  const int64_t before_bias = has_dweight ? sums * b.shape.channels : 0;
  return {has_dweight ? partials : nullptr, IsAbsent(b.dbias) ? nullptr : partials + before_bias};
}

// Which sums of a held group are one unit, and who adds them up.
void SetUnits(const Policy& policy, BackwardArgs* args) {
  const int width = std::min(policy.threads, kWarp);
  const int run = width * policy.packs;
  const auto channel_packs = static_cast<int32_t>(args->channel_packs.value);
  args->whole_runs = channel_packs % run == 0;
  args->channel_units = args->whole_runs ? channel_packs / run : channel_packs;
  args->block_units = policy.threads * policy.packs / (args->whole_runs ? run : 1);
  args->channel_threads = std::min(PowerOfTwoThreads(args->channel_units), width);
}

int SharedBytes(const Policy& policy, const BackwardArgs& args) {
  const int group = args.block_units * static_cast<int>(sizeof(float2)) +
                    args.group_channels * static_cast<int>(sizeof(float));
  return policy.groups_per_block * group;
}

int32_t LaunchSplit(const FbCall& call, const BackwardCall& b, void* workspace) {
  const Split split = SelectSplit(b.shape.elements);
  SplitArgs args = SplitArgsOf(b.shape, split);
  const int64_t sums = SplitSums(b);
  args.group_means = static_cast<float2*>(workspace);
  args.dy_sums = reinterpret_cast<float*>(args.group_means + args.all_groups);
  args.product_sums = args.dy_sums + sums * b.shape.channels;
  args.x = b.x.data;
  args.dy = b.dy.data;
  args.weight = DataOf(b.weight);
  args.out = DataOf(b.dx);
  args.mean = static_cast<float*>(b.mean.data);
  args.rstd = static_cast<float*>(b.rstd.data);
  args.weight_dtype = b.weight.dtype;
  const auto part_sums = SelectPartSums(b.x.dtype, AreAlike({&b.dy, &b.x}));
  if (const cudaError_t error = LaunchPieces(part_sums, args, split, call.stream)) return error;
  if (!IsAbsent(b.dx)) {
    if (const cudaError_t error = LaunchGroups(GroupMeansKernel, args, call.stream)) return error;
    const auto gradient = SelectInputGradient(b.x.dtype, AreAlike({&b.dy, &b.x, &b.dx}));
    if (const cudaError_t error = LaunchPieces(gradient, args, split, call.stream)) return error;
  }
  return SumParameters(call, b, args.product_sums, args.dy_sums, sums);
}

}  // namespace

uint64_t BackwardWorkspaceOf(const FbCall& call, const Policy& policy) {
  const BackwardCall b = BackwardOf(call);
  const auto channels = static_cast<uint64_t>(b.shape.channels);
  const uint64_t parameters = (IsAbsent(b.dweight) ? 0 : 1) + (IsAbsent(b.dbias) ? 0 : 1);
  if (policy.packs != 0) {
    return static_cast<uint64_t>(HeldSums(b, policy)) * channels * parameters * sizeof(float);
  }
  return static_cast<uint64_t>(b.shape.all_groups()) * sizeof(float2) +
         static_cast<uint64_t>(SplitSums(b)) * channels * 2 * sizeof(float);
}

uint64_t BackwardCudaWorkspace(const FbCall* call) {
  return BackwardWorkspaceOf(*call, PolicyOf(*call, BackwardOf(*call)));
}

int32_t LaunchBackward(const FbCall& call, const Policy& policy, void* workspace) {
  const BackwardCall b = BackwardOf(call);
  const int64_t sums = HeldSums(b, policy);
  const Partials partials = HeldPartials(b, sums, workspace);
  const int64_t packs = b.shape.group_elements() / LanesOf(b.x);
  BackwardArgs args = {};
  args.dy = b.dy.data;
  args.x = b.x.data;
  args.weight = DataOf(b.weight);
  args.mean = static_cast<const float*>(b.mean.data);
  args.rstd = static_cast<const float*>(b.rstd.data);
  args.dx = DataOf(b.dx);
  args.weight_partials = partials.of_weight;
  args.bias_partials = partials.of_bias;
  args.channels = b.shape.channels;
  args.all_groups = static_cast<uint32_t>(b.shape.all_groups());
  args.groups = static_cast<uint32_t>(b.shape.groups);
  args.group_channels = static_cast<int32_t>(b.shape.group_channels());
  args.group_packs = static_cast<int32_t>(packs);
  args.channel_packs = DivisorOf(static_cast<uint32_t>(packs / b.shape.group_channels()));
  args.weight_dtype = b.weight.dtype;
  args.inverse_elements = 1.0f / static_cast<float>(b.shape.group_elements());
  SetUnits(policy, &args);
  const LaunchShape shape = {.blocks = BlocksOf(policy, b.shape.all_groups()),
                             .threads = dim3(policy.threads, policy.groups_per_block),
                             .cluster = policy.cluster,
                             .shared_bytes = SharedBytes(policy, args),
                             .stream = static_cast<cudaStream_t>(call.stream)};
  const auto kernel = SelectHeld(b.x.dtype, policy.packs);
  if (const cudaError_t error = LaunchKernel(kernel, shape, args)) return error;
  return SumParameters(call, b, partials.of_weight, partials.of_bias, sums);
}

int32_t BackwardCuda(const FbCall* call, void* workspace) {
  const BackwardCall b = BackwardOf(*call);
  if (IsAbsent(b.dx) && !b.has_parameters()) return cudaSuccess;
  if (b.shape.examples == 0) return SumParameters(*call, b, nullptr, nullptr, 0);
  const Policy policy = PolicyOf(*call, b);
  return policy.packs != 0 ? LaunchBackward(*call, policy, workspace)
                           : LaunchSplit(*call, b, workspace);
}

int32_t LoadBackwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {2, 4}) {
      if (const cudaError_t error = LoadKernel(SelectHeld(dtype, packs))) return error;
    }
    for (const bool alike : {true, false}) {
      if (const cudaError_t error = LoadKernel(SelectPartSums(dtype, alike))) return error;
      if (const cudaError_t error = LoadKernel(SelectInputGradient(dtype, alike))) return error;
    }
  }
  if (const cudaError_t error = LoadKernel(GroupMeansKernel)) return error;
  return LoadSumPartials();
}

}  // namespace fuseboard::group_norm
