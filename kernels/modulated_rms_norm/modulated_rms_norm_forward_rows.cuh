// The forward kernel for what is usual: a row to a block; weight, scale and shift of the dtype of
// x. All are asked for before the row's sum is known. y = (1 + scale) * n * (offset + weight) +
// shift.
//
// Traffic: x read once, y written once; what rows share comes from L1 and L2. Determinism: the
// order of a row's sum is fixed by the number of threads. No atomics.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FORWARD_ROWS_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FORWARD_ROWS_CUH_

#include "kernels/common/reduce.cuh"
#include "kernels/rms_norm/rms_norm_forward.cuh"

namespace fuseboard::modulated_rms_norm {

// Loads a thread's packs, 32 apart, of those that the row has.
template <typename X, int kPacks>
__device__ __forceinline__ void LoadPacks(const X* from, int left,
                                          Lanes<X, kPackLanes<X>> (&out)[kPacks]) {
  constexpr int kLanes = kPackLanes<X>;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    out[p] = {};
    if (p * kWarpThreads < left) {
      out[p] = LoadLanes<X, kLanes>(from + p * kWarpThreads * kLanes);
    }
  }
}

// blockDim = as many threads as the row has runs of kPacks packs, whole warps, at most kWarps of
// them; a warp has kPacks * 32 neighbouring packs. As many blocks as rows. REQUIRES: all in 16-byte
// runs.
template <typename X, int kWarps, int kPacks, int kResidentWarps>
__global__ void __launch_bounds__(kWarps* kWarpThreads, kResidentWarps / kWarps)
    ModulatedForwardRowKernel(const __grid_constant__ rms_norm::ModulatedForwardArgs args) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ float sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const int first = static_cast<int>(threadIdx.x / kWarpThreads * (kWarpThreads * kPacks)) + lane;
  const int left = static_cast<int>(args.norm.hidden / kLanes) - first;
  const int64_t row = blockIdx.x;
  const int column = first * kLanes;
  const bool has_weight = args.weight != nullptr;
  const rms_norm::Modulation& of = args.modulation;
  const int64_t group = rms_norm::GroupOf(row, of.group_rows);

  Lanes<X, kLanes> held[kPacks], weight[kPacks], scale[kPacks], shift[kPacks];
  LoadPacks<X>(static_cast<const X*>(args.x) + row * args.x_stride + column, left, held);
  LoadPacks<X>(static_cast<const X*>(args.weight) + column, has_weight ? left : 0, weight);
  LoadPacks<X>(static_cast<const X*>(of.scale) + group * of.scale_stride + column, left, scale);
  LoadPacks<X>(static_cast<const X*>(of.shift) + group * of.shift_stride + column, left, shift);

  float square[2] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[kLanes];
    Unpack<X, kLanes>(held[p], v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) square[i % 2] += v[i] * v[i];
  }
  const float part = WarpReduce(square[0] + square[1], Sum());
  if (lane == 0) sums[threadIdx.x / kWarpThreads] = part;
  if (threadIdx.x < kWarps && threadIdx.x >= blockDim.x / kWarpThreads) sums[threadIdx.x] = 0.0f;
  __syncthreads();
  const float sum = WarpReduce(sums[lane % kWarps], Sum(), kWarps);
  const float rstd = rsqrtf(sum * args.inverse_hidden + args.norm.eps);
  if (args.rstd != nullptr && threadIdx.x == 0) args.rstd[row] = rstd;

  X* y = static_cast<X*>(args.y) + row * args.y_stride + column;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (p * kWarpThreads >= left) break;
    float v[kLanes], w[kLanes], factor[kLanes], added[kLanes];
    Unpack<X, kLanes>(Renewed(held[p], args.zero), v);
    Unpack<X, kLanes>(weight[p], w);
    Unpack<X, kLanes>(scale[p], factor);
    Unpack<X, kLanes>(shift[p], added);
    rms_norm::Scale<X, kLanes>(v, rstd, args.norm, has_weight, w);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) v[i] = fmaf(v[i], 1.0f + factor[i], added[i]);
    StoreFloats<X, kLanes>(y + p * kWarpThreads * kLanes, v);
  }
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FORWARD_ROWS_CUH_
