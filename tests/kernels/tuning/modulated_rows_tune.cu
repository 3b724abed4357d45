// Times the kernels of modulated_rms_norm for many rows to a row of scale in bf16 on device 0, over
// the ways to cut them, as shares of the copy rate of the same run; and compares the results of the
// cuts with one another. Its numbers go into the policies' comments.
//
//   modulated_rows_tune [forward|backward] [brief: 16 x 1024 x 4096 alone | profile: once each]

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/common/launch.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_backward_slices.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_sums.cuh"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

using modulated_rms_norm::BackwardArgs;
using rms_norm::CeilDiv;
using rms_norm::Policy;
using tuning::Check;

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int64_t kSmallBytes = int64_t{4} << 20;
constexpr int kRepeats = 16;
constexpr int64_t kCompared = int64_t{1} << 20;  // Elements of y and dx, at most.

struct Shape {
  int64_t groups;
  int64_t group_rows;
  int64_t hidden;

  int64_t rows() const { return groups * group_rows; }
};

struct Bench {
  tuning::Rotating x{kBytes}, dy{kBytes}, y{kBytes}, scale{kSmallBytes}, shift{kSmallBytes};
  tuning::Rotating weight{kSmallBytes}, rstd{kSmallBytes}, dweight{kSmallBytes};
  tuning::Rotating dscale{kSmallBytes}, dshift{kSmallBytes}, sums{kBytes};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

BFloat16* Of(const tuning::Rotating& r) { return reinterpret_cast<BFloat16*>(r.base()); }

char* At(const tuning::Rotating& of, const Shape& s, int turn) {
  return static_cast<char*>(of.Matrix(s.rows(), s.hidden, FB_BF16, turn).data);
}

std::vector<float> Read(const tuning::Rotating& from, int64_t count) {
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  Check(cudaMemcpy(bits.data(), from.base(), bits.size() * 2, cudaMemcpyDeviceToHost));
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    const uint32_t word = uint32_t{bits[i]} << 16;
    std::memcpy(&values[i], &word, 4);
  }
  return values;
}

// The largest distance of `got` from `want`, which is `got` where there was none.
double Apart(const std::vector<float>& got, std::vector<float>* want) {
  if (want->empty()) *want = got;
  double most = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double apart = std::abs(got[i] - (*want)[i]) / (1.0 + std::abs((*want)[i]));
    most = apart <= most ? most : apart;  // NaN wins.
  }
  return most;
}

void Print(const Bench& b, const char* pass, const Shape& s, const char* name, double us, int bytes,
           double apart) {
  std::printf("%s %lld x %lld x %-6lld %-44s %7.1f us %5.1f %%  apart %.4f\n", pass,
              static_cast<long long>(s.groups), static_cast<long long>(s.group_rows),
              static_cast<long long>(s.hidden), name, us,
              100.0 * static_cast<double>(s.rows() * s.hidden * bytes) / us / b.copy_rate, apart);
}

// ---- Forward ----

struct ForwardForm {
  const char* name;
  void (*kernel)(rms_norm::ModulatedForwardArgs);
  int warps;
  int packs;
  int rows;
};

template <int kWarps, int kPacks, int kRows, int kResident>
constexpr ForwardForm FormOf(const char* name) {
  return {
      name,
      modulated_rms_norm::ModulatedForwardRowsKernel<BFloat16, kWarps, kPacks, kRows, kResident>,
      kWarps, kPacks, kRows};
}

const ForwardForm kForwardForms[] = {
    FormOf<8, 4, 1, 24>("1 row  4 packs 80 registers"),
    FormOf<8, 2, 2, 32>("2 rows 2 packs 64 registers"),
    FormOf<8, 2, 4, 24>("4 rows 2 packs 80 registers"),
    FormOf<8, 4, 2, 16>("2 rows 4 packs 128 registers"),
    FormOf<4, 2, 2, 32>("2 rows 2 packs 64 registers, 4 warps"),
    FormOf<16, 2, 2, 32>("2 rows 2 packs 64 registers, 16 warps"),
    FormOf<16, 4, 1, 16>("1 row  4 packs 128 registers, 16 warps"),
    FormOf<16, 4, 2, 16>("2 rows 4 packs 128 registers, 16 warps")};

// Threads of a block, or 0 where the form is not for the row.
int ThreadsOf(const ForwardForm& form, int64_t hidden) {
  const int64_t of_warp = int64_t{256} * form.packs;
  const int64_t warps = CeilDiv(hidden, of_warp);
  return warps > form.warps || 2 * warps < form.warps ? 0 : static_cast<int>(warps * 32);
}

