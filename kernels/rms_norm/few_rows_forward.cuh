// The forward of the norms for few rows, all of one dtype: of rms_norm, with kAdd of
// fused_add_rms_norm, with kModulate of modulated_rms_norm. y as in rms_norm_forward.cuh.
//
// With few rows a launch is longer than the work: a row to a block, little code, and all that a
// thread reads asked for at once. May be launched dependent.
//
// Traffic: x read once, y written once. Determinism: the order of a row's sum is fixed by the
// number of threads. No atomics.

#ifndef KERNELS_RMS_NORM_FEW_ROWS_FORWARD_CUH_
#define KERNELS_RMS_NORM_FEW_ROWS_FORWARD_CUH_

#include "kernels/rms_norm/few_rows_policy.h"
#include "kernels/rms_norm/rms_norm_forward.cuh"

namespace fuseboard::rms_norm {

// The sum of `value` over a block of at most kFewRowsMaxThreads threads, whole warps, at the end of
// one barrier: each thread adds up what the warps have.
__device__ __forceinline__ float FewWarpsSum(float value) {
  constexpr int kWarps = kFewRowsMaxThreads / kWarpThreads;
  __shared__ alignas(16) float sums[kWarps];
  const uint32_t thread = threadIdx.x;
  value = WarpReduce(value, Sum());
  if (thread % kWarpThreads == 0) sums[thread / kWarpThreads] = value;
  if (thread < kWarps && thread * kWarpThreads >= blockDim.x) sums[thread] = 0.0f;
  __syncthreads();
  float of[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; i += 4) {
    const auto four = *reinterpret_cast<const float4*>(sums + i);
    of[i] = four.x, of[i + 1] = four.y, of[i + 2] = four.z, of[i + 3] = four.w;
  }
#pragma unroll
  for (int step = kWarps / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) of[i] += of[i + step];
  }
  return of[0];
}

// A thread's packs, blockDim.x apart, of those that the row has.
template <typename X, int kPacks>
__device__ __forceinline__ void LoadRowPacks(const X* row, int row_packs,
                                             Lanes<X, kPackLanes<X>> (&out)[kPacks]) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto pack = static_cast<int>(threadIdx.x + p * blockDim.x);
    out[p] = {};
    if (pack < row_packs) out[p] = LoadLanes<X, kPackLanes<X>>(row + pack * kPackLanes<X>);
  }
}

// As many blocks as rows. REQUIRES: at most kFewRowsMaxThreads threads, whole warps, kPacks packs
// of each cover a row; all in 16-byte runs, of dtype X.
template <typename X, bool kAdd, bool kModulate, int kPacks>
__global__ void __launch_bounds__(kFewRowsMaxThreads)
    FewRowsForwardKernel(const __grid_constant__ ForwardArgsOf<kModulate> args) {
  constexpr int kLanes = kPackLanes<X>;
  using Packs = Lanes<X, kLanes>[kPacks];
  WaitForPredecessor();
  const auto row = static_cast<int>(blockIdx.x);
  const auto row_packs = static_cast<int>(args.norm.hidden / kLanes);
  const bool has_weight = args.weight != nullptr;
  Packs held, weight, residual, scale, shift;
  LoadRowPacks<X>(static_cast<const X*>(args.x) + row * args.x_stride, row_packs, held);
  if constexpr (kAdd) {
    LoadRowPacks<X>(static_cast<const X*>(args.residual) + row * args.residual_stride, row_packs,
                    residual);
  }
  LoadRowPacks<X>(static_cast<const X*>(args.weight), has_weight ? row_packs : 0, weight);
  if constexpr (kModulate) {
    const Modulation& of = args.modulation;
    const auto group = static_cast<uint32_t>(row) / static_cast<uint32_t>(of.group_rows);
    LoadRowPacks<X>(static_cast<const X*>(of.scale) + group * of.scale_stride, row_packs, scale);
    LoadRowPacks<X>(static_cast<const X*>(of.shift) + group * of.shift_stride, row_packs, shift);
  }

  float square[2] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto pack = static_cast<int>(threadIdx.x + p * blockDim.x);
    if constexpr (kAdd) {
      held[p] = AddLanes<X, kLanes>(held[p], residual[p]);
      X* const sum = static_cast<X*>(args.sum) + row * args.sum_stride;
      if (pack < row_packs) StoreLanes<X, kLanes>(sum + pack * kLanes, held[p]);
    }
    float v[kLanes];
    Unpack<X, kLanes>(held[p], v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) square[i % 2] += v[i] * v[i];
  }
  const float sum = FewWarpsSum(square[0] + square[1]);
  const float rstd = rsqrtf(sum * args.inverse_hidden + args.norm.eps);

  X* const y = static_cast<X*>(args.y) + row * args.y_stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto pack = static_cast<int>(threadIdx.x + p * blockDim.x);
    if (pack >= row_packs) break;
    float v[kLanes], w[kLanes];
    Unpack<X, kLanes>(held[p], v);
    Unpack<X, kLanes>(weight[p], w);
    Scale<X, kLanes>(v, rstd, args.norm, has_weight, w);
    if constexpr (kModulate) {
      float factor[kLanes], added[kLanes];
      Unpack<X, kLanes>(scale[p], factor);
      Unpack<X, kLanes>(shift[p], added);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) v[i] = fmaf(v[i], 1.0f + factor[i], added[i]);
    }
    StoreFloats<X, kLanes>(y + pack * kLanes, v);
  }
  if (args.rstd != nullptr && threadIdx.x == 0) args.rstd[row] = rstd;
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_FEW_ROWS_FORWARD_CUH_
