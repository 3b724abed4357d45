// The forward pass over wide rows on the GPU, for rms_norm, fused_add_rms_norm (kAdd), layer_norm
// (kCenter) and modulated_rms_norm (kModulate). See wide_ring.cuh and wide_examples.cuh.
//
// Traffic: x read once, y written once; weight and bias, or what an example is multiplied with and
// its shift, stay in shared memory. Determinism: the order of a row's sums is fixed by the cut. No
// atomics.

#ifndef KERNELS_RMS_NORM_WIDE_FORWARD_CUH_
#define KERNELS_RMS_NORM_WIDE_FORWARD_CUH_

#include <type_traits>

#include "kernels/rms_norm/wide_examples.cuh"
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
};

struct WideModulatedForwardArgs : WideForwardArgs {
  WideExamples examples;
  const void* shift;
  int64_t shift_stride;
};

template <bool kModulate>
using WideForwardArgsOf = std::conditional_t<kModulate, WideModulatedForwardArgs, WideForwardArgs>;

// Where the mean, squared, is more than this many variances, both from a reference, E[d^2] - E[d]^2
// costs more than two bits: sums are taken again, from the mean.
inline constexpr float kFarMean = 4.0f;

// The reference for layer_norm: the mean of a row's first four elements.
template <typename X>
__device__ __forceinline__ float LeadOf(const uint4* lead) {
  constexpr int kLanes = kPackLanes<X>;
  float v[kLanes];
  Unpack<X, kLanes>(LoadLanes<X, kLanes>(reinterpret_cast<const X*>(lead)), v);
  return (v[0] + v[1] + v[2] + v[3]) * 0.25f;
}

// The sums of d and d^2 over packs first, first + step, ... of a piece; d = v - base.
template <typename X>
__device__ __forceinline__ float2 PieceSums(const uint4* piece, int packs, int first, int step,
                                            float base) {
  constexpr int kLanes = kPackLanes<X>;
  float2 sums[2] = {};
#pragma unroll 4
  for (int p = first; p < packs; p += step) {
    float v[kLanes];
    Unpack<X, kLanes>(LoadLanes<X, kLanes>(reinterpret_cast<const X*>(piece + p)), v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const float d = v[i] - base;
      sums[i % 2].x += d;
      sums[i % 2].y += d * d;
    }
  }
  return {sums[0].x + sums[1].x, sums[0].y + sums[1].y};
}

// A pack of x + residual, rounded.
template <typename X>
__device__ __forceinline__ Lanes<X, kPackLanes<X>> AddedPack(const uint4* x,
                                                             const uint4* residual) {
  constexpr int kLanes = kPackLanes<X>;
  float a[kLanes], b[kLanes];
  Unpack<X, kLanes>(LoadLanes<X, kLanes>(reinterpret_cast<const X*>(x)), a);
  Unpack<X, kLanes>(LoadLanes<X, kLanes>(reinterpret_cast<const X*>(residual)), b);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) a[i] += b[i];
  return PackFloats<X, kLanes>(a);
}

using WideForwardRoles = WideRoles<8, 4, 3>;

