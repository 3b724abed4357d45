// The backward pass over wide rows on the GPU, for rms_norm, fused_add_rms_norm (kAdd: x is the
// sum, whose other gradient is added to dx) and layer_norm (kCenter). See wide_ring.cuh. With n =
// (x - mean) * rstd and g = dy * (offset + weight), mean and its term only with kCenter:
//   dx = rstd * (g - mean(g) - n * mean(g * n)),  dweight = sum over rows of dy * n,
//   dbias = sum over rows of dy
//
// Traffic: dy and x read once, dx written once; per group of blocks a row of f32 for each sum.
// Determinism: each group adds its rows in order in f32, SumPartialsKernel adds the groups' sums in
// an order fixed by their number, which depends on the shape and the number of multiprocessors.

#ifndef KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_
#define KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_

#include "kernels/rms_norm/gradient_args.h"
#include "kernels/rms_norm/wide_ring.cuh"

namespace fuseboard::rms_norm {

struct WideBackwardArgs : GradientArgs {
  float* weight_partials;  // [clusters, hidden], or NULL: no dweight.
  float* bias_partials;    // kCenter; likewise.
  int64_t rows;
  int64_t hidden;
};

// The sums for dweight stay with the writing threads, those for dbias with the summing ones: 128
// registers for a thread's part of both would be too many.
template <bool kCenter, int kPieces>
using WideBackwardRoles =
    std::conditional_t<!kCenter, WideRoles<8, 4, 3>,
                       std::conditional_t<kPieces == 1, WideRoles<8, 8, 2>, WideRoles<7, 7, 1>>>;

// As WideForwardKernel.
template <typename X, bool kCenter, bool kAdd, int kPieces>
__global__ void __launch_bounds__(WideBackwardRoles<kCenter, kPieces>::kThreads, 1)
    WideBackwardKernel(const __grid_constant__ WideBackwardArgs args,
                       const __grid_constant__ WideCut cut) {
  constexpr int kLanes = kPackLanes<X>;
  constexpr int kTensors = kAdd ? 3 : 2;
  using Roles = WideBackwardRoles<kCenter, kPieces>;
  constexpr int kPiecePacks = kPieces == 1 ? kWidePiecePacks : 2 * kWidePiecePacks / kPieces;
  constexpr int kStep = Roles::kWriters * kWarpThreads;
  constexpr int kPacks = (kPiecePacks + kStep - 1) / kStep;
  constexpr int kSumStep = Roles::kSummers * kWarpThreads;
  constexpr int kSumPacks = (kPiecePacks + kSumStep - 1) / kSumStep;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ WideShared<Roles> shared;
  AllowDependentLaunch();

  const int64_t group = blockIdx.x / ClusterSize();
  const WideSlice slice(cut, static_cast<int>(args.hidden / kLanes),
                        static_cast<int>(ClusterRank()));
  const int column = slice.first * kLanes;
  uint4* const weight = dynamic_shared + cut.slots * kTensors * cut.slot_packs;
  const float offset = args.weight != nullptr ? args.offset : 0.0f;
  const bool has_dsum = kAdd && args.dsum != nullptr;
  const auto slot_of = [&](int slot) { return dynamic_shared + slot * kTensors * cut.slot_packs; };
  const auto pack_of = [](const uint4* at) {
    return LoadLanes<X, kLanes>(reinterpret_cast<const X*>(at));
  };

  const auto start = [&] { KeepSlice(weight, args.weight, slice, cut.kept_packs, kOneWord<X>); };
  const uint64_t policy = EvictNormalPolicy();  // As in the forward.
  const auto load = [&](const WideTurn& at, int piece) {
    const uint32_t bytes = slice.PacksOf(piece) * 16;
    const int from = column + piece * cut.slot_packs * kLanes;
    BarrierArriveExpecting(&shared.filled[at.slot], bytes * (has_dsum ? 3 : 2));
    const auto bulk = [&](int tensor, const void* base, int64_t stride) {
      BulkLoad(slot_of(at.slot) + tensor * cut.slot_packs,
               static_cast<const X*>(base) + at.row * stride + from, bytes, &shared.filled[at.slot],
               policy);
    };
    bulk(0, args.x, args.x_stride);
    bulk(1, args.dy, args.dy_stride);
    if (has_dsum) bulk(2, args.dsum, args.dsum_stride);
  };
  // Sums of g * (x - mean), and of g.
  [[maybe_unused]] float dbias[kCenter ? kPieces : 1][kSumPacks][kLanes] = {};
  float mean = 0.0f;
  float next_mean = kCenter && group < args.rows ? args.mean[group] : 0.0f;
  const auto sum = [&](const WideTurn& at, int piece) -> float2 {
    const int thread = static_cast<int>(threadIdx.x) - kStep;
    const uint4* slot = slot_of(at.slot) + thread;
    const uint4* w_slot = weight + piece * cut.slot_packs + thread;
    const int left = slice.PacksOf(piece) - thread;
    if (kCenter && piece == 0) {
      mean = next_mean;
      if (at.row + cut.groups < args.rows) next_mean = args.mean[at.row + cut.groups];
    }
    float2 sums = {};
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) {
      if (p * kSumStep >= left) break;
      float x[kLanes], dy[kLanes], w[kLanes];
      Unpack<X, kLanes>(pack_of(slot + p * kSumStep), x);
      Unpack<X, kLanes>(pack_of(slot + cut.slot_packs + p * kSumStep), dy);
      Unpack<X, kLanes>(pack_of(w_slot + p * kSumStep), w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float g = dy[i] * (kCenter ? w[i] : offset + w[i]);
        sums.x += g * (kCenter ? x[i] - mean : x[i]);
        if constexpr (kCenter) sums.y += g;
        if constexpr (kCenter) dbias[piece][p][i] += dy[i];
      }
    }
    return sums;
  };
  // dx = rstd * (g + (x - mean) * slope - mean(g)).
  const auto gather = [&](const WideTurn& at, auto part_of) -> float4 {
    const float rstd = args.rstd[at.row];
    const float center = kCenter ? args.mean[at.row] : 0.0f;
    shared.Publish(at, part_of());
    const float2 sums = SumOverWarp < kCenter ? 2 : 1 > (shared.Gather(at));
    return {rstd, center, -rstd * (sums.x * rstd * args.inverse_hidden),
            sums.y * args.inverse_hidden};
  };
  float dweight[kPieces][kPacks][kLanes] = {};
  const auto write = [&](const WideTurn& at, int piece, float4 known) {
    const auto [rstd, center, slope, mean_g] = known;
    const uint4* slot = slot_of(at.slot) + threadIdx.x;
    const int first = piece * cut.slot_packs + static_cast<int>(threadIdx.x);
    const int left = slice.PacksOf(piece) - static_cast<int>(threadIdx.x);
    const int left_of_warp = left + static_cast<int>(threadIdx.x) % kWarpThreads;
    X* dx = static_cast<X*>(args.dx) + at.row * args.dx_stride + column + first * kLanes;
    const auto packs = [&](auto rounds) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (p * kStep >= left_of_warp) break;
        const int from = min(p * kStep, left - 1);  // Beyond may be what comes into the next slot.
        float x[kLanes], dy[kLanes], w[kLanes];
        Unpack<X, kLanes>(pack_of(slot + from), x);
        Unpack<X, kLanes>(pack_of(slot + cut.slot_packs + from), dy);
        Unpack<X, kLanes>(pack_of(weight + first + p * kStep), w);
        if constexpr (kCenter) {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) x[i] -= center;
        }
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float g = kCenter ? fmaf(dy[i], w[i], -mean_g) : dy[i] * (offset + w[i]);
          w[i] = rstd * fmaf(x[i], slope, g);
        }
        if (has_dsum) {
          float dsum[kLanes];
          Unpack<X, kLanes>(pack_of(slot + 2 * cut.slot_packs + from), dsum);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) w[i] += dsum[i];
        }
        StorePackIf<X>(p * kStep < left, dx + p * kStep * kLanes, PackFloats<X, kLanes>(w));
