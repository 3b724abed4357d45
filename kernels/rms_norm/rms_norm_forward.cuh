// RMSNorm forward on the GPU: y = x * rsqrt(mean(x^2) + eps) * (offset + weight), sums in f32.
//
// Traffic: x read once, y written once, weight from L1 after a block's first row. Determinism: the
// order of each row's sum is fixed by the policy. No atomics.

#ifndef KERNELS_RMS_NORM_RMS_NORM_FORWARD_CUH_
#define KERNELS_RMS_NORM_RMS_NORM_FORWARD_CUH_

#include <type_traits>

#include "kernels/common/dispatch.h"
#include "kernels/common/quotient.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/rms_norm_call.h"
#include "kernels/rms_norm/row_edges.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::rms_norm {

struct ForwardArgs {
  const void* x;
  const void* weight;  // Or NULL.
  void* y;
  float* rstd;           // Or NULL.
  const void* residual;  // kAdd: of the dtype of x.
  void* sum;             // kAdd: likewise.
  int64_t residual_stride;
  int64_t sum_stride;
  int64_t x_stride;
  int64_t y_stride;
  int32_t weight_dtype;
  float inverse_hidden;
  uint32_t zero;  // 0, which the compiler does not know; see Renewed.
  Norm norm;
};

// Of row r, row r / group_rows of each.
struct Modulation {
  const void* scale;
  const void* shift;
  int64_t scale_stride;
  int64_t shift_stride;
  int32_t scale_dtype;
  int32_t shift_dtype;
  int64_t group_rows;
};

// A type of its own: the other kernels' code is worse with the longer one.
struct ModulatedForwardArgs : ForwardArgs {
  Modulation modulation;
};

template <bool kModulate>
using ForwardArgsOf = std::conditional_t<kModulate, ModulatedForwardArgs, ForwardArgs>;

// (normed, rounded where the model rounds) * (offset + weight).
template <typename X, int kLanes>
__device__ __forceinline__ void Scale(float (&v)[kLanes], float rstd, const Norm& norm,
                                      bool has_weight, const float (&weight)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; ++i) v[i] *= rstd;
  if (norm.round_normed) RoundFloats<X>(v);
  if (!has_weight) return;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) v[i] *= norm.offset + weight[i];
}

// (1 + scale) * v + shift.
template <int kLanes>
__device__ __forceinline__ void Modulate(const Modulation& modulation, int64_t group,
                                         int64_t column, float (&v)[kLanes]) {
  float factor[kLanes];
  LoadFloatsOf<kLanes>(modulation.scale_dtype, modulation.scale,
                       group * modulation.scale_stride + column, factor);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) v[i] *= 1.0f + factor[i];
  LoadFloatsOf<kLanes>(modulation.shift_dtype, modulation.shift,
                       group * modulation.shift_stride + column, factor);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) v[i] += factor[i];
}

template <typename X, int kLanes>
__device__ __forceinline__ Lanes<X, kLanes> AddLanes(const Lanes<X, kLanes>& a,
                                                     const Lanes<X, kLanes>& b) {
  float x[kLanes];
  float y[kLanes];
  Unpack<X, kLanes>(a, x);
  Unpack<X, kLanes>(b, y);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) x[i] += y[i];
  return PackFloats<X, kLanes>(x);
}

// Rows held in registers, kPacks packs per thread. blockDim = (threads per row, rows per block).
// There is no loop over rows, whose bookkeeping would cost registers: as many blocks as there are
// groups of rows. kSameWeight: weight has the dtype X, which makes its loads as short as x's. kAdd:
// the row is x + residual, rounded to X and stored as `sum`. kModulate: y is modulated by scale and
// shift. kCluster: several blocks may share a row. kUnaligned: rows, and a weight of dtype X, that
// begin anywhere (row_edges.cuh). REQUIRES: without it all rows in 16-byte runs.
template <typename X, typename Y, bool kSameWeight, bool kAdd, bool kModulate, int kPacks,
          bool kCluster, bool kUnaligned = false>