int Run(const Bench& b, const ForwardForm& form, const Shape& s, int turn) {
  rms_norm::ModulatedForwardArgs args = {};
  args.x = At(b.x, s, turn);
  args.weight = b.weight.base();
  args.y = At(b.y, s, turn);
  args.rstd = reinterpret_cast<float*>(b.rstd.base());
  args.x_stride = args.y_stride = s.hidden;
  args.inverse_hidden = 1.0f / static_cast<float>(s.hidden);
  args.norm = {s.rows(), s.hidden, 1e-6f, 0.0f, /*round_normed=*/true};
  args.modulation = {b.scale.base(), b.shift.base(), s.hidden,    s.hidden,
                     FB_BF16,        FB_BF16,        s.group_rows};
  return LaunchKernel(form.kernel,
                      {.blocks = s.groups * CeilDiv(s.group_rows, form.rows),
                       .threads = dim3(static_cast<unsigned>(ThreadsOf(form, s.hidden)))},
                      args);
}

void TimeForward(const Bench& b, const Shape& s) {
  std::vector<float> want;
  for (const ForwardForm& form : kForwardForms) {
    if (ThreadsOf(form, s.hidden) == 0) continue;
    Check(cudaMemset(b.y.base(), 0xff, static_cast<size_t>(s.rows() * s.hidden) * 2));
    Check(Run(b, form, s, 0));
    const double apart = Apart(Read(b.y, std::min(kCompared, s.rows() * s.hidden)), &want);
    const double us = tuning::MedianUs([&](int turn) { return Run(b, form, s, turn); }, kRepeats);
    Print(b, "forward ", s, form.name, us, 4, apart);
  }
}

// ---- Backward ----

struct BackwardForm {
  const char* name;
  void (*kernel)(BackwardArgs);
  int packs;
  int threads;
  int rows;
  int blocks;
  int stages;
};

template <int kPacks>
constexpr auto kSlices =
    modulated_rms_norm::BackwardSlicesKernel<BFloat16, BFloat16, kPacks, false>;

const BackwardForm kBackwardForms[] = {
    {"2 packs 256 threads 2 rows 2 stages", kSlices<2>, 2, 256, 2, 1, 2},
    {"2 packs 256 threads 2 blocks 2 stages", kSlices<2>, 2, 256, 1, 2, 2},
    {"2 packs 256 threads 2 rows 3 stages", kSlices<2>, 2, 256, 2, 1, 3},
    {"4 packs 128 threads 4 rows 2 stages", kSlices<4>, 4, 128, 4, 1, 2},
    {"2 packs 128 threads 4 rows 2 stages", kSlices<2>, 2, 128, 4, 1, 2},
    {"2 packs 64 threads 8 rows 2 stages", kSlices<2>, 2, 64, 8, 1, 2},
    {"4 packs 32 threads 4 rows 3 blocks 2 stages", kSlices<4>, 4, 32, 4, 3, 2},
    {"4 packs 32 threads 16 rows 2 stages", kSlices<4>, 4, 32, 16, 1, 2},
    {"4 packs 64 threads 8 rows 2 stages", kSlices<4>, 4, 64, 8, 1, 2},
    {"4 packs 256 threads 2 blocks 2 stages", kSlices<4>, 4, 256, 1, 2, 2},
    {"4 packs 256 threads 2 rows 1 stage", kSlices<4>, 4, 256, 2, 1, 1},
    {"2 packs 512 threads 2 stages", kSlices<2>, 2, 512, 1, 1, 2},
    {"2 packs 512 threads 3 stages", kSlices<2>, 2, 512, 1, 1, 3},
    {"4 packs 512 threads 2 stages", kSlices<4>, 4, 512, 1, 1, 2}};

