// LayerNorm backward on the GPU. With n = (x - mean) * rstd and g = dy * weight:
//   dx = rstd * (g - mean(g) - n * mean(g * n)),  dweight = sum over rows of dy * n,
//   dbias = sum over rows of dy
//
// Traffic: dy and x read once, dx written once; two rows of f32 per group of blocks written and
// read for the parameters, which stay in L2. Determinism: each block adds its rows in order in f32,
// then SumPartialsKernel adds the blocks' sums in an order fixed by their number, which depends on
// the number of rows and multiprocessors only.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_BACKWARD_CUH_
#define KERNELS_LAYER_NORM_LAYER_NORM_BACKWARD_CUH_

#include <type_traits>

#include "kernels/common/dispatch.h"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/backward_ring.cuh"
#include "kernels/rms_norm/row_edges.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::layer_norm {

using rms_norm::RowSumPair;
using rms_norm::RowSumPairStorage;

struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;  // Or NULL.
  const float* mean;
  const float* rstd;
  void* dx;                // Or NULL.
  float* weight_partials;  // [sums, hidden], or NULL: no dweight.
  float* bias_partials;    // Likewise of dbias.
  int64_t dy_stride;
  int64_t x_stride;
  int64_t dx_stride;
  int64_t rows;
  int64_t hidden;
  int32_t weight_dtype;
  int32_t stages;
  bool shared_weight;
};

template <int kLanes>
__device__ __forceinline__ void LoadWeight(const BackwardArgs& args, int64_t column,
                                           float (&out)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; ++i) out[i] = 1.0f;
  if (args.weight != nullptr) LoadFloatsOf<kLanes>(args.weight_dtype, args.weight, column, out);
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

// The sums of a block's rows, from the first to the last, into its row of `partials`; threadIdx.y
// == 0 stores. `ring` is not in use any more.
template <bool kUnaligned, typename Ring, int kPacks, int kLanes>
__device__ __forceinline__ void StorePartials(const Ring& ring, int stages, int first, int step,
                                              int row_packs, float (&sums)[kPacks][kLanes],
                                              float* partials) {
  if (blockDim.y > 1) {
    __syncthreads();  // The last use of these slots has ended.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) ring.StoreFloatRow(stages, p, sums[p]);
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (int y = 1; y < static_cast<int>(blockDim.y); ++y) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float other[kLanes];
        ring.LoadFloatRow(stages, p, ring.thread + y * static_cast<int>(blockDim.x), other);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sums[p][i] += other[i];
      }
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = first + p * step;
    if (pack < row_packs) {
      rms_norm::StorePartialPack<kUnaligned>(partials + pack * kLanes, sums[p]);
    }
  }
}

