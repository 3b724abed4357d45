// Schedules blocks of columns over the caller's threads. A row's blocks are merged in ascending
// order whoever computed them, so results depend neither on the threads nor on the schedule.

#include "kernels/cross_entropy/cross_entropy_cpu.h"

#include <cmath>

#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/cross_entropy/cpu_block_math.h"

namespace fuseboard::cross_entropy::FB_CPU_ISA {
namespace {

// Elements that are worth a thread's while.
constexpr int64_t kGrainElements = 1 << 15;

int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t BlocksPerRow(const Problem& p) { return (int64_t{p.vocab} + kBlock - 1) / kBlock; }

int BlockSize(const Problem& p, int64_t block) {
  return static_cast<int>(Smaller(kBlock, p.vocab - block * kBlock));
}

int64_t GrainOf(int64_t elements_each) {
  return elements_each >= kGrainElements ? 1 : kGrainElements / elements_each;
}

template <typename T>
const T* LogitsRow(const Problem& p, int64_t row) {
  return static_cast<const T*>(p.logits) + row * p.logits_stride;
}

template <typename T>
T* GradientRow(const Problem& p, int64_t row) {
  return static_cast<T*>(p.dlogits) + row * p.dlogits_stride;
}

// ---- The target of a row ----

struct Target {
  int64_t value;
  bool ignored;
  bool in_range;
};

Target TargetOf(const Problem& p, int64_t row) {
  const int64_t at = row * p.target_stride;
  const int64_t value = p.target_is_i64 ? static_cast<const int64_t*>(p.target)[at]
                                        : static_cast<const int32_t*>(p.target)[at];
  return {value, value == p.ignore_index, value >= 0 && value < p.vocab};
}

// Ignored rows are not read, unless for their argmax.
bool IsSkipped(const Problem& p, const Target& target) {
  return target.ignored && p.argmax == nullptr;
}

// (1 - smoothing) * the weight of the target's class.
double HitWeight(const Problem& p, const Target& target) {
  const double weight = target.in_range ? static_cast<double>(ClassWeight(p, target.value)) : 1.0;
  return (1.0 - static_cast<double>(p.label_smoothing)) * weight;
}

// ---- lse and entropy in memory ----

void StoreStatistic(const Problem& p, void* place, int64_t row, double value) {
  if (p.wide_statistics) {
    static_cast<double*>(place)[row] = value;
  } else {
    static_cast<float*>(place)[row] = static_cast<float>(value);
  }
}

double LoadStatistic(const Problem& p, const void* place, int64_t row) {
  return p.wide_statistics ? static_cast<const double*>(place)[row]
                           : static_cast<double>(static_cast<const float*>(place)[row]);
}

// The float nearest to a saved lse, and what that has lost.
struct SplitLse {
  double reference;
  double rest;
};

SplitLse LoadLse(const Problem& p, const void* place, int64_t row) {
  const double lse = LoadStatistic(p, place, row);
  const auto reference = static_cast<double>(static_cast<float>(lse));
  return {reference, __builtin_isfinite(reference) ? lse - reference : 0.0};
}

// ---- From statistics to loss and gradient ----

void Rebase(Stats* stats, double z_max) {
  if (stats->z_max != z_max) stats->sum *= std::exp(stats->z_max - z_max);
  stats->weighted += (Finite(stats->z_max) - Finite(z_max)) * stats->weight;
  stats->z_max = z_max;
}

// `block` comes after all that `row` has seen.
void Merge(Stats* row, Stats block) {
  const double z_max = block.z_max > row->z_max ? block.z_max : row->z_max;
  Rebase(row, z_max);
  Rebase(&block, z_max);
  row->sum += block.sum;
  row->weighted += block.weighted;
  row->weight += block.weight;
  if (block.max > row->max) {
    row->max = block.max;
    row->argmax = block.argmax;
  }
}

// log sum exp(z - Finite(z_max)); NaN for a row of -inf, as log_softmax gives.
double LogSum(const Stats& stats) {
  return stats.z_max == -__builtin_inf() ? __builtin_nan("") : std::log(stats.sum);
}

template <typename T>
void StoreOutcome(const Problem& p, int64_t row, const Stats& stats, const Target& target) {
  double nll = 0.0;
  double z_loss = 0.0;
  double lse = 0.0;
  if (!target.ignored) {
    const double log_sum = LogSum(stats);
    lse = Finite(stats.z_max) + log_sum;
    Buffer z;
    z.at[0] = __builtin_nanf("");
    if (target.in_range) LoadZ(p, LogitsRow<T>(p, row) + target.value, 1, &z);
    nll = HitWeight(p, target) * (log_sum - (static_cast<double>(z.at[0]) - Finite(stats.z_max)));
    if (p.label_smoothing != 0.0f) {
      nll += static_cast<double>(p.label_smoothing) / p.vocab *
             (stats.weight * log_sum - stats.weighted);
    }
    z_loss = target.in_range ? static_cast<double>(p.z_loss_scale) * lse * lse : nll;
  }
  if (p.argmax != nullptr) p.argmax[row] = stats.argmax;
  if (p.loss != nullptr) p.loss[row] = static_cast<float>(p.z_loss_in_loss ? nll + z_loss : nll);
  if (p.z_loss != nullptr) p.z_loss[row] = static_cast<float>(z_loss);
  if (p.lse != nullptr) StoreStatistic(p, p.lse, row, lse);
}

// lse = reference + log_sum; `weight_sum` is the sum of all class weights.
Gradient MakeGradient(const Problem& p, int64_t row, const Target& target, double reference,
                      double log_sum, double weight_sum) {
  const double upstream =
      p.scale == nullptr ? 1.0 : static_cast<double>(p.scale[row * p.scale_stride]);
  const double scale = upstream * static_cast<double>(p.logit_scale);
  const double share = static_cast<double>(p.label_smoothing) / p.vocab;
  const double hit = HitWeight(p, target);
  double of_p = hit;
  if (p.z_loss_in_loss) of_p += 2.0 * static_cast<double>(p.z_loss_scale) * (reference + log_sum);
  if (share != 0.0) of_p += share * weight_sum;
  const double of_exp = target.in_range ? scale * of_p * std::exp(-log_sum) : __builtin_nan("");
  return {static_cast<float>(reference),       static_cast<float>(of_exp),
          static_cast<float>(scale * share),   static_cast<float>(scale * hit),
          target.in_range ? target.value : -1, target.ignored};
}

Gradient GradientFromStats(const Problem& p, int64_t row, const Target& target,
                           const Stats& stats) {
  return MakeGradient(p, row, target, Finite(stats.z_max), LogSum(stats), stats.weight);
}

// After StoreOutcome, whose lse it reads.
template <typename T>
void StoreEntropy(const Problem& p, int64_t row) {
  const Target target = TargetOf(p, row);
  double entropy = target.ignored || target.in_range ? 0.0 : __builtin_nan("");
  const int64_t blocks = target.ignored ? 0 : BlocksPerRow(p);
  const SplitLse lse = LoadLse(p, p.lse, row);
  for (int64_t block = 0; block < blocks; ++block) {
    entropy += EntropyOfBlock(p, LogitsRow<T>(p, row), block * kBlock, BlockSize(p, block),
                              static_cast<float>(lse.reference), static_cast<float>(lse.rest));
  }
  StoreStatistic(p, p.entropy, row, entropy * std::exp(-lse.rest));
}

// What dentropy adds. REQUIRES: `gradient` is relative to lse.reference.
void AddEntropyGradient(const Problem& p, int64_t row, const Target& target, const SplitLse& lse,
                        Gradient* gradient) {
  if (p.dentropy == nullptr || target.ignored || !target.in_range) return;
  const double upstream = p.dentropy[row * p.dentropy_stride];
  gradient->of_entropy =
      static_cast<float>(-upstream * static_cast<double>(p.logit_scale) * std::exp(-lse.rest));
  gradient->entropy = static_cast<float>(LoadStatistic(p, p.entropy_in, row) - lse.rest);
}

// ---- Forward, a row to a thread ----

template <typename T>
void SolveRow(const Problem& p, int64_t row) {
  const Target target = TargetOf(p, row);
  const T* logits = LogitsRow<T>(p, row);
  const int64_t blocks = BlocksPerRow(p);
  Stats stats;
  for (int64_t block = 0; block < blocks && !IsSkipped(p, target); ++block) {
    Merge(&stats, StatsOfBlock(p, logits, block * kBlock, BlockSize(p, block)));
  }
  StoreOutcome<T>(p, row, stats, target);
  if (p.dlogits == nullptr) return;
  const Gradient gradient = GradientFromStats(p, row, target, stats);
  for (int64_t block = 0; block < blocks; ++block) {
    GradientOfBlock(p, gradient, logits, block * kBlock, BlockSize(p, block),
                    GradientRow<T>(p, row));
  }
}

// ---- Forward, a block to a thread: for fewer rows than threads ----

bool SplitsRows(const FbCall& call, const Problem& p) {
  return call.parallel_for != nullptr && p.rows < call.num_threads && p.vocab >= 2 * kGrainElements;
}

// What the threads leave for one another; lies in the workspace.
struct SplitState {
  Stats* stats;        // [rows, blocks]
  Gradient* gradient;  // [rows]
};

template <typename T>
void SolveSplitRows(const FbCall& call, const Problem& p, const SplitState& state) {
  const int64_t blocks = BlocksPerRow(p);
  const int64_t grain = GrainOf(kBlock);
  ParallelFor(call, p.rows * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / blocks;
      const int64_t block = i % blocks;
      if (IsSkipped(p, TargetOf(p, row))) continue;
      state.stats[i] = StatsOfBlock(p, LogitsRow<T>(p, row), block * kBlock, BlockSize(p, block));
    }
  });
  for (int64_t row = 0; row < p.rows; ++row) {
    const Target target = TargetOf(p, row);
    Stats stats;
    for (int64_t block = 0; block < blocks && !IsSkipped(p, target); ++block) {
      Merge(&stats, state.stats[row * blocks + block]);
    }
    StoreOutcome<T>(p, row, stats, target);
    state.gradient[row] = GradientFromStats(p, row, target, stats);
  }
  if (p.dlogits == nullptr) return;
  ParallelFor(call, p.rows * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / blocks;
      const int64_t block = i % blocks;
      GradientOfBlock(p, state.gradient[row], LogitsRow<T>(p, row), block * kBlock,
                      BlockSize(p, block), GradientRow<T>(p, row));
    }
  });
}