__global__ void __launch_bounds__(kPacks == 8 ? 1024 : 512, kPacks == 8 ? 1 : 2)
    RmsNormForwardKernel(const __grid_constant__ ForwardArgsOf<kModulate> args) {
  using Blocks = RowBlocks<kCluster>;
  constexpr int kLanes = kPackLanes<X>;
  // 64 registers are the limit.
  constexpr bool kHoldWeight = kSameWeight && kPacks <= 4 && !kModulate;
  __shared__ RowSumStorage<kCluster> sums;
  if constexpr (kCluster) ArriveForExchange(&sums.exchange);
  static_assert(!kUnaligned || (kSameWeight && !kModulate && std::is_same_v<X, Y>));
  __shared__ std::conditional_t<kUnaligned, RowEdges<ForwardEdge, 1>, char> edges;
  const bool has_weight = args.weight != nullptr;
  const int first = static_cast<int>(threadIdx.x + Blocks::Rank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x * Blocks::Size());
  const int64_t row = int64_t{Blocks::Index()} * blockDim.y + threadIdx.y;
  const bool active = row < args.norm.rows;
  const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;
  int row_packs = static_cast<int>(args.norm.hidden / kLanes);
  int head = 0;  // Columns before the first pack.
  [[maybe_unused]] bool has_edge = false;
  if constexpr (kUnaligned) {
    const RowLayout<X> layout(x, static_cast<int>(args.norm.hidden));
    row_packs = layout.units;
    head = layout.head;
    has_edge = active && EdgeOfThread() < layout.edges && Blocks::Rank() == 0;
    if (has_edge) edges.Own().column = layout.ColumnOfEdge(EdgeOfThread());
    x += head;
  }

  Lanes<X, kLanes> held[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = first + p * step;
    held[p] = {};
    if (active && pack < row_packs) held[p] = LoadLanes<X, kLanes>(x + pack * kLanes);
  }
  [[maybe_unused]] Lanes<X, 1> edge_x, edge_residual;
  if constexpr (kUnaligned) {
    if (has_edge) {
      const int edge = edges.Own().column;
      edge_x = LoadLanes<X, 1>(x + (edge - head));
      if constexpr (kAdd) {
        edge_residual = LoadLanes<X, 1>(static_cast<const X*>(args.residual) +
                                        row * args.residual_stride + edge);
      }
    }
  }
  if constexpr (kAdd) {
    const int64_t at = active ? row : 0;
    const X* residual = static_cast<const X*>(args.residual) + at * args.residual_stride + head;
    X* sum = static_cast<X*>(args.sum) + at * args.sum_stride + head;
    Lanes<X, kLanes> added[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      added[p] = {};
      if (active && pack < row_packs) added[p] = LoadLanes<X, kLanes>(residual + pack * kLanes);
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      held[p] = AddLanes<X, kLanes>(held[p], added[p]);
      if (active && pack < row_packs) StoreLanes<X, kLanes>(sum + pack * kLanes, held[p]);
    }
  }
  [[maybe_unused]] const auto load_weight = [&](int pack) {
    const int column = head + pack * kLanes;
    const X* from = static_cast<const X*>(args.weight) + column;
    if constexpr (kUnaligned) {
      return LoadUnalignedPack(from, static_cast<int>(args.norm.hidden) - column);
    } else {
      return LoadLanes<X, kLanes>(from);
    }
  };
  Lanes<X, kLanes> weight[kHoldWeight ? kPacks : 1];
  if constexpr (kHoldWeight) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      weight[p] = {};
      if (has_weight && pack < row_packs) weight[p] = load_weight(pack);
    }
  }

  float square[2] = {0.0f, 0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[kLanes];
    Unpack<X, kLanes>(held[p], v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) square[i % 2] += v[i] * v[i];
  }
  if constexpr (kUnaligned) {
    if (has_edge) {
      float v[1];
      Unpack<X, 1>(edge_x, v);
      if constexpr (kAdd) {
        float r[1];
        Unpack<X, 1>(edge_residual, r);
        v[0] += r[0];
        RoundFloats<X>(v);
        StoreFloats<X, 1>(static_cast<X*>(args.sum) + row * args.sum_stride + edges.Own().column,
                          v);
      }
      edges.Own().x = v[0];
      square[0] += v[0] * v[0];
    }
  }
  if constexpr (kCluster) {
    if (ClusterSize() > 1) ClusterWait();  // Now all blocks are there to be written to.
  }
  const float sum = RowSum<kCluster>(square[0] + square[1], &sums, 0);
  const float rstd = rsqrtf(sum * args.inverse_hidden + args.norm.eps);
  if (!active) return;
  if (args.rstd != nullptr && first == 0) args.rstd[row] = rstd;

  Y* y = static_cast<Y*>(args.y) + row * args.y_stride;
  if constexpr (kUnaligned) {
    if (has_edge) {
      const int edge = edges.Own().column;
      float v[1] = {edges.Own().x};
      float w[1] = {};
      if (has_weight) LoadFloats<X, 1>(static_cast<const X*>(args.weight) + edge, w);
      Scale<X, 1>(v, rstd, args.norm, has_weight, w);
      StoreFloats<Y, 1>(y + edge, v);
    }
    y += head;
  }
  [[maybe_unused]] int64_t group = 0;
  if constexpr (kModulate) group = Quotient(row, args.modulation.group_rows);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = first + p * step;
    if (pack >= row_packs) break;
    float v[kLanes];
    float w[kLanes] = {};
    Unpack<X, kLanes>(kPacks == 8 ? Renewed(held[p], args.zero) : held[p], v);
    if constexpr (kHoldWeight) {
      Unpack<X, kLanes>(weight[p], w);
    } else if constexpr (kUnaligned) {
      if (has_weight) Unpack<X, kLanes>(load_weight(pack), w);
    } else if (has_weight) {
      const int32_t dtype = kSameWeight ? kDTypeOf<X> : args.weight_dtype;
      LoadFloatsOf<kLanes>(dtype, args.weight, int64_t{pack} * kLanes, w);
    }
    Scale<X, kLanes>(v, rstd, args.norm, has_weight, w);
    if constexpr (kModulate) Modulate<kLanes>(args.modulation, group, int64_t{pack} * kLanes, v);
    StoreFloats<Y, kLanes>(y + pack * kLanes, v);
  }
}

