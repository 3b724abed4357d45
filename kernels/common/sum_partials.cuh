// The end of a sum over all rows of a matrix: what the blocks of a kernel have added up, added up.

#ifndef KERNELS_COMMON_SUM_PARTIALS_CUH_
#define KERNELS_COMMON_SUM_PARTIALS_CUH_

#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"

namespace fuseboard {

inline constexpr int kSumColumns = 32;
inline constexpr int kSumLanes = 32;
inline constexpr int kFewThreads = 256;

// partials[0 .. count) are rows of f32, of which `out` gets the sum. One launch does two of them.
struct SumJob {
  const float* partials;  // Or NULL: nothing to do.
  void* out;
  int32_t dtype;
};

// out[c] = the sum of partials[0 .. count)[c], as kSumLanes interleaved sums and then their
// sum. blockDim = (kSumColumns, kSumLanes), one block per kSumColumns columns of each job.
static __global__ void __launch_bounds__(kSumColumns* kSumLanes)
    SumPartialsKernel(const SumJob first, const SumJob second, int64_t count, int64_t hidden,
                      uint32_t blocks) {
  __shared__ float sums[kSumLanes][kSumColumns];
  WaitForPredecessor();
  const SumJob& job = blockIdx.x < blocks ? first : second;
  const int64_t column =
      int64_t{blockIdx.x < blocks ? blockIdx.x : blockIdx.x - blocks} * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < hidden) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < count; i += kSumLanes) {
      sum += job.partials[i * hidden + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= hidden) return;
  for (int lane = 1; lane < kSumLanes; ++lane) sum += sums[lane][threadIdx.x];
  StoreFloatOf(job.dtype, job.out, column, sum);
}

// The same, with the same bits, of at most kSumLanes rows: a thread per column. Wide rows leave few
// partial sums, and lanes without any would be most of the other kernel.
static __global__ void __launch_bounds__(kFewThreads)
    SumFewPartialsKernel(const SumJob first, const SumJob second, int64_t count, int64_t hidden,
                         uint32_t blocks) {
  WaitForPredecessor();
  const SumJob& job = blockIdx.x < blocks ? first : second;
  const int64_t column =
      int64_t{blockIdx.x < blocks ? blockIdx.x : blockIdx.x - blocks} * kFewThreads + threadIdx.x;
  if (column >= hidden) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t i = 0; i < count; ++i) sum += job.partials[i * hidden + column];
  StoreFloatOf(job.dtype, job.out, column, sum);
}

// Enqueues both jobs. `dependent` says that the predecessor on the stream allows an early launch.
inline cudaError_t LaunchSumJobs(const SumJob& first, const SumJob& second, int64_t count,
                                 int64_t hidden, bool dependent, void* stream) {
  const bool few = count <= kSumLanes;
  const int columns = few ? kFewThreads : kSumColumns;
  const int64_t blocks = (hidden + columns - 1) / columns;
  const LaunchShape shape = {.blocks = second.partials == nullptr ? blocks : 2 * blocks,
                             .threads = few ? dim3(kFewThreads) : dim3(kSumColumns, kSumLanes),
                             .dependent = dependent,
                             .stream = static_cast<cudaStream_t>(stream)};
  return LaunchKernel(few ? SumFewPartialsKernel : SumPartialsKernel, shape, first, second, count,
                      hidden, static_cast<uint32_t>(blocks));
}

inline cudaError_t LaunchSumPartials(const float* partials, int64_t count, int64_t hidden,
                                     const FbTensor& out, bool dependent, void* stream) {
  return LaunchSumJobs({partials, out.data, out.dtype}, {}, count, hidden, dependent, stream);
}

inline cudaError_t LoadSumPartials() {
  const cudaError_t error = LoadKernel(SumPartialsKernel);
  return error == cudaSuccess ? LoadKernel(SumFewPartialsKernel) : error;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_SUM_PARTIALS_CUH_
