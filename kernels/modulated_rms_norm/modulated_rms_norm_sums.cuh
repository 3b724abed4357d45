// The end of modulated_rms_norm's backward, in one launch: what the slices have added up, added up.
// With S the sum of dy * n over the rows of a group, of its slices in order:
//   dscale = w * S,   dshift = sum of dy,   dweight = sum over groups of (1 + scale) * S
//
// Determinism: kSumLanes interleaved sums of groups and then their sum, all in f32.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_SUMS_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_SUMS_CUH_

#include "kernels/common/sum_partials.cuh"
#include "kernels/modulated_rms_norm/backward_args.cuh"

namespace fuseboard::modulated_rms_norm {

// How the groups are divided among blocks: kSumColumns columns of `groups` of them to each.
struct SumsCut {
  int64_t column_blocks;
  int64_t groups;
};

// blockDim = (kSumColumns, kSumLanes). REQUIRES: all groups to a block if dweight is wanted.
static __global__ void __launch_bounds__(kSumColumns* kSumLanes)
    GroupSumsKernel(const __grid_constant__ BackwardArgs args,
                    const __grid_constant__ SumsCut cut) {
  __shared__ float shared[kSumLanes][kSumColumns];
  WaitForPredecessor();
  const int64_t chunk = Quotient(blockIdx.x, cut.column_blocks);
  const int64_t column = (blockIdx.x - chunk * cut.column_blocks) * kSumColumns + threadIdx.x;
  const int64_t hidden = args.norm.hidden;
  const bool has = column < hidden;
  const int64_t end = has ? min((chunk + 1) * cut.groups, args.groups) : 0;
  const int64_t slice_step = args.groups * hidden;  // From a group's slice to its next.
  float dweight = 0.0f;
  for (int64_t group = chunk * cut.groups + threadIdx.y; group < end; group += kSumLanes) {
    const int64_t at = group * hidden + column;
    float dy_normed[1] = {};
    float dy[1] = {};
#pragma unroll 8
    for (int64_t slice = 0; slice < args.slices.per_group; ++slice) {
      if (args.dy_normed_sums != nullptr) {
        dy_normed[0] += args.dy_normed_sums[slice * slice_step + at];
      }
      if (args.dy_sums != nullptr) dy[0] += args.dy_sums[slice * slice_step + at];
    }
    if (!args.direct) StoreResults<1>(args, group, column, dy_normed, dy);
    if (args.dweight.base == nullptr) continue;
    float factor[1];
    LoadOnePlusScale<1>(args, group, column, factor);
    dweight += factor[0] * dy_normed[0];
  }
  if (args.dweight.base == nullptr) return;
  shared[threadIdx.y][threadIdx.x] = dweight;
  __syncthreads();
  if (threadIdx.y > 0 || !has) return;
  for (int lane = 1; lane < kSumLanes; ++lane) dweight += shared[lane][threadIdx.x];
  StoreFloatOf(args.dweight.dtype, args.dweight.base, column, dweight);
}

// Enqueues it. `dependent` says that the predecessor on the stream allows an early launch.
inline cudaError_t LaunchGroupSums(const BackwardArgs& args, bool dependent, void* stream) {
  const bool all = args.dweight.base != nullptr;
  const int64_t chunks = all ? 1 : (args.groups + kSumLanes - 1) / kSumLanes;
  const SumsCut cut = {(args.norm.hidden + kSumColumns - 1) / kSumColumns,
                       all ? args.groups : kSumLanes};
  const LaunchShape shape = {.blocks = cut.column_blocks * chunks,
                             .threads = dim3(kSumColumns, kSumLanes),
                             .dependent = dependent,
                             .stream = static_cast<cudaStream_t>(stream)};
  if (shape.blocks == 0) return cudaSuccess;
  return LaunchKernel(GroupSumsKernel, shape, args, cut);
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_SUMS_CUH_
