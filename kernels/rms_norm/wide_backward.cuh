// The backward pass over wide rows on the GPU, for rms_norm, fused_add_rms_norm (kAdd: x is the
// sum, whose other gradient is added to dx) and layer_norm (kCenter). See wide_ring.cuh. With n =
// (x - mean) * rstd and g = dy * (offset + weight), mean and its term only with kCenter:
//   dx = rstd * (g - mean(g) - n * mean(g * n)),  dweight = sum over rows of dy * n,
//   dbias = sum over rows of dy
//
// Traffic: dy and x read once, dx written once; per cluster a row of f32 for each sum. Determinism:
// each cluster adds its rows in order in f32, SumPartialsKernel adds the clusters' sums in an order
// fixed by their number, which depends on the number of rows and multiprocessors only.

#ifndef KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_
#define KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_

#include "kernels/rms_norm/wide_ring.cuh"

namespace fuseboard::rms_norm {

struct WideBackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;  // Or NULL.
  const void* dsum;    // kAdd; or NULL.
  const float* mean;   // kCenter
  const float* rstd;
  void* dx;
  float* weight_partials;  // [clusters, hidden], or NULL: no dweight.
  float* bias_partials;    // kCenter; likewise.
  int64_t dy_stride;
  int64_t x_stride;
  int64_t dsum_stride;
  int64_t dx_stride;
  int64_t rows;
  int64_t hidden;
  float inverse_hidden;
  float offset;       // Added to the weight.
  bool round_normed;  // n, for dweight, to the dtype of x.
  int32_t stages;     // 2 to 4.
};

// Packs of shared memory for each thread of one of the `rows` of a block.
template <bool kAdd>
constexpr int WideBackwardPacks(int stages, int rows) {
  return kWidePacks * (rows * stages * (kAdd ? 3 : 2) + 1);
}

