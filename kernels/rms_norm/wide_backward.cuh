// The backward pass over wide rows on the GPU, for rms_norm, fused_add_rms_norm (kAdd: x is the
// sum, whose other gradient is added to dx), layer_norm (kCenter) and modulated_rms_norm
// (kModulate). See wide_ring.cuh and wide_examples.cuh. With n = (x - mean) * rstd and g = dy *
// (offset + weight), mean and its term only with kCenter:
//   dx = rstd * (g - mean(g) - n * mean(g * n)),  dweight = sum over rows of dy * n,
//   dbias = sum over rows of dy
// With kModulate g is dy * (1 + scale) * (offset + weight), and both sums are over the rows of an
// example that a cluster has: where these are all, dscale and dshift are made of them at once.
//
// Traffic: dy and x read once, dx written once; per group of blocks a row of f32 for each sum.
// Determinism: each group adds its rows in order in f32, SumPartialsKernel adds the groups' sums in
// an order fixed by their number, which depends on the shape and the number of multiprocessors.

#ifndef KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_
#define KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_

#include <type_traits>

#include "kernels/rms_norm/gradient_args.h"
#include "kernels/rms_norm/wide_examples.cuh"
#include "kernels/rms_norm/wide_ring.cuh"

namespace fuseboard::rms_norm {

struct WideBackwardArgs : GradientArgs {
  float* weight_partials;  // [clusters, hidden], or NULL: no dweight.
  float* bias_partials;    // kCenter; likewise.
  int64_t rows;
  int64_t hidden;
};

// Of a cluster's first example and of its last, unless all their rows are the cluster's, the sums
// of dy * n and of dy are in rows 2 c and 2 c + 1 of weight_partials and bias_partials.
struct WideModulatedBackwardArgs : WideBackwardArgs {
  WideExamples examples;
  void* dscale;             // [examples, hidden], of the dtype of x; or NULL.
  void* dshift;             // Likewise.
  float* dweight_partials;  // [clusters, hidden]; or NULL.
};

template <bool kModulate>
using WideBackwardArgsOf =
    std::conditional_t<kModulate, WideModulatedBackwardArgs, WideBackwardArgs>;

// The sums for dweight stay with the writing threads, those for dbias with the summing ones: 128
// registers for a thread's part of both would be too many.
template <bool kSecondSum, int kPieces>
using WideBackwardRoles =
    std::conditional_t<!kSecondSum, WideRoles<8, 4, 3>,
                       std::conditional_t<kPieces == 1, WideRoles<8, 8, 2>, WideRoles<7, 7, 1>>>;

// Of kModulate: examples whose factors are kept. With two, those of the next are there while the
// writers are at the last rows of one.
template <int kPieces>
inline constexpr int kWideKeptExamples = kPieces == 1 ? 2 : 1;

// As WideForwardKernel.
template <typename X, bool kCenter, bool kAdd, int kPieces, bool kModulate = false>
__global__ void __launch_bounds__(WideBackwardRoles<kCenter || kModulate, kPieces>::kThreads, 1)
    WideBackwardKernel(const __grid_constant__ WideBackwardArgsOf<kModulate> args,
                       const __grid_constant__ WideCut cut) {
  constexpr int kLanes = kPackLanes<X>;
  constexpr int kTensors = kAdd ? 3 : 2;
  constexpr bool kSecondSum = kCenter || kModulate;
  using Roles = WideBackwardRoles<kSecondSum, kPieces>;
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

  // kModulate: at `weight` are the factors of kKept examples. The summers put them there, each
  // thread what it reads itself, once the writers have freed the place. What the writers wait for
  // anyway, the sums of a row, comes after its factors.
  constexpr int kKept = kWideKeptExamples<kPieces>;
  __shared__ uint64_t factors_freed[kModulate ? kKept * kPieces : 1];
  __shared__ WideSpan span;
  WideExample example;
  const auto factors = [&] {
    return kModulate ? weight + example.number % kKept * (kLanes / 4) * cut.kept_packs : weight;
  };
  const auto keep_example = [&](int64_t index, int piece) {
    if constexpr (kModulate) {
      KeepFactors<X, kSumStep, kPieces == 1 ? 4 : 2>(
          factors() + piece * cut.slot_packs, cut.kept_packs, args, index,
          column + piece * cut.slot_packs * kLanes, static_cast<int>(threadIdx.x) - kStep,
          slice.PacksOf(piece));
    }
  };
  const auto start = [&] {
    if constexpr (kModulate) {
      if (threadIdx.x == 0) {
        for (uint64_t& barrier : factors_freed) BarrierInit(&barrier, Roles::kWriters);
        span = WideSpan::Of(args.examples, static_cast<int32_t>(group));
      }
      const WideSpan own = WideSpan::Of(args.examples, static_cast<int32_t>(group));
      example.Start(args.examples, own);
      if (threadIdx.x < kStep || threadIdx.x >= kStep + kSumStep) return;
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) keep_example(own.example, piece);
    } else {
      KeepSlice(weight, args.weight, slice, cut.kept_packs, kOneWord<X>);
    }
  };
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
  const auto store = [&](float* partials, int64_t row, int thread, int threads, const auto& sums) {
    if (partials == nullptr) return;
    float* to = partials + row * args.hidden + column;
    constexpr int kOf = sizeof(sums[0]) / sizeof(sums[0][0]);
#pragma unroll
    for (int i = 0; i < kPieces * kOf; ++i) {
      const int pack = i % kOf * threads + thread;
      if (pack >= slice.PacksOf(i / kOf)) continue;
      StoreFloats<float, kLanes>(to + (i / kOf * cut.slot_packs + pack) * kLanes,
                                 sums[i / kOf][i % kOf]);
    }
  };
  // At an example's end, or that of the cluster's rows: its sums, which then begin anew.
  const auto leave = [&](float* partials, void* whole, const void* factor, int thread, auto& sums) {
    if constexpr (kModulate) {
      if (example.IsWhole(args.examples, span)) {
        if (whole != nullptr) {
          const int64_t at = (span.example + example.number) * args.hidden + column;
          StoreWhole<X, kStep>(whole, at, factor, column, args.offset, cut.slot_packs, slice,
                               thread, sums);
        }
      } else {
        store(partials, 2 * group + (example.number > 0 ? 1 : 0), thread, kStep, sums);
      }
#pragma unroll
      for (auto& of_piece : sums) {
#pragma unroll
        for (auto& of_pack : of_piece) {
#pragma unroll
          for (float& sum : of_pack) sum = 0.0f;
        }
      }
    }
  };
  // Sums of g * (x - mean), and of g.
  [[maybe_unused]] float dbias[kSecondSum ? kPieces : 1][kSumPacks][kLanes] = {};
  const auto leave_shift = [&] {
    if constexpr (kModulate) {
      leave(args.bias_partials, args.dshift, nullptr, static_cast<int>(threadIdx.x) - kStep, dbias);
    }
  };
  float mean = 0.0f;
  float next_mean = kCenter && group < args.rows ? args.mean[group] : 0.0f;
  const auto sum = [&](const WideTurn& at, int piece) -> float2 {
    const int thread = static_cast<int>(threadIdx.x) - kStep;
    const uint4* slot = slot_of(at.slot) + thread;
    const int left = slice.PacksOf(piece) - thread;
    if constexpr (kModulate) {
      if (piece == 0 && example.IsNext(at)) {
        leave_shift();
        example.GoOn(args.examples);
      }
      if (example.IsFirst(args.examples, at)) {
        if (example.number >= kKept) {
          BarrierWait(&factors_freed[example.number % kKept * kPieces + piece],
                      (example.number / kKept - 1) & 1);
        }
        keep_example(span.example + example.number, piece);
        __syncwarp();
      }
    }
    const uint4* w_slot = factors() + piece * cut.slot_packs + thread;
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
      if constexpr (kModulate) {
        LoadFactors<kLanes>(w_slot + p * kSumStep, cut.kept_packs, w);
      } else {
        Unpack<X, kLanes>(pack_of(w_slot + p * kSumStep), w);
      }
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float g = dy[i] * (kSecondSum ? w[i] : offset + w[i]);
        sums.x += g * (kCenter ? x[i] - mean : x[i]);
        if constexpr (kCenter) sums.y += g;
        if constexpr (kSecondSum) dbias[piece][p][i] += dy[i];
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
  const auto leave_scale = [&] {
    if constexpr (kModulate) {
      const int thread = static_cast<int>(threadIdx.x);
      if (args.dweight_partials != nullptr) {
        AddScaled<X, kStep>(args.dweight_partials + group * args.hidden + column,
                            example.number == 0, args.examples, span.example + example.number,
                            column, cut.slot_packs, slice, thread, dweight);
      }
      leave(args.weight_partials, args.dscale, args.weight, thread, dweight);
    }
  };
  const auto write = [&](const WideTurn& at, int piece, float4 known) {
    const auto [rstd, center, slope, mean_g] = known;
    if constexpr (kModulate) {
      if (piece == 0 && example.IsNext(at)) {
        leave_scale();
        example.GoOn(args.examples);
      }
    }
    const uint4* const kept = factors();
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
        if constexpr (kModulate) {
          LoadFactors<kLanes>(kept + first + p * kStep, cut.kept_packs, w);
        } else {
          Unpack<X, kLanes>(pack_of(kept + first + p * kStep), w);
        }
        if constexpr (kCenter) {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) x[i] -= center;
        }
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float g = kCenter     ? fmaf(dy[i], w[i], -mean_g)
                          : kModulate ? dy[i] * w[i]
                                      : dy[i] * (offset + w[i]);
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
    if constexpr (kModulate) {
      if (example.Ends(at)) {
        __syncwarp();
        if (threadIdx.x % kWarpThreads == 0) {
          BarrierArrive(&factors_freed[example.number % kKept * kPieces + piece]);
        }
      }
    }
  };
  const auto end_sum = [&] {
    if constexpr (kCenter) {
      store(args.bias_partials, group, static_cast<int>(threadIdx.x) - kStep, kSumStep, dbias);
    }
    leave_shift();
  };
  const auto end_write = [&] {
    if constexpr (!kModulate) {
      store(args.weight_partials, group, static_cast<int>(threadIdx.x), kStep, dweight);
    }
    leave_scale();
  };
  if constexpr (kModulate) {
    WideCut one_by_one = cut;
    one_by_one.groups = 1;
    const WideSpan own = WideSpan::Of(args.examples, static_cast<int32_t>(group));
    RunWide<kPieces, 1>(&shared, one_by_one, own.begin + own.rows, own.begin, load, start, sum,
                        gather, write, end_sum, end_write);
  } else {
    RunWide<kPieces, kCenter ? 2 : 1>(&shared, cut, args.rows, group, load, start, sum, gather,
                                      write, end_sum, end_write);
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_BACKWARD_CUH_