#pragma unroll
        for (int i = 0; i < kLanes; ++i) x[i] *= rstd;
        if constexpr (decltype(rounds)::value) RoundFloats<X>(x);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dweight[piece][p][i] += dy[i] * x[i];
      }
    };
    if (!kCenter && args.round_normed) {
      packs(std::true_type());
    } else {
      packs(std::false_type());
    }
  };
  const auto store = [&](float* partials, int thread, int threads, const auto& sums) {
    if (partials == nullptr) return;
    float* to = partials + group * args.hidden + column;
    constexpr int kOf = sizeof(sums[0]) / sizeof(sums[0][0]);
#pragma unroll
    for (int i = 0; i < kPieces * kOf; ++i) {
      const int pack = i % kOf * threads + thread;
      if (pack >= slice.PacksOf(i / kOf)) continue;
      StoreFloats<float, kLanes>(to + (i / kOf * cut.slot_packs + pack) * kLanes,
                                 sums[i / kOf][i % kOf]);
    }
  };
  const auto end_sum = [&] {
    if constexpr (kCenter) {
      store(args.bias_partials, static_cast<int>(threadIdx.x) - kStep, kSumStep, dbias);
    }
  };
  const auto end_write = [&] {
    store(args.weight_partials, static_cast<int>(threadIdx.x), kStep, dweight);
  };
  RunWide<kPieces, kCenter ? 2 : 1>(&shared, cut, args.rows, group, load, start, sum, gather, write,
                                    end_sum, end_write);
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_
