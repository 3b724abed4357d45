// Times modulated_rms_norm's kernels for wide rows in bf16 on device 0, as their policies cut a row
// and otherwise, as shares of the copy rate of the same run by 4 and 6 bytes per element of x; and
// compares what they compute with sums in f64.
//
//   wide_modulated_tune [check|time|few|once|race]
//
// Only if named: few, with few rows to an example; once, what a profiler is to look at; race, what
// compute-sanitizer's racecheck can follow.

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/modulated_rms_norm/wide_backward_launch.cuh"
#include "kernels/modulated_rms_norm/wide_forward_launch.cuh"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

namespace modulated = modulated_rms_norm;
using rms_norm::Policy;
using tuning::Check;

constexpr int64_t kMi = int64_t{1} << 20;
constexpr int64_t kBytes = 512 * kMi;

struct Bench {
  tuning::Rotating x{kBytes}, dy{kBytes}, y{kBytes}, scale{kBytes}, shift{kBytes};
  tuning::Rotating dscale{kBytes}, dshift{kBytes}, partials{2048 * kMi};
  tuning::Rotating weight{4 * kMi}, dweight{4 * kMi}, rstd{4 * kMi};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

BFloat16* Of(const tuning::Rotating& r) { return reinterpret_cast<BFloat16*>(r.base()); }
float* Floats(const tuning::Rotating& r) { return reinterpret_cast<float*>(r.base()); }

struct Shape {
  int64_t examples;
  int64_t example_rows;
  int64_t hidden;

