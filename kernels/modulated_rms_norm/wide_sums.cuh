// The end of modulated_rms_norm's backward over wide rows: the sums of examples whose rows more
// than one cluster had, and those of clusters for dweight.
//
// Determinism: the clusters' sums are added in order, in f32.

#ifndef KERNELS_MODULATED_RMS_NORM_WIDE_SUMS_CUH_
#define KERNELS_MODULATED_RMS_NORM_WIDE_SUMS_CUH_

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"

namespace fuseboard::modulated_rms_norm {

// Of clusters that have `cluster_rows` rows each, one after the other, the first `rest` one more.
// Rows 2 c and 2 c + 1 of the sums are of cluster c: of its first example, and of its last if that
// is another one.
struct WideSumsArgs {
  const float* dy_normed_sums;  // Or NULL, as the rest.
  const float* dy_sums;
  const float* dweight_sums;  // A row to a cluster.
  const void* weight;
  void* dscale;
  void* dshift;
  void* dweight;
  int64_t hidden;
  int32_t clusters;
  int32_t cluster_rows;
  int32_t rest;
  int32_t example_rows;
  int32_t column_blocks;
  float offset;
};

inline constexpr int kWideSumThreads = 128;
inline constexpr int kWideSumColumns = 4 * kWideSumThreads;

// Of rows first, first + step, ...: `count` of them.
__device__ __forceinline__ float4 SumRows(const float* sums, int64_t hidden, int64_t column,
                                          int first, int step, int count) {
  float4 sum = {};
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const int64_t row = first + int64_t{i} * step;
    const float4 v = *reinterpret_cast<const float4*>(sums + row * hidden + column);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  return sum;
}

template <typename X>
__device__ __forceinline__ void StoreSum(void* base, int64_t at, float4 sum) {
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
  StoreFloats<X, 4>(static_cast<X*>(base) + at, values);
}

// Blocks of columns, for each cluster but the first: what begins before it and does not end there;
// and for dweight.
template <typename X>
__global__ void __launch_bounds__(kWideSumThreads)
    WideSumsKernel(const __grid_constant__ WideSumsArgs args) {
  const int item = static_cast<int>(blockIdx.x) / args.column_blocks;
  const int column = (static_cast<int>(blockIdx.x) - item * args.column_blocks) * kWideSumColumns +
                     static_cast<int>(threadIdx.x) * 4;
  WaitForPredecessor();
  if (column >= args.hidden) return;
  const int cluster = item + 1;
  if (cluster == args.clusters) {
    StoreSum<X>(args.dweight, column,
                SumRows(args.dweight_sums, args.hidden, column, 0, 1, args.clusters));
    return;
  }
  const auto begin_of = [&](int of) { return of * args.cluster_rows + min(of, args.rest); };
  const int example = begin_of(cluster) / args.example_rows;
  const int begin = example * args.example_rows;
  const int before = begin_of(cluster - 1);
  // None, or that of an earlier cluster.
  if (begin_of(cluster) == begin || before > begin) return;
  int end = cluster + 1;
  while (end < args.clusters && begin_of(end) < begin + args.example_rows) ++end;
  const int first = 2 * (cluster - 1) + (before < begin ? 1 : 0);
  const int64_t at = int64_t{example} * args.hidden + column;
  const auto total = [&](const float* sums) -> float4 {
    const float4 own = SumRows(sums, args.hidden, column, first, 1, 1);
    const float4 rest = SumRows(sums, args.hidden, column, 2 * cluster, 2, end - cluster);
    return {own.x + rest.x, own.y + rest.y, own.z + rest.z, own.w + rest.w};
  };
  if (args.dshift != nullptr) StoreSum<X>(args.dshift, at, total(args.dy_sums));
  if (args.dscale == nullptr) return;
  float4 dscale = total(args.dy_normed_sums);
  if (args.weight != nullptr) {
    float w[4];
    LoadFloats<X, 4>(static_cast<const X*>(args.weight) + column, w);
    dscale.x *= args.offset + w[0], dscale.y *= args.offset + w[1];
    dscale.z *= args.offset + w[2], dscale.w *= args.offset + w[3];
  }
  StoreSum<X>(args.dscale, at, dscale);
}

using WideSums = void (*)(WideSumsArgs);

inline WideSums SelectWideSums(int32_t dtype) {
  return DispatchFloat(
      dtype, [](auto tag) -> WideSums { return WideSumsKernel<typename decltype(tag)::type>; });
}

// Enqueues it after a kernel that allows an early launch. `args` without column_blocks.
inline cudaError_t LaunchWideSums(int32_t dtype, WideSumsArgs args, void* stream) {
  const bool all_whole = args.rest == 0 && args.cluster_rows % args.example_rows == 0;
  const bool examples = !all_whole && (args.dscale != nullptr || args.dshift != nullptr);
  if (!examples && args.dweight == nullptr) return cudaSuccess;
  args.column_blocks = static_cast<int32_t>((args.hidden + kWideSumColumns - 1) / kWideSumColumns);
  const int64_t items = args.clusters - (args.dweight == nullptr ? 1 : 0);
  const LaunchShape shape = {.blocks = items * args.column_blocks,
                             .threads = dim3(kWideSumThreads),
                             .dependent = true,
                             .stream = static_cast<cudaStream_t>(stream)};
  return LaunchKernel(SelectWideSums(dtype), shape, args);
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_WIDE_SUMS_CUH_
