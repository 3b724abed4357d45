// The mathematics of one row, apart from how the row is brought in: the statistics of some of its
// logits, merging those of several threads, and from them the loss and the gradient.
//
// Logits are scanned once with a running maximum; sums are relative to a reference near it. All is
// fp32. Merging is symmetric and its order fixed by thread numbers, so every thread of a row gets
// the same bits, run after run.

#ifndef KERNELS_CROSS_ENTROPY_ROW_MATH_CUH_
#define KERNELS_CROSS_ENTROPY_ROW_MATH_CUH_

#include <stdint.h>

#include <type_traits>

#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/cross_entropy/cross_entropy_problem.h"

namespace fuseboard::cross_entropy {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr int kNoColumn = 0x7fffffff;

// What a kernel is specialised for. kGeneral_ is false for IsPlain problems; kEntropy_ says that a
// gradient has that of an entropy in it.
template <typename T_, bool kGeneral_, bool kEntropy_ = false>
struct Mode {
  using T = T_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr bool kEntropy = kEntropy_;
  // Exponents are powers of two relative to an integer. Then x * factor - reference is one fused
  // multiply-add without a rounded bias, and as exact as exp(z - z_max) at one instruction less.
  static constexpr bool kLog2 = !kGeneral && !std::is_same_v<T, float>;
};

__device__ __forceinline__ float Infinity() { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ float NotANumber() { return __uint_as_float(0x7fc00000u); }

// ---- z and its exponential ----

template <typename M>
__device__ __forceinline__ float ZOf(float x, const Problem& p) {
  const float v = x * p.logit_scale;
  if constexpr (M::kGeneral) {
    if (p.softcap != 0) return p.softcap * tanhf(v / p.softcap);
  }
  return v;
}

// Logits are compared in the direction in which z grows. Its own inverse.
template <typename M>
__device__ __forceinline__ float Oriented(float x, const Problem& p) {
  if constexpr (M::kGeneral) {
    return p.logit_scale > 0 ? x : -x;
  } else {
    return x;
  }
}

// The reference that belongs to the raw logit with the largest z.
template <typename M>
__device__ __forceinline__ float ReferenceAt(float x, const Problem& p) {
  if constexpr (M::kLog2) {
    return rintf(x * (p.logit_scale * kLog2E));
  } else {
    return ZOf<M>(x, p);
  }
}

// -inf as a reference would make differences NaN where the answer is that nothing was added.
__device__ __forceinline__ float FiniteReference(float reference) {
  return reference == -Infinity() ? 0.0f : reference;
}

// z - reference, in the mode's unit.
template <typename M>
__device__ __forceinline__ float Exponent(float x, float reference, const Problem& p) {
  if constexpr (M::kLog2) {
    return fmaf(x, p.logit_scale * kLog2E, -reference);
  } else {
    return ZOf<M>(x, p) - reference;
  }
}

template <typename M>
__device__ __forceinline__ float Exp(float exponent) {
  if constexpr (M::kLog2) {
    return Exp2Approx(exponent);
  } else if constexpr (std::is_same_v<typename M::T, float>) {
    return expf(exponent);
  } else {
    return Exp2Approx(exponent * kLog2E);
  }
}

// From the mode's unit to natural logarithms.
template <typename M, typename Number>
__device__ __forceinline__ Number Natural(Number exponent) {
  return M::kLog2 ? exponent * kLn2 : exponent;
}

// ---- Statistics ----

// Of some of a row's logits. Sums are relative to FiniteReference(reference).
struct RowStats {
  float max = -Infinity();  // Of the oriented raw logits. NaN is never the maximum.
  float reference = -Infinity();
  float sum = 0.0f;        // sum exp(z - reference)
  int column = kNoColumn;  // Of the first maximum, or of the first element of the run it is in.
  float weighted = 0.0f;   // sum w (z - reference), if there is label smoothing
  float weight = 0.0f;     // sum w, likewise
};

// REQUIRES: reference >= stats.reference.
template <typename M>
__device__ __forceinline__ void Rebase(RowStats& stats, float reference) {
  const float distance = stats.reference - reference;
  const float factor = stats.reference == reference ? 1.0f  // Infinities too.
                       : M::kLog2                   ? exp2f(distance)
                                                    : expf(distance);
  stats.sum = __fmul_rn(stats.sum, factor);  // Fusing it with Merge's addition would tell a from b.
  if constexpr (M::kGeneral) {
    stats.weighted +=
        (FiniteReference(stats.reference) - FiniteReference(reference)) * stats.weight;
  }
  stats.reference = reference;
}

template <typename M>
__device__ __forceinline__ RowStats Merge(RowStats a, RowStats b) {
  const float reference = fmaxf(a.reference, b.reference);
  Rebase<M>(a, reference);
  Rebase<M>(b, reference);
  a.sum += b.sum;
  if constexpr (M::kGeneral) {
    a.weighted += b.weighted;
    a.weight += b.weight;
  }
  if (b.max > a.max || (b.max == a.max && b.column < a.column)) {
    a.max = b.max;
    a.column = b.column;
  }
  return a;
}

// Over a warp, in every lane.
template <typename M>
__device__ __forceinline__ RowStats MergeWarp(RowStats stats) {
  if constexpr (!M::kGeneral) {  // The maximum first: one exponential instead of ten in a row.
    const float max = WarpReduce(stats.max, Max());
    stats.column = __reduce_min_sync(0xffffffffu, stats.max == max ? stats.column : kNoColumn);
    stats.max = max;
    Rebase<M>(stats, WarpReduce(stats.reference, Max()));
    stats.sum = WarpReduce(stats.sum, Sum());
  } else {
#pragma unroll
    for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
      RowStats other;
      other.max = __shfl_xor_sync(0xffffffffu, stats.max, offset);
      other.reference = __shfl_xor_sync(0xffffffffu, stats.reference, offset);
      other.sum = __shfl_xor_sync(0xffffffffu, stats.sum, offset);
      other.column = __shfl_xor_sync(0xffffffffu, stats.column, offset);
      other.weighted = __shfl_xor_sync(0xffffffffu, stats.weighted, offset);
      other.weight = __shfl_xor_sync(0xffffffffu, stats.weight, offset);
      stats = Merge<M>(stats, other);
    }
  }
  return stats;
}

// The largest of a run's oriented logits. 16-bit pairs are compared packed.
template <typename M, int kLanes>
__device__ __forceinline__ float RunMax(const Lanes<typename M::T, kLanes>& run,
                                        const float (&x)[kLanes], const Problem& p) {
  if constexpr (M::kLog2 && kLanes > 1) {
    uint32_t most = run.word[0];
#pragma unroll
    for (int i = 1; i < Lanes<typename M::T, kLanes>::kWords; ++i) {
      most = MaxWord<typename M::T>(most, run.word[i]);
    }
    const float2 pair = WordToFloats<typename M::T>(most);
    return fmaxf(pair.x, pair.y);
  } else {
    float most = Oriented<M>(x[0], p);
#pragma unroll
    for (int i = 1; i < kLanes; ++i) most = fmaxf(most, Oriented<M>(x[i], p));
    return most;
  }
}

// Adds the logits of columns [column, column + kLanes), whose largest is `most` and no more than
// stats.max.
template <typename M, int kLanes>
__device__ __forceinline__ void AddExponentials(RowStats& stats, const float (&x)[kLanes],
                                                int column, const Problem& p) {
  constexpr int kSums = kLanes >= 8 ? kLanes / 4 : 1;  // Independent ones.
  const float reference = FiniteReference(stats.reference);
  float partial[kSums];
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    const float exponent = Exponent<M>(x[i], reference, p);
    const float e = Exp<M>(exponent);
    partial[i % kSums] = i < kSums ? e : partial[i % kSums] + e;
    if constexpr (M::kGeneral) {
      if (p.label_smoothing != 0) {
        const float w = p.class_weight == nullptr ? 1.0f : p.class_weight[column + i];
        stats.weighted += w * exponent;
        stats.weight += w;
      }
    }
  }
#pragma unroll
  for (int i = 1; i < kSums; ++i) partial[0] += partial[i];
  stats.sum += partial[0];
}

