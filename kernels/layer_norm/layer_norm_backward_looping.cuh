// LayerNorm backward for rows that the kernels of layer_norm_backward.cuh do not take.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_BACKWARD_LOOPING_CUH_
#define KERNELS_LAYER_NORM_LAYER_NORM_BACKWARD_LOOPING_CUH_

#include "kernels/layer_norm/layer_norm_backward.cuh"

namespace fuseboard::layer_norm {

// Any alignment and width, element by element; each row is read twice, the second time from L1 or
// L2, and the sums are added up in memory: a row of partials per row of the block.
template <typename X>
__global__ void __launch_bounds__(512) LayerNormBackwardLoopingKernel(const BackwardArgs args) {
  __shared__ RowSumPairStorage<false> sums;
  AllowDependentLaunch();
  const int64_t first_row = int64_t{blockIdx.x} * blockDim.y;
  const int64_t row_step = int64_t{gridDim.x} * blockDim.y;
  const float inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  const int64_t own = (first_row + threadIdx.y) * args.hidden;
  const auto add = [&](float* partials, int64_t column, bool is_first, float value) {
    if (partials == nullptr) return;
    float& sum = partials[own + column];
    sum = is_first ? value : sum + value;
  };
  // A row of the block that gets no row of the tensor still has a row of partials.
  if (first_row + threadIdx.y >= args.rows) {
    for (int64_t i = threadIdx.x; i < args.hidden; i += blockDim.x) {
      add(args.weight_partials, i, true, 0.0f);
      add(args.bias_partials, i, true, 0.0f);
    }
  }
  uint32_t turn = 0;
  for (int64_t base = first_row; base < args.rows; base += row_step, ++turn) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < args.rows;
    const int64_t hidden = active ? args.hidden : 0;
    const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;
    const X* dy = static_cast<const X*>(args.dy) + (active ? row : 0) * args.dy_stride;
    const float mean = active ? args.mean[row] : 0.0f;
    const float rstd = active ? args.rstd[row] : 0.0f;

    float2 means = {0.0f, 0.0f};
    if (args.dx != nullptr) {
      float2 dots = {0.0f, 0.0f};
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float xs[1], dys[1], w[1];
        LoadFloats<X, 1>(x + i, xs);
        LoadFloats<X, 1>(dy + i, dys);
        LoadWeight<1>(args, i, w);
        dots.x += dys[0] * w[0];
        dots.y += dys[0] * w[0] * ((xs[0] - mean) * rstd);
      }
      dots = RowSumPair<false>(dots, &sums, turn);
      means = {dots.x * inverse_hidden, dots.y * inverse_hidden};
    }
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float xs[1], dys[1], w[1];
      LoadFloats<X, 1>(x + i, xs);
      LoadFloats<X, 1>(dy + i, dys);
      xs[0] = (xs[0] - mean) * rstd;
      if (args.dx != nullptr) {
        LoadWeight<1>(args, i, w);
        const float dx[1] = {rstd * (dys[0] * w[0] - means.x - xs[0] * means.y)};
        StoreFloats<X, 1>(static_cast<X*>(args.dx) + row * args.dx_stride + i, dx);
      }
      add(args.weight_partials, i, base == first_row, dys[0] * xs[0]);
      add(args.bias_partials, i, base == first_row, dys[0]);
    }
  }
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_BACKWARD_LOOPING_CUH_
