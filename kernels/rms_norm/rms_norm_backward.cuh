// RMSNorm backward on the GPU, and with kAdd that of fused_add_rms_norm, where x is the sum and its
// other gradient `dsum` is added to dx. With n = x * rstd and g = dy * (offset + weight):
//   dx = rstd * (g - n * mean(g * n)),   dweight = sum over rows of dy * n  (n rounded to the dtype
//   of x where the model rounds it)
//
// Traffic: dy and x read once, dx written once; one row of f32 per group of blocks written and read
// for dweight, which stays in L2. Determinism: each block adds its rows in order in f32, then
// SumPartialsKernel adds the blocks' sums in an order fixed by their number, which depends on
// the number of rows and multiprocessors only.

#ifndef KERNELS_RMS_NORM_RMS_NORM_BACKWARD_CUH_
#define KERNELS_RMS_NORM_RMS_NORM_BACKWARD_CUH_

#include <type_traits>

#include "kernels/common/dispatch.h"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/backward_ring.cuh"
#include "kernels/rms_norm/rms_norm_call.h"
#include "kernels/rms_norm/row_edges.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::rms_norm {

struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;  // Or NULL.
  const float* rstd;
  const void* dsum;  // kAdd: added to dx; or NULL.
  int64_t dsum_stride;
  void* dx;         // Or NULL.
  float* partials;  // [sums, hidden], or NULL: no dweight.
  int64_t dy_stride;
  int64_t x_stride;
  int64_t dx_stride;
  int32_t weight_dtype;
  int32_t stages;
  bool shared_weight;
  Norm norm;
};

template <int kLanes>
__device__ __forceinline__ void LoadWeight(const BackwardArgs& args, int64_t column,
                                           float (&out)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] = 1.0f;
  if (args.weight == nullptr) return;
  LoadFloatsOf<kLanes>(args.weight_dtype, args.weight, column, out);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] += args.norm.offset;
}

// The same of columns that begin anywhere.
template <int kLanes>
__device__ __forceinline__ void LoadUnalignedWeight(const BackwardArgs& args, int64_t column,
                                                    float (&out)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    float one[1];
    LoadWeight<1>(args, column + i, one);
    out[i] = one[0];
  }
}

// Blocks of the most threads that have registers at once.
template <int kPacks>
inline constexpr int kResidentBackward = kPacks >= 4   ? 1
                                         : kPacks == 3 ? 2
                                                       : 3;

