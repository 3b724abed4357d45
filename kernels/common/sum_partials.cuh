// The end of a sum over all rows of a matrix: what the blocks of a kernel have added up, added up.

#ifndef KERNELS_COMMON_SUM_PARTIALS_CUH_
#define KERNELS_COMMON_SUM_PARTIALS_CUH_

#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"

namespace fuseboard {

inline constexpr int kSumColumns = 32;
inline constexpr int kSumLanes = 32;
inline constexpr int kFewThreads = 256;

// out[c] = the sum of partials[0 .. count)[c], c below `hidden`.
struct PartialSums {
  const float* partials;
  int64_t count;
  int64_t hidden;
  void* out;
  int32_t dtype;
};

inline int64_t SumBlocks(const PartialSums& sums, int columns) {
  return (sums.hidden + columns - 1) / columns;
}

// Two sums, the second one of none or some columns, one after the other in the grid. A column is
// added up as kSumLanes interleaved sums and then their sum. blockDim = (kSumColumns, kSumLanes),
// one block per kSumColumns columns.
static __global__ void __launch_bounds__(kSumColumns* kSumLanes)
    SumPartialsKernel(const __grid_constant__ PartialSums first,
                      const __grid_constant__ PartialSums second, int64_t first_blocks) {
  __shared__ float sums[kSumLanes][kSumColumns];
  WaitForPredecessor();
  const bool is_first = blockIdx.x < first_blocks;
  const PartialSums& of = is_first ? first : second;
  const int64_t block = is_first ? blockIdx.x : blockIdx.x - first_blocks;
  const int64_t column = block * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < of.hidden) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < of.count; i += kSumLanes) {
      sum += of.partials[i * of.hidden + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= of.hidden) return;
  for (int lane = 1; lane < kSumLanes; ++lane) sum += sums[lane][threadIdx.x];
  StoreFloatOf(of.dtype, of.out, column, sum);
}

// The same, with the same bits, of at most kSumLanes rows each: a thread per column. Wide rows
// leave few partial sums, and lanes without any would be most of the other kernel.
static __global__ void __launch_bounds__(kFewThreads)
    SumFewPartialsKernel(const __grid_constant__ PartialSums first,
                         const __grid_constant__ PartialSums second, int64_t first_blocks) {
  WaitForPredecessor();
  const bool is_first = blockIdx.x < first_blocks;
  const PartialSums& of = is_first ? first : second;
  const int64_t block = is_first ? blockIdx.x : blockIdx.x - first_blocks;
  const int64_t column = block * kFewThreads + threadIdx.x;
  if (column >= of.hidden) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t i = 0; i < of.count; ++i) sum += of.partials[i * of.hidden + column];
  StoreFloatOf(of.dtype, of.out, column, sum);
}

// Enqueues it. `dependent` says that the predecessor on the stream allows an early launch.
inline cudaError_t LaunchTwoSums(const PartialSums& first, const PartialSums& second,
                                 bool dependent, void* stream) {
  const bool few = first.count <= kSumLanes && second.count <= kSumLanes;
  const int columns = few ? kFewThreads : kSumColumns;
  const int64_t first_blocks = SumBlocks(first, columns);
  const LaunchShape shape = {.blocks = first_blocks + SumBlocks(second, columns),
                             .threads = few ? dim3(kFewThreads) : dim3(kSumColumns, kSumLanes),
                             .dependent = dependent,
                             .stream = static_cast<cudaStream_t>(stream)};
  if (shape.blocks == 0) return cudaSuccess;
  return LaunchKernel(few ? SumFewPartialsKernel : SumPartialsKernel, shape, first, second,
                      first_blocks);
}

inline cudaError_t LaunchSumPartials(const float* partials, int64_t count, int64_t hidden,
                                     const FbTensor& out, bool dependent, void* stream) {
  return LaunchTwoSums({partials, count, hidden, out.data, out.dtype}, {}, dependent, stream);
}

inline cudaError_t LoadSumPartials() {
  const cudaError_t error = LoadKernel(SumPartialsKernel);
  return error == cudaSuccess ? LoadKernel(SumFewPartialsKernel) : error;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_SUM_PARTIALS_CUH_
