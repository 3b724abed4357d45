// Times the kernels for wide rows (kernels/rms_norm/wide_*.cuh) in bf16 on device 0, as their
// policies cut a row and otherwise, as shares of the copy rate of the same run; and compares what
// they compute with sums in f64. Its numbers go into the policies' comments.
//
//   wide_norm_tune [check|time|race] [rms_norm|fused_add_rms_norm|layer_norm] [forward|backward]
//       [brief: what the policy says alone]
//
// race runs what compute-sanitizer's racecheck can follow in seconds, and nothing else.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "kernels/common/sum_partials.cuh"
#include "kernels/layer_norm/layer_norm_policy.h"
#include "kernels/rms_norm/wide_launch.cuh"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

using rms_norm::Policy;
using rms_norm::WideBackwardArgs;
using rms_norm::WideForwardArgs;
using tuning::Check;

constexpr int64_t kMi = int64_t{1} << 20;
constexpr int64_t kBytes = 512 * kMi;

struct Bench {
  tuning::Rotating x{kBytes}, dy{kBytes}, y{kBytes}, residual{kBytes}, sum{kBytes};
  tuning::Rotating weight{4 * kMi}, bias{4 * kMi}, dweight{4 * kMi}, dbias{4 * kMi};
  tuning::Rotating mean{4 * kMi}, rstd{4 * kMi}, partials{512 * kMi};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

BFloat16* Of(const tuning::Rotating& r) { return reinterpret_cast<BFloat16*>(r.base()); }
float* Floats(const tuning::Rotating& r) { return reinterpret_cast<float*>(r.base()); }

enum Operation { kRms, kAddRms, kLayer };
const char* const kNames[] = {"rms_norm", "fused_add_rms_norm", "layer_norm"};

template <Operation kOp, bool kForward>
struct Pass {
  static constexpr bool kCenter = kOp == kLayer;
  static constexpr bool kAdd = kOp == kAddRms;
  static constexpr double kBytesPerElement = kAdd ? 8 : kForward ? 4 : 6;
  static constexpr const char* kName = kForward ? "forward" : "backward";

  static constexpr rms_norm::WideForm kForm =
      kForward ? rms_norm::kWideForward<kCenter, kAdd> : rms_norm::kWideBackward<kCenter, kAdd>;

  static int Launch(const Bench& b, const Policy& policy, int64_t rows, int64_t hidden, int turn) {
    const auto at = [&](const tuning::Rotating& of) {
      return of.Matrix(rows, hidden, FB_BF16, turn).data;
    };
    if constexpr (kForward) {
      const WideForwardArgs args = {.x = at(b.x),
                                    .residual = at(b.residual),
                                    .weight = b.weight.base(),
                                    .bias = b.bias.base(),
                                    .y = at(b.y),
                                    .sum = at(b.sum),
                                    .mean = Floats(b.mean),
                                    .rstd = Floats(b.rstd),
                                    .x_stride = hidden,
                                    .residual_stride = hidden,
                                    .y_stride = hidden,
                                    .sum_stride = hidden,
                                    .rows = rows,
                                    .hidden = hidden,
                                    .inverse_hidden = 0.0f,
                                    .eps = 1e-5f,
                                    .offset = 0.0f,
                                    .round_normed = !kCenter};
      return rms_norm::LaunchWideForward<kCenter, kAdd>(b.call, FB_BF16, policy, args);
    } else {
      const int64_t sums = rms_norm::BackwardBlocks(policy, rows, b.call.sm_count) / policy.cluster;
      float* const of_bias = kCenter ? Floats(b.partials) + sums * hidden : nullptr;
      const rms_norm::GradientArgs gradient = {.dy = at(b.dy),
                                               .x = at(b.x),
                                               .weight = b.weight.base(),
                                               .dsum = at(b.residual),
                                               .mean = Floats(b.mean),
                                               .rstd = Floats(b.rstd),
                                               .dx = at(b.y),
                                               .dy_stride = hidden,
                                               .x_stride = hidden,
                                               .dsum_stride = hidden,
                                               .dx_stride = hidden,
                                               .inverse_hidden = 0.0f,
                                               .offset = 0.0f,
                                               .round_normed = false};
      const WideBackwardArgs args = {gradient, Floats(b.partials), of_bias, rows, hidden};
      const int error = rms_norm::LaunchWideBackward<kCenter, kAdd>(b.call, FB_BF16, policy, args);
      if (error != cudaSuccess) return error;
      const PartialSums second = {of_bias, sums, hidden, b.dbias.base(), FB_BF16};
      return LaunchTwoSums({Floats(b.partials), sums, hidden, b.dweight.base(), FB_BF16},
                           kCenter ? second : PartialSums{}, true, nullptr);
    }
  }

