// RMSNorm backward for rows that the kernels of rms_norm_backward.cuh do not take.

#ifndef KERNELS_RMS_NORM_RMS_NORM_BACKWARD_LOOPING_CUH_
#define KERNELS_RMS_NORM_RMS_NORM_BACKWARD_LOOPING_CUH_

#include "kernels/rms_norm/rms_norm_backward.cuh"

namespace fuseboard::rms_norm {

// Any alignment and width, element by element; each row is read twice, the second time from L1 or
// L2, and dweight is added up in memory: a row of partials per row of the block.
template <typename X, typename DY, bool kAdd>
__global__ void __launch_bounds__(512) RmsNormBackwardLoopingKernel(const BackwardArgs args) {
  __shared__ RowSumStorage<false> sums;
  AllowDependentLaunch();
  const int64_t first_row = int64_t{blockIdx.x} * blockDim.y;
  const int64_t row_step = int64_t{gridDim.x} * blockDim.y;
  float* partial = args.partials + (first_row + threadIdx.y) * args.norm.hidden;
  // A row of the block that gets no row of the tensor still has a row of partials.
  if (args.partials != nullptr && first_row + threadIdx.y >= args.norm.rows) {
    for (int64_t i = threadIdx.x; i < args.norm.hidden; i += blockDim.x) partial[i] = 0.0f;
  }
  uint32_t turn = 0;
  for (int64_t base = first_row; base < args.norm.rows; base += row_step, ++turn) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < args.norm.rows;
    const int64_t hidden = active ? args.norm.hidden : 0;
    const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;
    const DY* dy = static_cast<const DY*>(args.dy) + (active ? row : 0) * args.dy_stride;
    const float rstd = active ? args.rstd[row] : 0.0f;

    float mean = 0.0f;
    if (args.dx != nullptr) {
      float dot = 0.0f;
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float xs[1], dys[1], w[1];
        LoadFloats<X, 1>(x + i, xs);
        LoadFloats<DY, 1>(dy + i, dys);
        LoadWeight<1>(args, i, w);
        dot += dys[0] * w[0] * (xs[0] * rstd);
      }
      mean = RowSum<false>(dot, &sums, turn) / static_cast<float>(args.norm.hidden);
    }
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float xs[1], dys[1], w[1];
      LoadFloats<X, 1>(x + i, xs);
      LoadFloats<DY, 1>(dy + i, dys);
      xs[0] *= rstd;
      if (args.dx != nullptr) {
        LoadWeight<1>(args, i, w);
        float dx[1] = {rstd * (dys[0] * w[0] - xs[0] * mean)};
        if (kAdd && args.dsum != nullptr) {
          float dsum[1];
          LoadFloats<X, 1>(static_cast<const X*>(args.dsum) + row * args.dsum_stride + i, dsum);
          dx[0] += dsum[0];
        }
        StoreFloats<X, 1>(static_cast<X*>(args.dx) + row * args.dx_stride + i, dx);
      }
      if (args.partials == nullptr) continue;
      if (args.norm.round_normed) RoundFloats<X>(xs);
      partial[i] = (base == first_row ? 0.0f : partial[i]) + dys[0] * xs[0];
    }
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_BACKWARD_LOOPING_CUH_