// Adds the logits of columns [column, column + kLanes). Runs of more than one come in ascending
// order of columns; single elements may come in any.
template <typename M, int kLanes>
__device__ __forceinline__ void AddRun(RowStats& stats, const Lanes<typename M::T, kLanes>& run,
                                       int column, const Problem& p) {
  float x[kLanes];
  Unpack<typename M::T, kLanes>(run, x);
  const float most = RunMax<M, kLanes>(run, x, p);
  if (most > stats.max) {  // About ln(runs) times per thread.
    Rebase<M>(stats, ReferenceAt<M>(Oriented<M>(most, p), p));
    stats.max = most;
    stats.column = column;
  } else if (kLanes == 1 && most == stats.max && column < stats.column) {
    stats.column = column;
  }
  AddExponentials<M, kLanes>(stats, x, column, p);
}

// AddRun of two runs, at `column` and at `column` + `apart` > 0, with one look at the maximum: 6
// instructions per logit instead of 8.
template <typename M, int kLanes>
__device__ __forceinline__ void AddTwoRuns(RowStats& stats,
                                           const Lanes<typename M::T, kLanes> (&runs)[2],
                                           int column, int apart, const Problem& p) {
  float x[2 * kLanes];
  float most[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float of_run[kLanes];
    Unpack<typename M::T, kLanes>(runs[r], of_run);
    most[r] = RunMax<M, kLanes>(runs[r], of_run, p);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) x[r * kLanes + i] = of_run[i];
  }
  if (fmaxf(most[0], most[1]) > stats.max) {
    const float larger = fmaxf(most[0], most[1]);
    Rebase<M>(stats, ReferenceAt<M>(Oriented<M>(larger, p), p));
    stats.max = larger;
    stats.column = most[0] == larger ? column : column + apart;
  }
  if constexpr (M::kGeneral) {  // Columns matter.
    float of_run[kLanes];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) of_run[i] = x[r * kLanes + i];
      AddExponentials<M, kLanes>(stats, of_run, column + r * apart, p);
    }
  } else {
    AddExponentials<M, 2 * kLanes>(stats, x, column, p);
  }
}