// blockDim = (threads per row, rows per block); a persistent grid of whole clusters. A pack of the
// next row is fetched into a slot as soon as its pack of this row has left it. kUnaligned: rows
// that begin anywhere (row_edges.cuh), so many blocks or clusters that each has rows of one class.
// REQUIRES: without kUnaligned all rows in 16-byte runs, with it shared_weight; 1 <= stages <= 3.
template <typename X, bool kBias, int kPacks, bool kCluster, bool kUnaligned = false>
__global__ void __launch_bounds__(kPacks >= 4 ? 512 : 256, kPacks >= 4 ? 1 : 2)
    LayerNormBackwardKernel(const BackwardArgs args) {
  using Blocks = RowBlocks<kCluster>;
  using Ring = rms_norm::BackwardRing<X, X, /*kAdd=*/false, kPacks>;
  constexpr bool kHolds = kPacks <= (kBias ? 2 : 4);
  using Held = rms_norm::HeldRow<X, X, /*kAdd=*/false, kPacks, kHolds>;
  constexpr int kLanes = Ring::kLanes;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ RowSumPairStorage<kCluster> sums;
  __shared__ std::conditional_t<kUnaligned, rms_norm::RowEdges<>, char> edges;
  AllowDependentLaunch();

  const Ring ring = {dynamic_shared, static_cast<int>(blockDim.x * blockDim.y),
                     static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x)};
  const int stages = args.stages;
  const int first = static_cast<int>(threadIdx.x + Blocks::Rank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x * Blocks::Size());
  constexpr int kClasses = kUnaligned ? kLanes : 1;
  const int64_t first_row = rms_norm::FirstRowOf<kClasses>(Blocks::Index());
  const int64_t row_step = int64_t{Blocks::Count()} * blockDim.y;
  const uint32_t own_row = threadIdx.y * kClasses;
  const float inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  int row_packs = static_cast<int>(args.hidden / kLanes);
  int head = 0;  // Columns before the first pack.
  bool has_edge = false;
  if constexpr (kUnaligned) {
    const RowLayout<X> layout(static_cast<const X*>(args.x) + first_row * args.x_stride,
                              static_cast<int>(args.hidden));
    row_packs = layout.units;
    head = layout.head;
    has_edge = rms_norm::EdgeOfThread() < layout.edges && Blocks::Rank() == 0;
    if (has_edge) {
      rms_norm::EdgeSlot& edge = edges.Own();
      edge.column = layout.ColumnOfEdge(rms_norm::EdgeOfThread());
      float w[1];
      LoadWeight<1>(args, edge.column, w);
      edge.weight = w[0];
      edge.dweight = 0.0f;
      edge.dbias = 0.0f;
    }
  }
  const auto fetch = [&](int stage, int p, int64_t row, int pack) {
    ring.Fetch(stage, p, static_cast<const X*>(args.x) + row * args.x_stride + head,
               static_cast<const X*>(args.dy) + row * args.dy_stride + head, nullptr, pack);
  };
  const auto fetch_edge = [&](int stage, int64_t row) {
    if constexpr (kUnaligned) {
      if (!has_edge || row >= args.rows) return;
      rms_norm::EdgeSlot& edge = edges.Own();
      const int at = edge.column;
      rms_norm::FetchEdge(&edge.fetched[stage][0],
                          static_cast<const X*>(args.x) + row * args.x_stride + at);
      rms_norm::FetchEdge(&edge.fetched[stage][1],
                          static_cast<const X*>(args.dy) + row * args.dy_stride + at);
    }
  };
  [[maybe_unused]] const auto take_edge = [&](int stage, int64_t row) {
    if constexpr (kUnaligned) {
      rms_norm::EdgeSlot& edge = edges.Own();
      const int at = edge.column;
      edge.x = rms_norm::FetchedEdge(edge.fetched[stage][0],
                                     static_cast<const X*>(args.x) + row * args.x_stride + at);
      edge.dy = rms_norm::FetchedEdge(edge.fetched[stage][1],
                                      static_cast<const X*>(args.dy) + row * args.dy_stride + at);
    }
  };

  for (int stage = 0; stage < stages; ++stage) {
    const int64_t row = first_row + stage * row_step + own_row;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (row < args.rows && pack < row_packs) fetch(stage, p, row, pack);
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
  float dbias[kBias ? kPacks : 1][kLanes] = {};
  const auto statistics_of = [&](int64_t row) {
    return row < args.rows ? make_float2(args.mean[row], args.rstd[row]) : float2{};
  };
  float2 next_statistics = statistics_of(first_row + own_row);
  int stage = 0;
  uint32_t turn = 0;
  for (int64_t base = first_row; base < args.rows; base += row_step) {
    const int64_t row = base + own_row;
    const bool active = row < args.rows;
    const auto [mean, rstd] = next_statistics;
    next_statistics = statistics_of(row + row_step);
    rms_norm::WaitForStage(stages);

    const int64_t next = row + stages * row_step;
    Held held;
    float2 dots = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (!active || pack >= row_packs) continue;
      held.Take(ring, stage, p, /*has_dsum=*/false);
      if (kHolds && next < args.rows) fetch(stage, p, next, pack);
      if (args.dx == nullptr) continue;
      float x[kLanes], dy[kLanes], w[kLanes];
      held.LoadX(p, x);
      held.LoadDy(p, dy);
      load_weight(p, pack, w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float g = dy[i] * w[i];
        dots.x += g;
        dots.y += g * (x[i] - mean);
      }
    }
    if constexpr (kUnaligned) {
      if (has_edge && active) {
        take_edge(stage, row);
        fetch_edge(stage, next);
        const float g = edges.Own().dy * edges.Own().weight;
        dots.x += g;
        dots.y += g * (edges.Own().x - mean);
      }
    }
    if constexpr (kHolds) CopyAsyncCommit();
    // dx = rstd * (g + (x - mean) * slope - mean(g)).
    float slope = 0.0f;
    float mean_g = 0.0f;
    if (args.dx != nullptr) {
      dots.y *= rstd;
      dots = RowSumPair<kCluster>(dots, &sums, turn);
      slope = -rstd * (dots.y * inverse_hidden);
      mean_g = dots.x * inverse_hidden;
    }

#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (!active || pack >= row_packs) continue;
      if constexpr (!kHolds) {
        held.Take(ring, stage, p, /*has_dsum=*/false);
        if (next < args.rows) fetch(stage, p, next, pack);
      }
      float x[kLanes], dy[kLanes];
      held.LoadX(p, x);
      held.LoadDy(p, dy);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) x[i] -= mean;
      if (args.dx != nullptr) {
        float w[kLanes], dx[kLanes];
        load_weight(p, pack, w);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          dx[i] = rstd * fmaf(x[i], slope, fmaf(dy[i], w[i], -mean_g));
        }
        X* out = static_cast<X*>(args.dx) + row * args.dx_stride + head;
        StoreFloats<X, kLanes>(out + pack * kLanes, dx);
      }
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dweight[p][i] += dy[i] * (x[i] * rstd);
      if constexpr (kBias) {
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dbias[p][i] += dy[i];
      }
    }
    if constexpr (!kHolds) CopyAsyncCommit();
    if constexpr (kUnaligned) {
      if (has_edge && active) {
        rms_norm::EdgeSlot& edge = edges.Own();
        const float distance = edge.x - mean;
        if (args.dx != nullptr) {
          const float g = fmaf(edge.dy, edge.weight, -mean_g);
          rms_norm::StoreFloatAt(static_cast<X*>(args.dx) + row * args.dx_stride + edge.column,
                                 rstd * fmaf(distance, slope, g));
        }
        edge.dweight += edge.dy * (distance * rstd);
        edge.dbias += edge.dy;
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
    ++turn;
  }
  const int64_t sum_row = int64_t{Blocks::Index()} * args.hidden;
  if constexpr (kUnaligned) {
    __syncthreads();
    if (has_edge && threadIdx.y == 0) {
      const int64_t at = sum_row + edges.Own().column;
      if (kBias) args.bias_partials[at] = edges.SumOf(&rms_norm::EdgeSlot::dbias);
      if (args.weight_partials != nullptr) {
        args.weight_partials[at] = edges.SumOf(&rms_norm::EdgeSlot::dweight);
      }
    }
  }
  if constexpr (kBias) {
    StorePartials<kUnaligned>(ring, stages, first, step, row_packs, dbias,
                              args.bias_partials + sum_row + head);
  }
  if (args.weight_partials == nullptr) return;
  StorePartials<kUnaligned>(ring, stages, first, step, row_packs, dweight,
                            args.weight_partials + sum_row + head);
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_BACKWARD_CUH_