// ---- Entries ----

uint64_t ForwardWorkspaceBytes(const FbCall* call) {
  const Problem p = UnpackForward(*call);
  if (!SplitsRows(*call, p)) return 0;
  const auto rows = static_cast<uint64_t>(p.rows);
  return rows * static_cast<uint64_t>(BlocksPerRow(p)) * sizeof(Stats) + rows * sizeof(Gradient);
}

int32_t Forward(const FbCall* call, void* workspace) {
  const Problem p = UnpackForward(*call);
  return DispatchFloat(p.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    if (SplitsRows(*call, p)) {
      auto* stats = static_cast<Stats*>(workspace);
      auto* gradient = reinterpret_cast<Gradient*>(stats + p.rows * BlocksPerRow(p));
      SolveSplitRows<T>(*call, p, {stats, gradient});
    } else {
      ParallelFor(*call, p.rows, GrainOf(p.vocab), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) SolveRow<T>(p, row);
      });
    }
    if (p.entropy == nullptr) return int32_t{0};
    ParallelFor(*call, p.rows, GrainOf(p.vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) StoreEntropy<T>(p, row);
    });
    return int32_t{0};
  });
}

double SumOfClassWeights(const Problem& p) {
  if (p.class_weight == nullptr || p.label_smoothing == 0.0f) return p.vocab;
  double sum = 0.0;
  for (int64_t i = 0; i < p.vocab; ++i) sum += static_cast<double>(p.class_weight[i]);
  return sum;
}

int32_t Backward(const FbCall* call, void* /*workspace*/) {
  const Problem p = UnpackBackward(*call);
  const double weight_sum = SumOfClassWeights(p);
  const int64_t blocks = BlocksPerRow(p);
  return DispatchFloat(p.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    const int64_t grain = GrainOf(Smaller(p.vocab, kBlock));
    ParallelFor(*call, p.rows * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / blocks;
        const int64_t block = i % blocks;
        const SplitLse lse = LoadLse(p, p.lse_in, row);
        const Target target = TargetOf(p, row);
        Gradient gradient = MakeGradient(p, row, target, lse.reference, lse.rest, weight_sum);
        AddEntropyGradient(p, row, target, lse, &gradient);
        GradientOfBlock(p, gradient, LogitsRow<T>(p, row), block * kBlock, BlockSize(p, block),
                        GradientRow<T>(p, row));
      }
    });
    return int32_t{0};
  });
}

}  // namespace

// External: declared so for every instruction set.
const CpuEntries kCpuEntries = {Forward, Backward, ForwardWorkspaceBytes};

}  // namespace fuseboard::cross_entropy::FB_CPU_ISA