// blockDim = (whole warps for a row, rows), at most kWideWarps; a persistent grid of whole
// clusters. REQUIRES: all rows and weight in 16-byte runs.
template <typename X, bool kCenter, bool kAdd, RowShare kShare>
__global__ void __launch_bounds__(kWideWarps* kWarpThreads, 1)
    WideBackwardKernel(const __grid_constant__ WideBackwardArgs args) {
  using Blocks = RowBlocks<kShare == RowShare::kCluster>;
  constexpr int kSlots = kWidePacks * (kAdd ? 3 : 2);
  using Ring = WideRing<X, kSlots>;
  using Exchange = WideExchange<kCenter ? 2 : 1, kShare>;
  constexpr int kLanes = Ring::kLanes;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ Exchange exchange;
  AllowDependentLaunch();

  const Ring ring(dynamic_shared, args.hidden, Blocks::Rank());
  const int stages = args.stages;
  const int64_t first_row = int64_t{Blocks::Index()} * blockDim.y + threadIdx.y;
  const int64_t row_step = int64_t{Blocks::Count()} * blockDim.y;
  const int column = ring.Column();
  uint4* const weight = ring.Kept(dynamic_shared, stages, 0);

  const auto fetch = [&](uint4* at, int64_t row) {
    if (row < args.rows) {
      ring.Fetch(at, 0, static_cast<const X*>(args.x) + row * args.x_stride + column);
      ring.Fetch(at, kWidePacks, static_cast<const X*>(args.dy) + row * args.dy_stride + column);
      if (kAdd && args.dsum != nullptr) {
        ring.Fetch(at, 2 * kWidePacks,
                   static_cast<const X*>(args.dsum) + row * args.dsum_stride + column);
      }
    }
    CopyAsyncCommit();
  };
  ring.ClearStages(stages, kAdd && args.dsum == nullptr ? 2 * kWidePacks : kSlots);
  for (int stage = 0; stage < stages; ++stage) {
    fetch(ring.base + stage * ring.stage_packs, first_row + stage * row_step);
  }
  ring.Keep(weight, static_cast<const X*>(args.weight) + column, args.weight != nullptr,
            kOneWord<X>);
  const float offset = args.weight != nullptr ? args.offset : 0.0f;
  exchange.Begin();

  // Of a row: mean, or 0, and rstd.
  const auto statistics_of = [&](int64_t row) -> float2 {
    if (row >= args.rows) return {0.0f, 0.0f};
    return {kCenter ? args.mean[row] : 0.0f, args.rstd[row]};
  };
  // Sums over this thread's part of a row: of g * (x - mean), and of g.
  const auto sums_of = [&](const uint4* at, float mean) -> float2 {
    float2 sums = {};
#pragma unroll
    for (int p = 0; p < kWidePacks; ++p) {
      float x[kLanes], dy[kLanes], w[kLanes];
      Unpack<X, kLanes>(Ring::Load(at, p), x);
      Unpack<X, kLanes>(Ring::Load(at, kWidePacks + p), dy);
      Unpack<X, kLanes>(Ring::Load(weight, p), w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float g = dy[i] * (kCenter ? w[i] : offset + w[i]);
        sums.x += g * (kCenter ? x[i] - mean : x[i]);
        if constexpr (kCenter) sums.y += g;
      }
    }
    return sums;
  };

  float dweight[kWidePacks][kLanes] = {};
  [[maybe_unused]] float dbias[kCenter ? kWidePacks : 1][kLanes] = {};
  float2 statistics = statistics_of(first_row);
  float2 next_statistics = statistics_of(first_row + row_step);
  uint4* at = ring.base;
  uint4* const ring_end = ring.base + stages * ring.stage_packs;
  float2 sent = {};
  if (first_row < args.rows) {
    WaitForRows(stages - 1);
    sent = exchange.Send(0, Exchange::OverWarp(sums_of(at, statistics.x)));
  }
  uint32_t turn = 0;
  for (int64_t row = first_row; row < args.rows; row += row_step, ++turn) {
    uint4* next = at + ring.stage_packs;
    if (next == ring_end) next = ring.base;
    const float2 later_statistics = statistics_of(row + 2 * row_step);
    float2 next_sent = {};
    float2 next_part = {};
    if (row + row_step < args.rows) {
      WaitForRows(stages - 2);
      next_part = sums_of(next, next_statistics.x);
    }
    const auto [mean, rstd] = statistics;
    const float2 sums = exchange.Receive(turn, sent);
    next_part = Exchange::OverWarp(next_part);
    // dx = rstd * (g + (x - mean) * slope - mean(g)).
    const float slope = -rstd * (sums.x * rstd * args.inverse_hidden);
    const float mean_g = sums.y * args.inverse_hidden;
    X* dx = static_cast<X*>(args.dx) + row * args.dx_stride + column;
    const auto write = [&](auto rounds) {
#pragma unroll
      for (int p = 0; p < kWidePacks; ++p) {
        float x[kLanes], dy[kLanes], w[kLanes];
        Unpack<X, kLanes>(Ring::Load(at, p), x);
        Unpack<X, kLanes>(Ring::Load(at, kWidePacks + p), dy);
        Unpack<X, kLanes>(Ring::Load(weight, p), w);
        if constexpr (kCenter) {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) x[i] -= mean;
        }
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float g = kCenter ? fmaf(dy[i], w[i], -mean_g) : dy[i] * (offset + w[i]);
          w[i] = rstd * fmaf(x[i], slope, g);
        }
        if constexpr (kAdd) {
          float dsum[kLanes];
          Unpack<X, kLanes>(Ring::Load(at, 2 * kWidePacks + p), dsum);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) w[i] += dsum[i];
        }
        ring.StoreRow(dx, p, PackFloats<X, kLanes>(w));
#pragma unroll
        for (int i = 0; i < kLanes; ++i) x[i] *= rstd;
        if constexpr (decltype(rounds)::value) RoundFloats<X>(x);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dweight[p][i] += dy[i] * x[i];
        if constexpr (kCenter) {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) dbias[p][i] += dy[i];
        }
      }
    };
    if (!kCenter && args.round_normed) {
      write(std::true_type());
    } else {
      write(std::false_type());
    }
    if (row + row_step < args.rows) next_sent = exchange.Send(turn + 1, next_part);
    sent = next_sent;
    fetch(at, row + stages * row_step);
    at = next;
    statistics = next_statistics;
    next_statistics = later_statistics;
  }

  // The block's rows are added from the first to the last; then threadIdx.y == 0 has their sum.
  const auto store = [&](float* partials, auto& sums) {
    if (partials == nullptr) return;
    if (blockDim.y > 1) {
      constexpr int kChunks = kLanes / 4;
      static_assert(kSlots >= kWidePacks * kChunks);
      __syncthreads();  // No row is in use any more, nor what was added up here before.
#pragma unroll
      for (int i = 0; i < kWidePacks * kChunks; ++i) {
        const float* v = sums[i / kChunks] + i % kChunks * 4;
        reinterpret_cast<float4*>(ring.base)[i * kWarpThreads] =
            make_float4(v[0], v[1], v[2], v[3]);
      }
      __syncthreads();
      if (threadIdx.y > 0) return;
      for (uint32_t y = 1; y < blockDim.y; ++y) {
        const uint4* other = ring.base + y * blockDim.x * kSlots;
#pragma unroll
        for (int i = 0; i < kWidePacks * kChunks; ++i) {
          const float4 v = reinterpret_cast<const float4*>(other)[i * kWarpThreads];
          float* sum = sums[i / kChunks] + i % kChunks * 4;
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
      }
    }
    float* to = partials + int64_t{Blocks::Index()} * args.hidden + column;
#pragma unroll
    for (int p = 0; p < kWidePacks; ++p) {
      if (ring.Has(p)) StoreFloats<float, kLanes>(to + p * Ring::kStride, sums[p]);
    }
  };
  store(args.weight_partials, dweight);
  if constexpr (kCenter) store(args.bias_partials, dbias);
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_