  int64_t rows() const { return examples * example_rows; }
};

// Whether the forward gives clusters every n-th row.
enum class Strides { kAsChosen, kAlways, kNever };

int Launch(const Bench& b, bool forward, const Policy& policy, Shape s, bool weight, int turn,
           Strides strides = Strides::kAsChosen) {
  const auto at = [&](const tuning::Rotating& of, int64_t rows) {
    return of.Matrix(rows, s.hidden, FB_BF16, turn).data;
  };
  rms_norm::WideExamples examples = {};
  examples.scale = at(b.scale, s.examples);
  examples.scale_stride = s.hidden;
  examples.rows = static_cast<int32_t>(s.example_rows);
  if (forward) {
    modulated::WideModulatedForwardArgs args = {};
    args.x = at(b.x, s.rows());
    args.weight = weight ? b.weight.base() : nullptr;
    args.y = at(b.y, s.rows());
    args.rstd = Floats(b.rstd);
    args.x_stride = args.y_stride = args.hidden = args.shift_stride = s.hidden;
    args.rows = s.rows();
    args.eps = 1e-5f;
    args.round_normed = true;
    args.examples = examples;
    args.shift = at(b.shift, s.examples);
    const int64_t clusters = modulated::WideClusters(b.call, policy, s.rows());
    const bool chosen = modulated::InStrides(clusters, s.example_rows);
    const bool in_strides = strides == Strides::kAsChosen ? chosen : strides == Strides::kAlways;
    return modulated::LaunchWideForward(b.call, FB_BF16, policy, args, in_strides);
  }
  const int64_t sums = modulated::WideClusters(b.call, policy, s.rows()) * s.hidden;
  modulated::WideModulatedBackwardArgs args = {};
  args.dy = at(b.dy, s.rows());
  args.x = at(b.x, s.rows());
  args.weight = weight ? b.weight.base() : nullptr;
  args.rstd = Floats(b.rstd);
  args.dx = at(b.y, s.rows());
  args.weight_partials = Floats(b.partials);
  args.bias_partials = Floats(b.partials) + 2 * sums;
  args.dweight_partials = weight ? Floats(b.partials) + 4 * sums : nullptr;
  args.dy_stride = args.x_stride = args.dx_stride = args.hidden = s.hidden;
  args.rows = s.rows();
  args.round_normed = true;
  args.examples = examples;
  args.dscale = at(b.dscale, s.examples);
  args.dshift = at(b.dshift, s.examples);
  return modulated::LaunchWideBackward(b.call, FB_BF16, policy, args,
                                       weight ? b.dweight.base() : nullptr);
}

rms_norm::WideForm FormOf(bool forward, int64_t hidden) {
  return forward ? modulated::WideForwardForm(2) : modulated::WideBackwardForm(2, hidden / 8);
}

Policy PolicyOf(const Bench& b, bool forward, int64_t hidden) {
  return rms_norm::CutWide(b.call.sm, hidden / 8, FormOf(forward, hidden));
}

void Time(const Bench& b, bool forward, const Policy& policy, Shape s, bool weight,
          const char* note, Strides strides = Strides::kAsChosen) {
  const double us = tuning::MedianUs(
      [&](int turn) { return Launch(b, forward, policy, s, weight, turn, strides); },
      /*repeats=*/12);
  const auto bytes = static_cast<double>(s.rows() * s.hidden) * (forward ? 4 : 6);
  std::printf(
      "%s %3lld x %4lld x %-6lld w %d blocks %2d pieces %d slots %d | %7.1f us %5.1f %%%s\n",
      forward ? "forward " : "backward", static_cast<long long>(s.examples),
      static_cast<long long>(s.example_rows), static_cast<long long>(s.hidden), weight,
      policy.cluster, policy.packs, policy.stages, us,
      us > 0.0 ? 100.0 * bytes / us / b.copy_rate : 0.0, note);
}

void TimeOthers(const Bench& b, bool forward, Shape s) {
  const Policy chosen = PolicyOf(b, forward, s.hidden);
  const int64_t row_packs = s.hidden / 8;
  for (const int cluster : {chosen.cluster / 2, chosen.cluster, chosen.cluster * 2}) {
    if (cluster < 1 || cluster > rms_norm::kWideCluster) continue;
    for (const int slots : {3, 4, 6, 8}) {
      Policy policy = chosen;
      policy.cluster = cluster;
      policy.stages = slots;
      const int64_t most = int64_t{1024} * (policy.packs > 1 ? 2 : 1) * cluster;
      if (policy == chosen || row_packs > most || row_packs < cluster * 256) continue;
      if (slots < policy.packs + 1) continue;
      const rms_norm::WideForm form = FormOf(forward, s.hidden);
      const int64_t bytes = rms_norm::WideSharedBytes(policy, row_packs, form);
      if (bytes + rms_norm::kWideStatic > 227 * 1024) continue;
      Time(b, forward, policy, s, true, "");
    }
  }
}

constexpr Shape kShapes[] = {{16, 1024, 12288}, {16, 1024, 16384}, {16, 512, 32768},
                             {16, 256, 65536},  {16, 128, 131072}, {16, 64, 262144},
                             {16, 16, 262144},  {64, 16, 65536}};

void TimeAll(const Bench& b) {
  for (const bool forward : {true, false}) {
    for (const Shape& s : kShapes) {
      const Policy policy = PolicyOf(b, forward, s.hidden);
      for (const bool weight : {true, false}) Time(b, forward, policy, s, weight, "  <- policy");
      if (forward) Time(b, forward, policy, s, true, "  one by one", Strides::kNever);
      if (forward) Time(b, forward, policy, s, true, "  every n-th", Strides::kAlways);
      TimeOthers(b, forward, s);
    }
  }
}

void TimeFew(const Bench& b) {
  for (const int64_t hidden : {16384, 65536, 262144}) {
    for (const int64_t rows : {1, 2, 4, 8}) {
      const Shape s = {128 * kMi / hidden / rows, rows, hidden};
      for (const bool forward : {true, false}) {
        Time(b, forward, PolicyOf(b, forward, hidden), s, false, "");
      }
    }
  }
}

void CheckOne(const Bench& b, bool forward, Shape s, bool weight) {
  const Policy policy = PolicyOf(b, forward, s.hidden);
  const Strides strides = s.examples % 2 == 0 ? Strides::kNever : Strides::kAlways;
  const int64_t count = s.rows() * s.hidden;
  tuning::FillBf16(Of(b.x), count, 0.0f, 1.0f, 1);
  tuning::FillBf16(Of(b.dy), count, 0.0f, 1.0f, 2);
  tuning::FillBf16(Of(b.scale), s.examples * s.hidden, 0.0f, 0.3f, 3);
  tuning::FillBf16(Of(b.weight), s.hidden, 1.0f, 0.2f, 4);
  tuning::FillBf16(Of(b.shift), s.examples * s.hidden, 0.0f, 0.3f, 5);
  tuning::NormProblem problem = {};
  problem.x = Of(b.x);
  problem.dy = Of(b.dy);
  problem.weight = weight ? Of(b.weight) : nullptr;
  problem.rows = s.rows();
  problem.hidden = s.hidden;
  problem.forward = forward;
  problem.rounds = true;
  problem.scale = Of(b.scale);
  problem.shift = Of(b.shift);
  problem.example_rows = s.example_rows;
  const tuning::NormOutputs out = {Of(b.y), nullptr,      Of(b.dweight),
                                   nullptr, Of(b.dscale), Of(b.dshift)};
  const tuning::NormReference reference(problem, Floats(b.dweight), Floats(b.rstd));
  uint64_t bits[2] = {};
  double apart = 0.0;
  for (uint64_t& of_run : bits) {
    const auto of_examples = static_cast<size_t>(s.examples * s.hidden) * 2;
    Check(cudaMemset(b.y.base(), 0xff, static_cast<size_t>(count) * 2));
    Check(cudaMemset(b.dscale.base(), 0xff, of_examples));
    Check(cudaMemset(b.dshift.base(), 0xff, of_examples));
    Check(cudaMemset(b.partials.base(), 0xff, size_t{2048} * kMi));
    Check(Launch(b, forward, policy, s, weight, 0, strides));
    apart = std::max(apart, reference.Apart(out));
    of_run = tuning::BitsOf(b.y.base(), count * 2);
    if (forward) continue;
    of_run = of_run * 31 + tuning::BitsOf(b.dscale.base(), s.examples * s.hidden * 2);
    of_run = of_run * 31 + tuning::BitsOf(b.dshift.base(), s.examples * s.hidden * 2);
    if (weight) of_run = of_run * 31 + tuning::BitsOf(b.dweight.base(), s.hidden * 2);
  }
  std::printf("%s %s %lld x %lld x %lld weight %d: %.4f %s\n",
              apart < 0.008 && bits[0] == bits[1] ? "ok  " : "FAIL",
              forward ? "forward" : "backward", static_cast<long long>(s.examples),
              static_cast<long long>(s.example_rows), static_cast<long long>(s.hidden), weight,
              apart, bits[0] == bits[1] ? "bits equal" : "BITS DIFFER");
}

void CheckAll(const Bench& b) {
  // Examples of one cluster and of several, clusters with parts of several; few rows in all.
  const Shape shapes[] = {{7, 1, 8200},   {5, 3, 16392},   {41, 3, 20480},  {3, 64, 16384},
                          {1, 131, 8200}, {9, 16, 65536},  {40, 1, 40008},  {2, 64, 131072},
                          {3, 3, 131080}, {11, 5, 262144}, {1, 40, 200008}, {30, 1, 262144}};
  for (const bool forward : {true, false}) {
    for (const Shape& s : shapes) {
      for (const bool weight : {true, false}) CheckOne(b, forward, s, weight);
    }
  }
}

// One cluster, whose slots and places of rows and examples are used again.
void Race(Bench b) {
  for (const bool forward : {true, false}) {
    for (const int64_t hidden : {16392, 65536, 140000}) {
      const Policy policy = PolicyOf(b, forward, hidden);
      b.call.sm_count = policy.cluster;
      Check(Launch(b, forward, policy, {7, 3, hidden}, true, 0));
      Check(cudaDeviceSynchronize());
    }
  }
}

// What a profiler is to look at.
void Once(const Bench& b) {
  for (const Shape& s : kShapes) {
    for (const bool weight : {true, false}) {
      Check(Launch(b, false, PolicyOf(b, false, s.hidden), s, weight, 0));
    }
  }
  Check(cudaDeviceSynchronize());
}

int Main(int argc, char** argv) {
  const Bench b;
  const auto named = [&](const char* word) {
    return std::any_of(argv + 1, argv + argc,
                       [&](const char* arg) { return std::strcmp(arg, word) == 0; });
  };
  if (named("check") || argc == 1) CheckAll(b);
  if (named("race")) Race(b);
  for (const auto* memory : {&b.x, &b.dy, &b.scale, &b.shift}) {
    tuning::FillBf16(Of(*memory), kBytes / 2, 0.0f, 1.0f, 1);
  }
  if (named("time") || argc == 1) TimeAll(b);
  if (named("few")) TimeFew(b);
  if (named("once")) Once(b);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
