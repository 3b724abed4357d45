// The forward pass over wide rows on the GPU, for rms_norm, fused_add_rms_norm (kAdd) and
// layer_norm (kCenter). See wide_ring.cuh.
//
// Traffic: x read once, y written once; weight and bias stay in shared memory. Determinism: the
// order of a row's sums is fixed by the policy. No atomics.

#ifndef KERNELS_RMS_NORM_WIDE_FORWARD_CUH_
#define KERNELS_RMS_NORM_WIDE_FORWARD_CUH_

#include "kernels/rms_norm/wide_ring.cuh"

namespace fuseboard::rms_norm {

struct WideForwardArgs {
  const void* x;
  const void* residual;  // kAdd
  const void* weight;    // Or NULL.
  const void* bias;      // kCenter; or NULL.
  void* y;
  void* sum;    // kAdd
  float* mean;  // kCenter; or NULL.
  float* rstd;  // Or NULL.
  int64_t x_stride;
  int64_t residual_stride;
  int64_t y_stride;
  int64_t sum_stride;
  int64_t rows;
  int64_t hidden;
  float inverse_hidden;
  float eps;
  float offset;       // Added to the weight.
  bool round_normed;  // To the dtype of x, before the weight.
  int32_t stages;     // 2 to 4.
};

// Packs of shared memory for each thread of one of the `rows` of a block.
template <bool kCenter, bool kAdd>
constexpr int WideForwardPacks(int stages, int rows) {
  return kWidePacks * (rows * stages * (kAdd ? 2 : 1) + (kCenter ? 2 : 1));
}

// Mean and variance. The mean is base + shift: as one float it would be off where values are many
// and large.
struct WideMoments {
  float base;
  float shift;
  float variance;
};

// Where the mean, squared, is more than this many variances, E[x^2] - mean^2 costs more than two
// bits: sums are taken again, from the mean.
inline constexpr float kFarMean = 4.0f;

// blockDim = (whole warps for a row, rows), at most kWideWarps; a persistent grid of whole
// clusters. REQUIRES: all rows, weight and bias in 16-byte runs.
template <typename X, bool kCenter, bool kAdd, RowShare kShare>
__global__ void __launch_bounds__(kWideWarps* kWarpThreads, 1)
    WideForwardKernel(const __grid_constant__ WideForwardArgs args) {
  using Blocks = RowBlocks<kShare == RowShare::kCluster>;
  constexpr int kSlots = kWidePacks * (kAdd ? 2 : 1);
  using Ring = WideRing<X, kSlots>;
  using Exchange = WideExchange<kCenter ? 2 : 1, kShare>;
  constexpr int kLanes = Ring::kLanes;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ Exchange exchange;
  __shared__ std::conditional_t<kCenter, Exchange, char> exchange_again;

  const Ring ring(dynamic_shared, args.hidden, Blocks::Rank());
  const int stages = args.stages;
  const int64_t first_row = int64_t{Blocks::Index()} * blockDim.y + threadIdx.y;
  const int64_t row_step = int64_t{Blocks::Count()} * blockDim.y;
  const int column = ring.Column();
  uint4* const weight = ring.Kept(dynamic_shared, stages, 0);
  uint4* const bias = ring.Kept(dynamic_shared, stages, 1);
  const bool has_weight = args.weight != nullptr;
  const float offset = has_weight ? args.offset : 0.0f;

  const auto fetch = [&](uint4* at, int64_t row) {
    if (row < args.rows) {
      ring.Fetch(at, 0, static_cast<const X*>(args.x) + row * args.x_stride + column);
      if constexpr (kAdd) {
        ring.Fetch(at, kWidePacks,
                   static_cast<const X*>(args.residual) + row * args.residual_stride + column);
      }
    }
    CopyAsyncCommit();
  };
  ring.ClearStages(stages, kSlots);
  for (int stage = 0; stage < stages; ++stage) {
    fetch(ring.base + stage * ring.stage_packs, first_row + stage * row_step);
  }
  ring.Keep(weight, static_cast<const X*>(args.weight) + column, has_weight, kOneWord<X>);
  if constexpr (kCenter) {
    ring.Keep(bias, static_cast<const X*>(args.bias) + column, args.bias != nullptr, 0);
    exchange_again.Begin();
  }
  exchange.Begin();

  // Sums over this thread's part of a row; with kAdd the sum of both takes the place of x.
  const auto sums_of = [&](uint4* at, int64_t row) -> float2 {
    float2 sums[2] = {};
#pragma unroll
    for (int p = 0; p < kWidePacks; ++p) {
      float v[kLanes];
      Unpack<X, kLanes>(Ring::Load(at, p), v);
      if constexpr (kAdd) {
        float r[kLanes];
        Unpack<X, kLanes>(Ring::Load(at, kWidePacks + p), r);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) v[i] += r[i];
        const Lanes<X, kLanes> added = PackFloats<X, kLanes>(v);
        Ring::Store(at, p, added);
        ring.StoreRow(static_cast<X*>(args.sum) + row * args.sum_stride + column, p, added);
        Unpack<X, kLanes>(added, v);
      }
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        if constexpr (kCenter) {
          sums[i % 2].x += v[i];
          sums[i % 2].y += v[i] * v[i];
        } else {
          sums[i % 2].x += v[i] * v[i];
        }
      }
    }
    return {sums[0].x + sums[1].x, sums[0].y + sums[1].y};
  };
  uint32_t turn_again = 0;
  const auto moments_of = [&](const uint4* at, float2 sums) -> WideMoments {
    const auto from = [&](float base, float2 s) -> WideMoments {
      const float shift = s.x * args.inverse_hidden;
      return {base, shift, fmaxf(s.y * args.inverse_hidden - shift * shift, 0.0f)};
    };
    WideMoments m = from(0.0f, sums);
    if (m.shift * m.shift <= kFarMean * m.variance) return m;
    float2 apart = {};  // All threads of the cluster are here.
    for (int p = 0; p < kWidePacks; ++p) {
      if (!ring.Has(p)) break;
      float v[kLanes];
      Unpack<X, kLanes>(Ring::Load(at, p), v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float distance = v[i] - m.shift;
        apart.x += distance;
        apart.y += distance * distance;
      }
    }
    if constexpr (kCenter) {
      const float2 again = exchange_again.Send(turn_again, Exchange::OverWarp(apart));
      m = from(m.shift, exchange_again.Receive(turn_again, again));
      ++turn_again;
    }
    return m;
  };

  uint4* at = ring.base;
  uint4* const ring_end = ring.base + stages * ring.stage_packs;
  float2 sent = {};
  if (first_row < args.rows) {
    WaitForRows(stages - 1);
    sent = exchange.Send(0, Exchange::OverWarp(sums_of(at, first_row)));
  }
  uint32_t turn = 0;
  for (int64_t row = first_row; row < args.rows; row += row_step, ++turn) {
    uint4* next = at + ring.stage_packs;
    if (next == ring_end) next = ring.base;
    float2 next_sent = {};
    float2 next_part = {};
    if (row + row_step < args.rows) {
      WaitForRows(stages - 2);
      next_part = sums_of(next, row + row_step);
    }
    const float2 sums = exchange.Receive(turn, sent);
    next_part = Exchange::OverWarp(next_part);
    WideMoments m = {0.0f, 0.0f, sums.x * args.inverse_hidden};
    if constexpr (kCenter) m = moments_of(at, sums);
    const float rstd = rsqrtf(m.variance + args.eps);
    const float shift = -m.shift * rstd;
    if (ring.first == 0) {
      if (kCenter && args.mean != nullptr) args.mean[row] = m.base + m.shift;
      if (args.rstd != nullptr) args.rstd[row] = rstd;
    }
    X* y = static_cast<X*>(args.y) + row * args.y_stride + column;
    const auto write = [&](auto rounds) {
#pragma unroll
      for (int p = 0; p < kWidePacks; ++p) {
        float v[kLanes], w[kLanes];
        Unpack<X, kLanes>(Ring::Load(at, p), v);
        Unpack<X, kLanes>(Ring::Load(weight, p), w);
        if constexpr (kCenter) {
          float b[kLanes];
          Unpack<X, kLanes>(Ring::Load(bias, p), b);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) {
            v[i] = fmaf(fmaf(v[i] - m.base, rstd, shift), w[i], b[i]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) v[i] *= rstd;
          if constexpr (decltype(rounds)::value) RoundFloats<X>(v);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) v[i] *= offset + w[i];
        }
        ring.StoreRow(y, p, PackFloats<X, kLanes>(v));
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
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_FORWARD_CUH_