// blockDim = (threads per row, rows per block); a persistent grid of whole clusters. A pack of the
// next row is fetched into a slot as soon as its pack of this row has left it. kUnaligned: rows
// that begin anywhere (row_edges.cuh), so many blocks or clusters that each has rows of one class.
// REQUIRES: without kUnaligned all rows in 16-byte runs, with it shared_weight; 1 <= stages <= 3.
template <typename X, typename DY, bool kAdd, int kPacks, bool kCluster, bool kUnaligned = false>
__global__ void __launch_bounds__(kPacks >= 4 ? 512 : 256, kResidentBackward<kPacks>)
    RmsNormBackwardKernel(const BackwardArgs args) {
  using Blocks = RowBlocks<kCluster>;
  using Ring = BackwardRing<X, DY, kAdd, kPacks>;
  constexpr bool kHolds = kPacks <= 4;
  using Held = HeldRow<X, DY, kAdd, kPacks, kHolds>;
  constexpr int kLanes = Ring::kLanes;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ RowSumStorage<kCluster> sums;
  __shared__ std::conditional_t<kUnaligned, RowEdges<>, char> edges;
  AllowDependentLaunch();

  const Ring ring = {dynamic_shared, static_cast<int>(blockDim.x * blockDim.y),
                     static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x)};
  const int stages = args.stages;
  const int first = static_cast<int>(threadIdx.x + Blocks::Rank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x * Blocks::Size());
  constexpr int kClasses = kUnaligned ? kLanes : 1;
  const int64_t first_row = FirstRowOf<kClasses>(Blocks::Index());
  const int64_t row_step = int64_t{Blocks::Count()} * blockDim.y;
  const uint32_t own_row = threadIdx.y * kClasses;
  const float inverse_hidden = 1.0f / static_cast<float>(args.norm.hidden);

  int row_packs = static_cast<int>(args.norm.hidden / kLanes);
  int head = 0;  // Columns before the first pack.
  bool has_edge = false;
  if constexpr (kUnaligned) {
    const RowLayout<X> layout(static_cast<const X*>(args.x) + first_row * args.x_stride,
                              static_cast<int>(args.norm.hidden));
    row_packs = layout.units;
    head = layout.head;
    has_edge = EdgeOfThread() < layout.edges && Blocks::Rank() == 0;
    if (has_edge) {
      EdgeSlot& edge = edges.Own();
      edge.column = layout.ColumnOfEdge(EdgeOfThread());
      float w[1];
      LoadWeight<1>(args, edge.column, w);
      edge.weight = w[0];
      edge.dweight = 0.0f;
    }
  }
  const auto x_row = [&](int64_t row) {
    return static_cast<const X*>(args.x) + row * args.x_stride + head;
  };
  const auto dy_row = [&](int64_t row) {
    return static_cast<const DY*>(args.dy) + row * args.dy_stride + head;
  };

  const bool has_dsum = kAdd && args.dsum != nullptr;
  const auto dsum_row = [&](int64_t row) -> const X* {
    if (!has_dsum) return nullptr;
    return static_cast<const X*>(args.dsum) + row * args.dsum_stride + head;
  };
  const auto fetch_edge = [&](int stage, int64_t row) {
    if constexpr (kUnaligned) {
      if (!has_edge || row >= args.norm.rows) return;
      EdgeSlot& edge = edges.Own();
      const int at = edge.column - head;
      FetchEdge(&edge.fetched[stage][0], x_row(row) + at);
      FetchEdge(&edge.fetched[stage][1], dy_row(row) + at);
      if (has_dsum) FetchEdge(&edge.fetched[stage][2], dsum_row(row) + at);
    }
  };
  [[maybe_unused]] const auto take_edge = [&](int stage, int64_t row) {
    if constexpr (kUnaligned) {
      EdgeSlot& edge = edges.Own();
      const int at = edge.column - head;
      edge.x = FetchedEdge(edge.fetched[stage][0], x_row(row) + at);
      edge.dy = FetchedEdge(edge.fetched[stage][1], dy_row(row) + at);
      if (has_dsum) edge.dsum = FetchedEdge(edge.fetched[stage][2], dsum_row(row) + at);
    }
  };

  for (int stage = 0; stage < stages; ++stage) {
    const int64_t row = first_row + stage * row_step + own_row;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (row < args.norm.rows && pack < row_packs) {
        ring.Fetch(stage, p, x_row(row), dy_row(row), dsum_row(row), pack);
      }
    }
    fetch_edge(stage, row);
    CopyAsyncCommit();
  }
  if (kUnaligned || args.shared_weight) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      float w[kLanes];
      if (pack < row_packs) {
        if constexpr (kUnaligned) {
          LoadUnalignedWeight<kLanes>(args, head + int64_t{pack} * kLanes, w);
        } else {
          LoadWeight<kLanes>(args, int64_t{pack} * kLanes, w);
        }
        ring.StoreFloatRow(stages, p, w);
      }
    }
  }
  const auto load_weight = [&](int p, int pack, float(&w)[kLanes]) {
    if (kUnaligned || args.shared_weight) {
      ring.LoadFloatRow(stages, p, ring.thread, w);
    } else {
      LoadWeight<kLanes>(args, int64_t{pack} * kLanes, w);
    }
  };
  if constexpr (kCluster) BeginExchange(&sums.exchange);

  float dweight[kPacks][kLanes] = {};
  const auto rstd_of = [&](int64_t row) { return row < args.norm.rows ? args.rstd[row] : 0.0f; };
  float next_rstd = rstd_of(first_row + own_row);
  int stage = 0;
  uint32_t turn = 0;
  for (int64_t base = first_row; base < args.norm.rows; base += row_step) {
    const int64_t row = base + own_row;
    const bool active = row < args.norm.rows;
    const float rstd = next_rstd;
    next_rstd = rstd_of(row + row_step);
    WaitForStage(stages);

    const int64_t next = row + stages * row_step;
    const auto fetch_next = [&](int p, int pack) {
      if (next < args.norm.rows) {
        ring.Fetch(stage, p, x_row(next), dy_row(next), dsum_row(next), pack);
      }
    };
    Held held;
    float dot = 0.0f;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (!active || pack >= row_packs) continue;
      held.Take(ring, stage, p, has_dsum);
      if constexpr (kHolds) fetch_next(p, pack);
      if (args.dx == nullptr) continue;
      float x[kLanes], dy[kLanes], w[kLanes];
      held.LoadX(p, x);
      held.LoadDy(p, dy);
      load_weight(p, pack, w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dot += dy[i] * w[i] * x[i];
    }
    if constexpr (kUnaligned) {
      if (has_edge && active) {
        take_edge(stage, row);
        fetch_edge(stage, next);
        dot += edges.Own().dy * edges.Own().weight * edges.Own().x;
      }
    }
    if constexpr (kHolds) CopyAsyncCommit();
    float slope = 0.0f;  // dx = rstd * (g + x * slope).
    if (args.dx != nullptr) {
      const float sum = RowSum<kCluster>(dot * rstd, &sums, turn);
      slope = -rstd * (sum * inverse_hidden);
    }

#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (!active || pack >= row_packs) continue;
      if constexpr (!kHolds) {
        held.Take(ring, stage, p, has_dsum);
        fetch_next(p, pack);
      }
      float x[kLanes], dy[kLanes];
      held.LoadX(p, x);
      held.LoadDy(p, dy);
      if (args.dx != nullptr) {
        float w[kLanes], dx[kLanes];
        load_weight(p, pack, w);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dx[i] = rstd * fmaf(x[i], slope, dy[i] * w[i]);
        if constexpr (kAdd) {
          float dsum[kLanes] = {};
          if (has_dsum) held.LoadDsum(p, dsum);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) dx[i] += dsum[i];
        }
        X* out = static_cast<X*>(args.dx) + row * args.dx_stride + head;
        StoreFloats<X, kLanes>(out + pack * kLanes, dx);
      }