int Run(const Bench& b, const BackwardForm& form, const Shape& s, bool has_weight, int turn) {
  const Policy policy = {.packs = form.packs,
                         .threads_per_row = form.threads,
                         .rows_per_block = form.rows,
                         .cluster = 1,
                         .blocks_per_sm = form.blocks,
                         .stages = form.stages,
                         .shared_weight = true};
  const int64_t resident = modulated_rms_norm::Resident(policy, b.call.sm_count);
  BackwardArgs args = {};
  args.dy = At(b.dy, s, turn), args.x = At(b.x, s, turn), args.dx = At(b.y, s, turn);
  args.weight = has_weight ? b.weight.base() : nullptr;
  args.scale = b.scale.base();
  args.rstd = reinterpret_cast<const float*>(b.rstd.base());
  args.dscale = {b.dscale.base(), FB_BF16};
  args.dshift = {b.dshift.base(), FB_BF16};
  args.dweight = {has_weight ? b.dweight.base() : nullptr, FB_BF16};
  args.dy_stride = args.x_stride = args.dx_stride = args.scale_stride = s.hidden;
  args.weight_dtype = args.scale_dtype = FB_BF16;
  args.stages = form.stages;
  args.shared_factor = true;
  args.groups = s.groups, args.group_rows = s.group_rows;
  args.slices = modulated_rms_norm::SelectSlices(s.groups, s.group_rows, form.rows, resident, true);
  args.norm = {s.rows(), s.hidden, 1e-6f, 0.0f, /*round_normed=*/true};
  const int64_t slices = s.groups * args.slices.per_group;
  args.dy_normed_sums = reinterpret_cast<float*>(b.sums.base());
  args.dy_sums = args.dy_normed_sums + slices * s.hidden;
  const LaunchShape shape = {
      .blocks = std::min(slices, resident),
      .threads = dim3(static_cast<unsigned>(form.threads), static_cast<unsigned>(form.rows)),
      .shared_bytes = static_cast<int>(rms_norm::BackwardSharedBytes(policy, 2, 2))};
  if (const int error = LaunchKernel(form.kernel, shape, args)) return error;
  return modulated_rms_norm::LaunchGroupSums(args, true, nullptr);
}

bool Covers(const BackwardForm& form, int64_t hidden) {
  const int64_t most = int64_t{8} * form.packs * form.threads;
  if (hidden > most || 2 * hidden <= most) return false;
  const Policy policy = {form.packs, form.threads, form.rows, 1, form.blocks, form.stages, true};
  return rms_norm::FitsShared(policy, 90, 2, 2);
}

void TimeBackward(const Bench& b, const Shape& s) {
  const auto* const forward =
      std::find_if(std::begin(kForwardForms), std::end(kForwardForms),
                   [&](const ForwardForm& form) { return ThreadsOf(form, s.hidden) > 0; });
  Check(Run(b, *forward, s, 0));  // For rstd.
  std::vector<float> want[4];
  for (const BackwardForm& form : kBackwardForms) {
    if (!Covers(form, s.hidden)) continue;
    Check(LoadKernel(form.kernel, true));
    Check(cudaMemset(b.y.base(), 0xff, static_cast<size_t>(s.rows() * s.hidden) * 2));
    Check(Run(b, form, s, true, 0));
    double apart = Apart(Read(b.y, std::min(kCompared, s.rows() * s.hidden)), &want[0]);
    apart = std::max(apart, Apart(Read(b.dscale, s.groups * s.hidden), &want[1]));
    apart = std::max(apart, Apart(Read(b.dshift, s.groups * s.hidden), &want[2]));
    apart = std::max(apart, Apart(Read(b.dweight, s.hidden), &want[3]));
    for (const bool has_weight : {true, false}) {
      const double us =
          tuning::MedianUs([&](int turn) { return Run(b, form, s, has_weight, turn); }, kRepeats);
      Print(b, has_weight ? "backward, weight" : "backward        ", s, form.name, us, 6, apart);
    }
  }
}

int Main(int argc, char** argv) {
  const auto named = [&](const char* what) {
    return std::any_of(argv + 1, argv + argc,
                       [&](const char* arg) { return std::strcmp(arg, what) == 0; });
  };
  const bool both = !named("forward") && !named("backward");
  const Bench b;
  tuning::FillBf16(Of(b.x), kBytes / 2, 0.2f, 1.0f, 1);
  tuning::FillBf16(Of(b.dy), kBytes / 2, 0.0f, 1.0f, 2);
  tuning::FillBf16(Of(b.scale), kSmallBytes / 2, 0.0f, 0.3f, 3);
  tuning::FillBf16(Of(b.shift), kSmallBytes / 2, 0.0f, 0.3f, 4);
  tuning::FillBf16(Of(b.weight), kSmallBytes / 2, 1.0f, 0.2f, 5);
  const Shape usual = {16, 1024, 4096};
  if (named("profile")) {
    for (const int i : {0, 1}) Check(Run(b, kForwardForms[i], usual, 0));
    for (const int i : {0, 1}) {
      Check(LoadKernel(kBackwardForms[i].kernel, true));
      Check(Run(b, kBackwardForms[i], usual, true, 0));
    }
    Check(cudaDeviceSynchronize());
    return EXIT_SUCCESS;
  }
  const std::vector<Shape> shapes = {usual,           {64, 1024, 1024}, {16, 2048, 2048},
                                     {16, 800, 5120}, {16, 512, 8192},  {4, 1024, 16384}};
  for (const Shape& s : shapes) {
    if (named("brief") && s.hidden != usual.hidden) continue;
    if (both || named("forward")) TimeForward(b, s);
    if (both || named("backward")) TimeBackward(b, s);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