// kPieces: of a slice, 1 or kWideForwardPieces. A grid of cut.groups clusters. REQUIRES: all rows,
// weight and bias in 16-byte runs.
template <typename X, bool kCenter, bool kAdd, int kPieces, bool kModulate = false>
__global__ void __launch_bounds__(WideForwardRoles::kThreads, 1)
    WideForwardKernel(const __grid_constant__ WideForwardArgsOf<kModulate> args,
                      const __grid_constant__ WideCut cut) {
  constexpr int kLanes = kPackLanes<X>;
  constexpr int kTensors = kAdd ? 2 : 1;
  constexpr int kValues = kCenter ? 2 : 1;
  constexpr int kStep = WideForwardRoles::kWriters * kWarpThreads;
  constexpr int kSummers = WideForwardRoles::kSummers;
  constexpr int kPacks = kWidePiecePacks / kStep;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ WideShared<WideForwardRoles> shared;

  const int row_packs = static_cast<int>(args.hidden / kLanes);
  const int rank = static_cast<int>(ClusterRank());
  const WideSlice slice(cut, row_packs, rank);
  const int column = slice.first * kLanes;
  uint4* const weight = dynamic_shared + cut.slots * kTensors * cut.slot_packs;
  uint4* const bias = weight + (kModulate ? kLanes / 4 : 1) * cut.kept_packs;
  const bool has_weight = args.weight != nullptr;
  const float offset = has_weight ? args.offset : 0.0f;
  const auto slot_of = [&](int slot) { return dynamic_shared + slot * kTensors * cut.slot_packs; };
  const auto pack_of = [](const uint4* at) {
    return LoadLanes<X, kLanes>(reinterpret_cast<const X*>(at));
  };

  const int64_t group = blockIdx.x / ClusterSize();
  [[maybe_unused]] int32_t first_row = 0;
  [[maybe_unused]] int64_t end_row = args.rows;
  if constexpr (kModulate) {
    const WideSpan span = WideSpan::Of(args.examples, static_cast<int32_t>(group));
    first_row = args.examples.step == 1 ? span.begin : static_cast<int32_t>(group);
    if (args.examples.step == 1) end_row = span.begin + span.rows;
  }
  // kModulate: at `weight` are the factors and at `bias` the shift of an example, of which each
  // writer keeps what it reads.
  int32_t example = 0;
  int32_t next_example = 0;  // Its first row.
  const auto keep_example = [&] {
    if constexpr (kModulate) {
      const int first = static_cast<int>(threadIdx.x);
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) {
        const int at = piece * cut.slot_packs;
        const int packs = slice.PacksOf(piece);
        KeepPacks<X, kPacks, kStep>(bias + at, args.shift, int64_t{example} * args.shift_stride,
                                    column + at * kLanes, first, packs);
        KeepFactors<X, kStep, kPacks>(weight + at, cut.kept_packs, args, example,
                                      column + at * kLanes, first, packs);
      }
    }
  };
  const auto start = [&] {
    if constexpr (kModulate) {
      example = first_row / args.examples.rows;
      next_example = (example + 1) * args.examples.rows;
      if (threadIdx.x < kStep) keep_example();
    } else {
      KeepSlice(weight, args.weight, slice, cut.kept_packs, kOneWord<X>);
      if constexpr (kCenter) KeepSlice(bias, args.bias, slice, cut.kept_packs, 0);
    }
  };
  const uint64_t policy = EvictNormalPolicy();  // Read once, and yet 5 to 9 % faster than
                                                // EvictFirstPolicy (H200, H 65536).
  const auto load = [&](const WideTurn& at, int piece) {
    uint64_t* const filled = &shared.filled[at.slot];
    const uint32_t bytes = slice.PacksOf(piece) * 16;
    const bool leads = kCenter && piece == 0;
    BarrierArriveExpecting(filled, bytes * kTensors + (leads ? 16 : 0));
    const X* x = static_cast<const X*>(args.x) + at.row * args.x_stride;
    const int from = column + piece * cut.slot_packs * kLanes;
    BulkLoad(slot_of(at.slot), x + from, bytes, filled, policy);
    if (leads) BulkLoad(&shared.lead[at.Of()], x, 16, filled, policy);
    if constexpr (kAdd) {
      const X* r = static_cast<const X*>(args.residual) + at.row * args.residual_stride;
      BulkLoad(slot_of(at.slot) + cut.slot_packs, r + from, bytes, filled, policy);
    }
  };
  const auto sum = [&](const WideTurn& at, int piece) -> float2 {
    const uint4* slot = slot_of(at.slot);
    const int packs = slice.PacksOf(piece);
    const int thread = static_cast<int>(threadIdx.x) - kStep;
    if constexpr (kCenter) {
      return PieceSums<X>(slot, packs, thread, kSummers * kWarpThreads,
                          LeadOf<X>(&shared.lead[at.Of()]));
    }
    float sums[2] = {};
#pragma unroll 4
    for (int p = thread; p < packs; p += kSummers * kWarpThreads) {
      float v[kLanes];
      if constexpr (kAdd) {
        Unpack<X, kLanes>(AddedPack<X>(slot + p, slot + cut.slot_packs + p), v);
      } else {
        Unpack<X, kLanes>(pack_of(slot + p), v);
      }
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sums[i % 2] += v[i] * v[i];
    }
    return {sums[0] + sums[1], 0.0f};
  };
  // From the slice's sums to the distance of its mean from the row's lead, and the sum of squares
  // about that mean. Where the lead is far off, to the mean itself, whose digits the distance does
  // not have, and that sum negated, from sums about the mean.
  const auto centered = [&](const WideTurn& at, float2 part) -> float2 {
    const float count = static_cast<float>(slice.packs * kLanes);
    const auto from = [&](float base, float2 s) -> float2 {
      const float shift = s.x / count;
      return {base + shift, fmaxf(s.y - shift * s.x, 0.0f)};
    };
    const float2 found = from(0.0f, part);
    if (found.x * found.x * count <= kFarMean * found.y) return found;
    const float base = LeadOf<X>(&shared.lead[at.Of()]) + found.x;
    float2 again = {};
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint4* slot = slot_of(static_cast<int>((at.turn * kPieces + piece) % cut.slots));
      const float2 sums =
          PieceSums<X>(slot, slice.PacksOf(piece), static_cast<int>(threadIdx.x) % kWarpThreads,
                       kWarpThreads, base);
      again.x += sums.x;
      again.y += sums.y;
    }
    const float2 taken = from(base, SumOverWarp<2>(again));
    return {taken.x, -taken.y};
  };
  // What the blocks have sent: means from `base`, and sums of squares.
  const auto common = [&](float2 of_block, bool has, float* base) -> float2 {
    const bool far = has && signbit(of_block.y);
    if (!__any_sync(0xffffffffu, far)) return of_block;
    const float mean = far ? of_block.x : *base + of_block.x;
    *base = __shfl_sync(0xffffffffu, mean, 0);
    return {has ? mean - *base : 0.0f, fabsf(of_block.y)};
  };
  const auto gather = [&](const WideTurn& at, auto part_of) -> float4 {
    const float2 part = part_of();
    shared.Publish(at, kCenter ? centered(at, part) : part);
    float2 of_block = shared.Gather(at);
    float base = 0.0f;
    float shift = 0.0f;
    if constexpr (kCenter) {
      const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
      const bool has = lane < static_cast<int>(ClusterSize());
      const int packs = has ? WideSlice(cut, row_packs, lane).packs : 0;
      const auto count = static_cast<float>(packs * kLanes);
      base = LeadOf<X>(&shared.lead[at.Of()]);
      of_block = common(of_block, has, &base);
      shift = WarpReduce(count * of_block.x, Sum()) * args.inverse_hidden;
      const float apart = of_block.x - shift;
      of_block.x = of_block.y + count * (apart * apart);
    }
    const float variance = WarpReduce(of_block.x, Sum()) * args.inverse_hidden;
    const float rstd = rsqrtf(variance + args.eps);
    if (rank == 0 && threadIdx.x % kWarpThreads == 0) {
      if (kCenter && args.mean != nullptr) args.mean[at.row] = base + shift;
      if (args.rstd != nullptr) args.rstd[at.row] = rstd;
    }
    return {rstd, base, -shift * rstd, 0.0f};
  };
  const auto write = [&](const WideTurn& at, int piece, float4 known) {
    const auto [rstd, base, shift, none] = known;
    if constexpr (kModulate) {
      if (piece == 0 && at.row >= next_example) {
        do {
          ++example;
          next_example += args.examples.rows;
        } while (at.row >= next_example);
        keep_example();
      }
    }
    const uint4* slot = slot_of(at.slot) + threadIdx.x;
    const int first = piece * cut.slot_packs + static_cast<int>(threadIdx.x);
    const int left = slice.PacksOf(piece) - static_cast<int>(threadIdx.x);
    const int left_of_warp = left + static_cast<int>(threadIdx.x) % kWarpThreads;
    X* y = static_cast<X*>(args.y) + at.row * args.y_stride + column + first * kLanes;
    const auto packs = [&](auto rounds) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (p * kStep >= left_of_warp) break;
        const int from = min(p * kStep, left - 1);  // Beyond may be what comes into the next slot.
        float v[kLanes], w[kLanes];
        if constexpr (kModulate) {
          LoadFactors<kLanes>(weight + first + p * kStep, cut.kept_packs, w);
        } else {
          Unpack<X, kLanes>(pack_of(weight + first + p * kStep), w);
        }
        if constexpr (kAdd) {
          const Lanes<X, kLanes> added = AddedPack<X>(slot + from, slot + cut.slot_packs + from);
          X* s = static_cast<X*>(args.sum) + at.row * args.sum_stride + column + first * kLanes;
          StorePackIf<X>(p * kStep < left, s + p * kStep * kLanes, added);
          Unpack<X, kLanes>(added, v);
        } else {
          Unpack<X, kLanes>(pack_of(slot + from), v);
        }
        [[maybe_unused]] float b[kLanes];
        if constexpr (kCenter || kModulate) {
          Unpack<X, kLanes>(pack_of(bias + first + p * kStep), b);
        }
        if constexpr (kCenter) {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) v[i] = fmaf(fmaf(v[i] - base, rstd, shift), w[i], b[i]);
        } else {
#pragma unroll
          for (int i = 0; i < kLanes; ++i) v[i] *= rstd;
          if constexpr (decltype(rounds)::value) RoundFloats<X>(v);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) {
            if constexpr (kModulate) {
              v[i] = fmaf(v[i], w[i], b[i]);
            } else {
              v[i] *= offset + w[i];
            }
          }
        }
        StorePackIf<X>(p * kStep < left, y + p * kStep * kLanes, PackFloats<X, kLanes>(v));
      }
    };
    if (!kCenter && args.round_normed) {
      packs(std::true_type());
    } else {
      packs(std::false_type());
    }
  };
  if constexpr (kModulate) {
    WideCut walk = cut;
    walk.groups = args.examples.step;
    RunWide<kPieces, kValues>(
        &shared, walk, end_row, first_row, load, start, sum, gather, write, [] {}, [] {});
  } else {
    RunWide<kPieces, kValues>(
        &shared, cut, args.rows, group, load, start, sum, gather, write, [] {}, [] {});
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_FORWARD_CUH_