#pragma unroll
      for (int i = 0; i < kLanes; ++i) x[i] *= rstd;
      if (args.norm.round_normed) RoundFloats<X>(x);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dweight[p][i] += dy[i] * x[i];
    }
    if constexpr (!kHolds) CopyAsyncCommit();
    if constexpr (kUnaligned) {
      if (has_edge && active) {
        EdgeSlot& edge = edges.Own();
        if (args.dx != nullptr) {
          const float dx = rstd * fmaf(edge.x, slope, edge.dy * edge.weight);
          StoreFloatAt(static_cast<X*>(args.dx) + row * args.dx_stride + edge.column,
                       has_dsum ? dx + edge.dsum : dx);
        }
        float n[1] = {edge.x * rstd};
        if (args.norm.round_normed) RoundFloats<X>(n);
        edge.dweight += edge.dy * n[0];
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
    ++turn;
  }
  if (args.partials == nullptr) return;

  // The block's rows are added from the first to the last; then threadIdx.y == 0 has their sum.
  if (blockDim.y > 1) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) ring.StoreFloatRow(stages, p, dweight[p]);
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (int y = 1; y < static_cast<int>(blockDim.y); ++y) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float other[kLanes];
        ring.LoadFloatRow(stages, p, ring.thread + y * static_cast<int>(blockDim.x), other);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dweight[p][i] += other[i];
      }
    }
  }
  float* sum = args.partials + int64_t{Blocks::Index()} * args.norm.hidden;
  if constexpr (kUnaligned) {
    if (has_edge) sum[edges.Own().column] = edges.SumOf(&EdgeSlot::dweight);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = first + p * step;
    if (pack < row_packs) StorePartialPack<kUnaligned>(sum + head + pack * kLanes, dweight[p]);
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_BACKWARD_CUH_