// Any alignment and width, element by element; reads each row twice, the second time from L1 or L2.
// With kAdd the second time is of the sum, of which a thread reads what it wrote.
template <typename X, typename Y, bool kAdd, bool kModulate>
__global__ void __launch_bounds__(512)
    RmsNormForwardLoopingKernel(const ForwardArgsOf<kModulate> args) {
  __shared__ RowSumStorage<false> sums;
  const bool has_weight = args.weight != nullptr;
  const int64_t row_step = int64_t{gridDim.x} * blockDim.y;
  uint32_t turn = 0;
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y; base < args.norm.rows;
       base += row_step, ++turn) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < args.norm.rows;
    const int64_t hidden = active ? args.norm.hidden : 0;
    const X* x = static_cast<const X*>(args.x) + (active ? row : 0) * args.x_stride;
    Y* y = static_cast<Y*>(args.y) + (active ? row : 0) * args.y_stride;
    [[maybe_unused]] const X* residual =
        static_cast<const X*>(args.residual) + (active ? row : 0) * args.residual_stride;
    X* sum_row = static_cast<X*>(args.sum) + (active ? row : 0) * args.sum_stride;

    float square = 0.0f;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float v[1];
      LoadFloats<X, 1>(x + i, v);
      if constexpr (kAdd) {
        float r[1];
        LoadFloats<X, 1>(residual + i, r);
        v[0] += r[0];
        RoundFloats<X, 1>(v);
        StoreFloats<X, 1>(sum_row + i, v);
      }
      square += v[0] * v[0];
    }
    const float sum = RowSum<false>(square, &sums, turn);
    const float rstd = rsqrtf(sum * args.inverse_hidden + args.norm.eps);
    if (active && args.rstd != nullptr && threadIdx.x == 0) args.rstd[row] = rstd;
    [[maybe_unused]] int64_t group = 0;
    if constexpr (kModulate) group = Quotient(row, args.modulation.group_rows);

#pragma unroll 4
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      float v[1];
      float w[1] = {};
      LoadFloats<X, 1>((kAdd ? sum_row : x) + i, v);
      if (has_weight) LoadFloatsOf<1>(args.weight_dtype, args.weight, i, w);
      Scale<X, 1>(v, rstd, args.norm, has_weight, w);
      if constexpr (kModulate) Modulate<1>(args.modulation, group, i, v);
      StoreFloats<Y, 1>(y + i, v);
    }
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_FORWARD_CUH_