// The column of the first maximum, given the run in which it is.
template <typename M, int kLanes>
__device__ __forceinline__ int FirstMaxColumn(const Lanes<typename M::T, kLanes>& run, int column,
                                              float max, const Problem& p) {
  float x[kLanes];
  Unpack<typename M::T, kLanes>(run, x);
  int first = kLanes - 1;
#pragma unroll
  for (int i = kLanes - 2; i >= 0; --i) first = Oriented<M>(x[i], p) == max ? i : first;
  return column + first;
}

// log sum exp(z - reference), in the mode's unit; NaN for a row of -inf, as log_softmax gives.
template <typename M>
__device__ __forceinline__ float LogSum(const RowStats& stats) {
  if (stats.reference == -Infinity()) return NotANumber();
  return M::kLog2 ? log2f(stats.sum) : logf(stats.sum);
}

// ---- The target of a row ----

struct RowTarget {
  int64_t value;
  bool ignored;
  bool in_range;
};

__device__ __forceinline__ RowTarget LoadTarget(const Problem& p, int64_t row) {
  const int64_t at = row * p.target_stride;
  const int64_t value = p.target_is_i64 ? static_cast<const int64_t*>(p.target)[at]
                                        : static_cast<const int32_t*>(p.target)[at];
  return {value, value == p.ignore_index, value >= 0 && value < p.vocab};
}

template <typename T>
__device__ __forceinline__ const T* LogitsRow(const Problem& p, int64_t row) {
  return static_cast<const T*>(p.logits) + row * p.logits_stride;
}

// The raw logit of the target; NaN if there is none, which then reaches the loss.
template <typename T>
__device__ __forceinline__ float LoadTargetLogit(const Problem& p, int64_t row,
                                                 const RowTarget& target) {
  if (!target.in_range) return NotANumber();
  float x[1];
  LoadFloats<T, 1>(LogitsRow<T>(p, row) + target.value, x);
  return x[0];
}

// (1 - smoothing) * the weight of the target's class.
template <typename M>
__device__ __forceinline__ float HitWeight(const Problem& p, const RowTarget& target) {
  if constexpr (M::kGeneral) {
    const bool weighted = p.class_weight != nullptr && target.in_range;
    return (1.0f - p.label_smoothing) * (weighted ? p.class_weight[target.value] : 1.0f);
  } else {
    return 1.0f;
  }
}

// ---- Statistics in memory ----

// What lse and entropy are computed as. Double only beside fp32 logits: the other kernels have no
// instruction of it.
template <typename M>
using Statistic = std::conditional_t<std::is_same_v<typename M::T, float>, double, float>;