  static void Time(const Bench& b, const Policy& policy, int64_t hidden, const char* note) {
    std::printf("%s %s H %-6lld blocks %2d pieces %d slots %2d", kNames[kOp], kName,
                static_cast<long long>(hidden), policy.cluster, policy.packs, policy.stages);
    for (const int64_t elements : {64 * kMi, 256 * kMi}) {
      const int64_t rows = elements / hidden;
      const double us = tuning::MedianUs(
          [&](int turn) { return Launch(b, policy, rows, hidden, turn); }, /*repeats=*/16);
      const auto bytes = static_cast<double>(rows * hidden) * kBytesPerElement;
      std::printf(" | %7.1f us %5.1f %%", us, us > 0.0 ? 100.0 * bytes / us / b.copy_rate : 0.0);
    }
    std::printf("%s\n", note);
  }

  static void TimeAll(const Bench& b, bool brief) {
    for (const int64_t hidden : {8192, 12288, 16384, 20480, 32768, 65536, 131072, 262144}) {
      const int64_t row_packs = hidden / 8;
      const Policy chosen = rms_norm::CutWide(b.call.sm, row_packs, kForm);
      Time(b, chosen, hidden, "  <- policy");
      if (brief) continue;
      for (const int cluster : {chosen.cluster / 2, chosen.cluster, chosen.cluster * 2}) {
        if (cluster < 2 || cluster > rms_norm::kWideCluster) continue;
        for (const int slots : {3, 4, 5, 6, 8}) {
          Policy policy = chosen;
          policy.cluster = cluster;
          policy.stages = slots;
          const int64_t most = int64_t{1024} * (policy.packs > 1 ? 2 : 1) * cluster;
          if (policy == chosen || row_packs > most || row_packs < cluster * 256) continue;
          if (slots < policy.packs + 1) continue;
          if (rms_norm::WideSharedBytes(policy, row_packs, kForm) + rms_norm::kWideStatic >
              227 * 1024)
            continue;
          Time(b, policy, hidden, "");
        }
      }
    }
  }

  static void CheckOne(const Bench& b, int64_t rows, int64_t hidden, float mean) {
    const Policy policy = rms_norm::CutWide(b.call.sm, hidden / 8, kForm);
    const int64_t count = rows * hidden;
    tuning::FillBf16(Of(b.x), count, mean, 1.0f, 1);
    tuning::FillBf16(Of(b.dy), count, 0.0f, 1.0f, 2);
    tuning::FillBf16(Of(b.residual), count, 0.0f, 1.0f, 3);
    tuning::FillBf16(Of(b.weight), hidden, 1.0f, 0.2f, 4);
    tuning::FillBf16(Of(b.bias), hidden, 0.0f, 0.2f, 5);
    const tuning::NormProblem problem = {Of(b.x),    Of(b.residual), Of(b.dy), Of(b.weight),
                                         Of(b.bias), rows,           hidden,   kCenter,
                                         kAdd,       kForward,       !kCenter};
    const tuning::NormOutputs out = {Of(b.y), Of(b.sum), Of(b.dweight), Of(b.dbias)};
    const tuning::NormReference reference(problem, Floats(b.mean), Floats(b.rstd));
    uint64_t bits[2] = {};
    double apart = 0.0;
    for (uint64_t& of_run : bits) {
      Check(cudaMemset(b.y.base(), 0xff, static_cast<size_t>(count) * 2));
      Check(Launch(b, policy, rows, hidden, 0));
      apart = std::max(apart, reference.Apart(out));
      of_run = tuning::BitsOf(b.y.base(), count * 2);
      if (!kForward) of_run ^= tuning::BitsOf(b.dweight.base(), hidden * 2);
    }
    std::printf("%s %s %s %lld x %lld mean %.0f: %.4f %s\n",
                apart < 0.008 && bits[0] == bits[1] ? "ok  " : "FAIL", kNames[kOp], kName,
                static_cast<long long>(rows), static_cast<long long>(hidden), mean, apart,
                bits[0] == bits[1] ? "bits equal" : "BITS DIFFER");
  }

