// The end of modulated_rms_norm's backward, in one launch: what the slices have added up, added up.
// With S the sum of dy * n over the rows of a group, of its slices in order:
//   dscale = w * S,   dshift = sum of dy,   dweight = sum over groups of (1 + scale) * S
//
// Determinism: where there are fewer groups than lanes, several lanes share a group's slices; their
// sums are added in order, as are kSumLanes interleaved sums over the groups. All in f32, in an
// order fixed by the numbers of groups and slices.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_SUMS_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_SUMS_CUH_

#include "kernels/common/sum_partials.cuh"
#include "kernels/modulated_rms_norm/backward_args.cuh"

namespace fuseboard::modulated_rms_norm {

// How the groups are divided among blocks, kSumColumns columns of `groups` of them to each, and
// lanes: `parts` of them to a group, 1 if a lane has several groups.
struct SumsCut {
  int64_t column_blocks;
  int64_t groups;
  int32_t parts;
};

// blockDim = (kSumColumns, kSumLanes). REQUIRES: all groups to a block if dweight is wanted.
static __global__ void __launch_bounds__(kSumColumns* kSumLanes)
    GroupSumsKernel(const __grid_constant__ BackwardArgs args,
                    const __grid_constant__ SumsCut cut) {
  __shared__ float2 shared[kSumLanes][kSumColumns];
  WaitForPredecessor();
  const int64_t chunk = Quotient(blockIdx.x, cut.column_blocks);
  const int64_t column = (blockIdx.x - chunk * cut.column_blocks) * kSumColumns + threadIdx.x;
  const int64_t hidden = args.norm.hidden;
  const int64_t end = column < hidden ? min((chunk + 1) * cut.groups, args.groups) : 0;
  const int part = static_cast<int>(threadIdx.y) % cut.parts;
  int64_t group = chunk * cut.groups + static_cast<int>(threadIdx.y) / cut.parts;

  // Of dy * n and of dy.
  const auto sum_slices = [&]() -> float2 {
    float2 sums = {};
    const int64_t at = group * hidden + column;
    const int64_t step = args.groups * hidden;  // From a group's slice to its next.
#pragma unroll 8
    for (int64_t slice = part; slice < args.slices.per_group; slice += cut.parts) {
      if (args.dy_normed_sums != nullptr) sums.x += args.dy_normed_sums[slice * step + at];
      if (args.dy_sums != nullptr) sums.y += args.dy_sums[slice * step + at];
    }
    return sums;
  };
  float dweight = 0.0f;
  const auto store = [&](float2 sums) {
    const float dy_normed[1] = {sums.x};
    const float dy[1] = {sums.y};
    if (!args.direct) StoreResults<1>(args, group, column, dy_normed, dy);
    if (args.dweight.base == nullptr) return;
    float factor[1];
    LoadOnePlusScale<1>(args, group, column, factor);
    dweight += factor[0] * sums.x;
  };
  if (cut.parts == 1) {
    for (; group < end; group += kSumLanes) store(sum_slices());
  } else {
    float2 sums = {};
    if (group < end) sums = sum_slices();
    shared[threadIdx.y][threadIdx.x] = sums;
    __syncthreads();
    if (part == 0 && group < end) {
      for (int other = 1; other < cut.parts; ++other) {
        const float2 of_part = shared[threadIdx.y + other][threadIdx.x];
        sums.x += of_part.x;
        sums.y += of_part.y;
      }
      store(sums);
    }
    __syncthreads();
  }
  if (args.dweight.base == nullptr) return;
  shared[threadIdx.y][threadIdx.x].x = dweight;
  __syncthreads();
  if (threadIdx.y > 0 || column >= hidden) return;
  for (int lane = 1; lane < kSumLanes; ++lane) dweight += shared[lane][threadIdx.x].x;
  StoreFloatOf(args.dweight.dtype, args.dweight.base, column, dweight);
}

// Enqueues it. `dependent` says that the predecessor on the stream allows an early launch.
inline cudaError_t LaunchGroupSums(const BackwardArgs& args, bool dependent, void* stream) {
  const bool all = args.dweight.base != nullptr;
  int parts = 1;
  while (2 * parts * args.groups <= kSumLanes && parts < args.slices.per_group) parts *= 2;
  const int64_t chunks = all ? 1 : (args.groups + kSumLanes - 1) / kSumLanes;
  const SumsCut cut = {(args.norm.hidden + kSumColumns - 1) / kSumColumns,
                       all ? args.groups : kSumLanes, parts};
  const LaunchShape shape = {.blocks = cut.column_blocks * chunks,
                             .threads = dim3(kSumColumns, kSumLanes),
                             .dependent = dependent,
                             .stream = static_cast<cudaStream_t>(stream)};
  if (shape.blocks == 0) return cudaSuccess;
  return LaunchKernel(GroupSumsKernel, shape, args, cut);
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_SUMS_CUH_
