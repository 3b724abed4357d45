// The forward kernel for what is usual: some rows of a group to a block; weight, scale and shift of
// the dtype of x. All are asked for before the rows' sums are known. y = (1 + scale) * n * (offset
// + weight) + shift.
//
// Traffic: x read once, y written once; what rows share comes from L1 and L2, once per block.
// Determinism: the order of a row's sum is fixed by the number of threads. No atomics.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FORWARD_ROWS_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FORWARD_ROWS_CUH_

#include "kernels/common/quotient.cuh"
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

// The sums of kRows values, 1, 2 or 4, over a block of at most kWarps warps. In each of the first
// exchanges half of the lanes go on with half of the values: several cost little more than one.
template <int kWarps, int kRows>
struct BlockSums {
  static constexpr int kWidth = kWarpThreads / kRows;  // Lanes that end with the same value.
  static_assert(kWarps * kRows <= kWarpThreads);
  float sums[kWarps * kRows];

  __device__ __forceinline__ void operator()(float (&value)[kRows]) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t warp = threadIdx.x / kWarpThreads;
    int offset = kWarpThreads / 2;
#pragma unroll
    for (int half = kRows / 2; half > 0; half /= 2, offset /= 2) {
      const bool upper = (lane & static_cast<uint32_t>(offset)) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float sent = upper ? value[i] : value[i + half];
        value[i] = upper ? value[i + half] : value[i];
        value[i] += __shfl_xor_sync(0xffffffffu, sent, offset);
      }
    }
    float own = WarpReduce(value[0], Sum(), kWidth);
    if (lane % kWidth == 0) sums[warp * kRows + lane / kWidth] = own;
    if (threadIdx.x < kWarps * kRows && threadIdx.x >= blockDim.x / kWidth)
      sums[threadIdx.x] = 0.0f;
    __syncthreads();
    own = sums[lane % (kWarps * kRows)];
#pragma unroll
    for (int other = kWarps * kRows / 2; other >= kRows; other /= 2) {
      own += __shfl_xor_sync(0xffffffffu, own, other);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) value[i] = kRows == 1 ? own : __shfl_sync(0xffffffffu, own, i);
  }
};

// blockDim = as many threads as the row has runs of kPacks packs, whole warps, at most kWarps of
// them; a warp has kPacks * 32 neighbouring packs. As many blocks as runs of kRows rows of a group.
// REQUIRES: all in 16-byte runs.
template <typename X, int kWarps, int kPacks, int kRows, int kResidentWarps>
__global__ void __launch_bounds__(kWarps* kWarpThreads, kResidentWarps / kWarps)
    ModulatedForwardRowsKernel(const __grid_constant__ rms_norm::ModulatedForwardArgs args) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ BlockSums<kWarps, kRows> sums;
  const rms_norm::Modulation& of = args.modulation;
  const int first = static_cast<int>(threadIdx.x / kWarpThreads * (kWarpThreads * kPacks) +
                                     threadIdx.x % kWarpThreads);
  const int left = static_cast<int>(args.norm.hidden / kLanes) - first;
  const int column = first * kLanes;
  const int64_t of_group = (of.group_rows + kRows - 1) / kRows;  // Blocks.
  const int64_t group = Quotient(blockIdx.x, of_group);
  const int64_t begin = (blockIdx.x - group * of_group) * kRows;
  const int64_t row = group * of.group_rows + begin;
  const int rows = kRows == 1 ? 1 : static_cast<int>(min(of.group_rows - begin, int64_t{kRows}));
  const bool has_weight = args.weight != nullptr;

  Lanes<X, kLanes> held[kRows][kPacks];
  const X* x = static_cast<const X*>(args.x) + row * args.x_stride + column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) LoadPacks<X>(x + r * args.x_stride, r < rows ? left : 0, held[r]);
  Lanes<X, kLanes> weight[kPacks], scale[kPacks], shift[kPacks];
  LoadPacks<X>(static_cast<const X*>(args.weight) + column, has_weight ? left : 0, weight);
  LoadPacks<X>(static_cast<const X*>(of.scale) + group * of.scale_stride + column, left, scale);
  LoadPacks<X>(static_cast<const X*>(of.shift) + group * of.shift_stride + column, left, shift);

  float square[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float own[2] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float v[kLanes];
      Unpack<X, kLanes>(held[r][p], v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) own[i % 2] += v[i] * v[i];
    }
    square[r] = own[0] + own[1];
  }
  sums(square);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    square[r] = rsqrtf(square[r] * args.inverse_hidden + args.norm.eps);
    if (args.rstd != nullptr && threadIdx.x == 0 && r < rows) args.rstd[row + r] = square[r];
  }

  X* const y = static_cast<X*>(args.y) + row * args.y_stride + column;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (p * kWarpThreads >= left) break;
    float factor[kLanes], added[kLanes];
    Unpack<X, kLanes>(scale[p], factor);
    Unpack<X, kLanes>(shift[p], added);
    if (has_weight) {
      float w[kLanes];
      Unpack<X, kLanes>(weight[p], w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        w[i] += args.norm.offset;
        factor[i] = fmaf(w[i], factor[i], w[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) factor[i] += 1.0f;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (kRows > 1 && r >= rows) break;
      float v[kLanes];
      Unpack<X, kLanes>(Renewed(held[r][p], args.zero), v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) v[i] *= square[r];
      if (args.norm.round_normed) RoundFloats<X>(v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) v[i] = fmaf(v[i], factor[i], added[i]);
      StoreFloats<X, kLanes>(y + r * args.y_stride + p * kWarpThreads * kLanes, v);
    }
  }
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FORWARD_ROWS_CUH_