  // One cluster, whose places of rows are used again, or its slots alone, or slots of several
  // pieces; slices that fill their slots, and others. No more rows than that: racecheck takes 0.3
  // to 0.6 s for one of 16392, 2 s for one of 65536 (H200, 13 such processes at once).
  static void Race(Bench b) {
    for (const auto& [rows, hidden] : {std::pair<int64_t, int64_t>{rms_norm::kWideTurns + 3, 16392},
                                       {rms_norm::kWideSlots + 1, 65536},
                                       {3, 140000}}) {
      const Policy policy = rms_norm::CutWide(b.call.sm, hidden / 8, kForm);
      b.call.sm_count = policy.cluster;
      Check(Launch(b, policy, rows, hidden, 0));
      Check(cudaDeviceSynchronize());
      std::printf("ran %s %s %lld x %lld\n", kNames[kOp], kName, static_cast<long long>(rows),
                  static_cast<long long>(hidden));
      std::fflush(stdout);  // Shows how far a checker came that was not let finish.
    }
  }

  static void CheckAll(const Bench& b) {
    for (const float mean : {0.0f, 100.0f}) {
      if (!kCenter && mean != 0.0f) continue;
      for (const int64_t rows : {1, 7, 131, 133}) {
        for (const int64_t hidden : {8200, 16392, 20480, 40008, 65536, 131080, 262144}) {
          CheckOne(b, rows, hidden, mean);
        }
      }
    }
  }
};

template <Operation kOp, bool kForward>
void RunPass(const Bench& b, const auto& wants) {
  if (!wants(kNames[kOp]) || !wants(kForward ? "forward" : "backward")) return;
  if (wants("check")) {
    Pass<kOp, kForward>::CheckAll(b);
  } else if (wants("race")) {
    Pass<kOp, kForward>::Race(b);
  }
  if (!wants("time")) return;
  for (const auto* memory : {&b.x, &b.dy, &b.residual}) {
    tuning::FillBf16(Of(*memory), kBytes / 2, 0.0f, 1.0f, 1);
  }
  Pass<kOp, kForward>::TimeAll(b, wants("brief"));
}

int Main(int argc, char** argv) {
  const Bench b;
  // Of each group of words what is named, or all of it; `brief` only if named.
  const auto wants = [&](const char* what) {
    const std::vector<std::vector<const char*>> groups = {{"check", "time", "race"},
                                                          {kNames[0], kNames[1], kNames[2]},
                                                          {"forward", "backward"},
                                                          {"brief"}};
    const auto named = [&](const char* word) {
      return std::any_of(argv + 1, argv + argc,
                         [&](const char* arg) { return std::strcmp(arg, word) == 0; });
    };
    if (named(what)) return true;
    for (const auto& group : groups) {
      const auto is = [&](const char* word) { return std::strcmp(word, what) == 0; };
      if (std::any_of(group.begin(), group.end(), is)) {
        return group.size() > 1 && std::none_of(group.begin(), group.end(), named);
      }
    }
    return false;
  };
  RunPass<kRms, true>(b, wants);
  RunPass<kRms, false>(b, wants);
  RunPass<kAddRms, true>(b, wants);
  RunPass<kAddRms, false>(b, wants);
  RunPass<kLayer, true>(b, wants);
  RunPass<kLayer, false>(b, wants);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