template <typename M>
__device__ __forceinline__ void StoreStatistic(const Problem& p, void* place, int64_t row,
                                               Statistic<M> value) {
  if (std::is_same_v<Statistic<M>, double> && p.wide_statistics) {
    static_cast<double*>(place)[row] = value;
  } else {
    static_cast<float*>(place)[row] = static_cast<float>(value);
  }
}

// A statistic as the float nearest to it and what that has lost, 0 for one in fp32.
struct SplitStatistic {
  float value;
  float rest;
};

template <typename M>
__device__ __forceinline__ SplitStatistic LoadStatistic(const Problem& p, const void* place,
                                                        int64_t row) {
  if (std::is_same_v<Statistic<M>, double> && p.wide_statistics) {
    const double value = static_cast<const double*>(place)[row];
    const auto nearest = static_cast<float>(value);
    const bool finite = fabsf(nearest) < Infinity();
    return {nearest, finite ? static_cast<float>(value - static_cast<double>(nearest)) : 0.0f};
  }
  return {static_cast<const float*>(place)[row], 0.0f};
}

// ---- Loss ----

// Writes what the call asks for. One thread per row. stats.column is the first maximum's own.
template <typename M>
__device__ __forceinline__ void StoreOutcome(const Problem& p, int64_t row, const RowStats& stats,
                                             const RowTarget& target, float target_logit) {
  if (p.argmax != nullptr) p.argmax[row] = stats.max == -Infinity() ? 0 : stats.column;
  float nll = 0.0f;
  float z_loss = 0.0f;
  Statistic<M> lse = 0;
  if (!target.ignored) {
    const float reference = FiniteReference(stats.reference);
    const float log_sum = LogSum<M>(stats);
    lse = Natural<M>(Statistic<M>{reference} + Statistic<M>{log_sum});
    // Differences before sums: lse alone has lost the digits that a small loss consists of.
    nll = Natural<M>(log_sum - Exponent<M>(target_logit, reference, p));
    if constexpr (M::kGeneral) {
      nll *= HitWeight<M>(p, target);
      if (p.label_smoothing != 0) {
        nll += p.label_smoothing / static_cast<float>(p.vocab) *
               (stats.weight * log_sum - stats.weighted);
      }
    }
    const auto rounded = static_cast<float>(lse);
    z_loss = target.in_range ? p.z_loss_scale * rounded * rounded : NotANumber();
  }
  if (p.loss != nullptr) p.loss[row] = p.z_loss_in_loss ? nll + z_loss : nll;
  if (p.z_loss != nullptr) p.z_loss[row] = z_loss;
  if (p.lse != nullptr) StoreStatistic<M>(p, p.lse, row, lse);
}

// ---- Gradient ----

// dlogit_c = (of_exp * exp(z_c - reference) - of_weight * w_c - [c == target] * of_hit) * cap'(z_c)
struct RowGradient {
  float reference;
  float of_exp;
  float of_weight;
  float of_hit;
  int target;  // -1: none.
  // M::kEntropy only. of_entropy * (z_c - reference + entropy) adds to of_exp, in the mode's unit.
  float of_entropy;
  float entropy;
};

// The exponent in a term e^x * x of an entropy, which is 0 for -inf. The exponential keeps the NaN.
__device__ __forceinline__ float FiniteExponent(float exponent) {
  return fmaxf(exponent, -1000.0f);
}

// log_sum as LogSum gives it; `weight_sum` is the sum of all class weights.
template <typename M>
__device__ __forceinline__ RowGradient MakeGradient(const Problem& p, int64_t row,
                                                    const RowTarget& target, float reference,
                                                    float log_sum, float weight_sum) {
  const float upstream = p.scale == nullptr ? 1.0f : p.scale[row * p.scale_stride];
  const float scale = upstream * p.logit_scale;
  const float hit = HitWeight<M>(p, target);
  float of_p = hit;
  if (p.z_loss_in_loss) of_p += 2.0f * p.z_loss_scale * Natural<M>(reference + log_sum);
  RowGradient g;
  g.of_weight = 0.0f;
  if constexpr (M::kGeneral) {
    const float share = p.label_smoothing / static_cast<float>(p.vocab);
    if (share != 0) of_p += share * weight_sum;
    g.of_weight = scale * share;
  }
  const float reciprocal_sum = M::kLog2 ? exp2f(-log_sum) : expf(-log_sum);
  g.of_exp = target.in_range ? scale * of_p * reciprocal_sum : NotANumber();
  g.of_hit = scale * hit;
  g.target = target.in_range ? static_cast<int>(target.value) : -1;
  g.reference = reference;
  return g;
}

