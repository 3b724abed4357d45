// The end of a sum over all rows of a matrix: what the blocks of a kernel have added up, added up.

#ifndef KERNELS_COMMON_SUM_PARTIALS_CUH_
#define KERNELS_COMMON_SUM_PARTIALS_CUH_

#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"

namespace fuseboard {

inline constexpr int kSumColumns = 32;
inline constexpr int kSumLanes = 32;

// out[c] = the sum of partials[0 .. count)[c], as kSumLanes interleaved sums and then their
// sum. blockDim = (kSumColumns, kSumLanes), one block per kSumColumns columns.
static __global__ void __launch_bounds__(kSumColumns* kSumLanes)
    SumPartialsKernel(const float* partials, int64_t count, int64_t hidden, void* out,
                      int32_t dtype) {
  __shared__ float sums[kSumLanes][kSumColumns];
  WaitForPredecessor();
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < hidden) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < count; i += kSumLanes) {
      sum += partials[i * hidden + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= hidden) return;
  for (int lane = 1; lane < kSumLanes; ++lane) sum += sums[lane][threadIdx.x];
  StoreFloatOf(dtype, out, column, sum);
}

// Enqueues it. `dependent` says that the predecessor on the stream allows an early launch.
inline cudaError_t LaunchSumPartials(const float* partials, int64_t count, int64_t hidden,
                                     const FbTensor& out, bool dependent, void* stream) {
  const LaunchShape shape = {.blocks = (hidden + kSumColumns - 1) / kSumColumns,
                             .threads = dim3(kSumColumns, kSumLanes),
                             .dependent = dependent,
                             .stream = static_cast<cudaStream_t>(stream)};
  return LaunchKernel(SumPartialsKernel, shape, partials, count, hidden, out.data, out.dtype);
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_SUM_PARTIALS_CUH_