template <typename M>
__device__ __forceinline__ RowGradient GradientFromStats(const Problem& p, int64_t row,
                                                         const RowTarget& target,
                                                         const RowStats& stats) {
  RowGradient g = MakeGradient<M>(p, row, target, FiniteReference(stats.reference),
                                  LogSum<M>(stats), stats.weight);
  return g;
}

// A saved lse in the mode's unit, as a reference, an integer if M::kLog2, and the rest.
struct SavedLse {
  float reference;
  float rest;
};

template <typename M>
__device__ __forceinline__ SavedLse LoadLse(const Problem& p, const void* lse, int64_t row) {
  const auto [value, rest] = LoadStatistic<M>(p, lse, row);
  if constexpr (M::kLog2) {
    const float reference = rintf(value * kLog2E);
    return {reference, fmaf(value, kLog2E, -reference)};
  } else {
    return {value, rest};
  }
}

template <typename M>
__device__ __forceinline__ RowGradient GradientFromLse(const Problem& p, int64_t row,
                                                       const RowTarget& target, float weight_sum) {
  const SavedLse lse = LoadLse<M>(p, p.lse_in, row);
  RowGradient g = MakeGradient<M>(p, row, target, lse.reference, lse.rest, weight_sum);
  if constexpr (M::kEntropy) {
    const float unit = M::kLog2 ? kLn2 * exp2f(-lse.rest) : expf(-lse.rest);
    const auto [entropy, entropy_rest] = LoadStatistic<M>(p, p.entropy_in, row);
    g.of_entropy = -p.dentropy[row * p.dentropy_stride] * p.logit_scale * unit;
    g.entropy = (M::kLog2 ? entropy * kLog2E : entropy) + (entropy_rest - lse.rest);
  }
  return g;
}

// Whether the run of columns [column, column + kLanes) has the target in it.
template <int kLanes>
__device__ __forceinline__ bool IsHit(const RowGradient& g, int column) {
  return static_cast<unsigned>(g.target - column) < static_cast<unsigned>(kLanes);
}

// What exp(z - reference) counts in the gradient.
template <typename M>
__device__ __forceinline__ float OfExponential(const RowGradient& g, float exponent) {
  if constexpr (M::kEntropy) {
    return fmaf(g.of_entropy, FiniteExponent(exponent) + g.entropy, g.of_exp);
  } else {
    return g.of_exp;
  }
}

// The gradient of the logits of columns [column, column + kLanes). kMayHit false leaves out what
// only the run with the target has.
template <typename M, int kLanes, bool kMayHit = true>
__device__ __forceinline__ Lanes<typename M::T, kLanes> GradientRun(
    const RowGradient& g, const Lanes<typename M::T, kLanes>& run, int column, const Problem& p) {
  float x[kLanes];
  Unpack<typename M::T, kLanes>(run, x);
  float slope[kLanes];  // Of the cap.
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    if constexpr (M::kGeneral) {
      const float z = ZOf<M>(x[i], p);
      const float t = p.softcap != 0 ? z / p.softcap : 0.0f;
      slope[i] = 1.0f - t * t;
      x[i] = OfExponential<M>(g, z - g.reference) * Exp<M>(z - g.reference);
      if (g.of_weight != 0) {
        x[i] -= g.of_weight * (p.class_weight == nullptr ? 1.0f : p.class_weight[column + i]);
      }
    } else {
      const float exponent = Exponent<M>(x[i], g.reference, p);
      x[i] = OfExponential<M>(g, exponent) * Exp<M>(exponent);
    }
  }
  if (kMayHit && IsHit<kLanes>(g, column)) {  // One run of the row.
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if (i == g.target - column) x[i] -= g.of_hit;
    }
  }
  if constexpr (M::kGeneral) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) x[i] *= slope[i];
  }
  return PackFloats<typename M::T, kLanes>(x);
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_ROW_MATH_CUH_
