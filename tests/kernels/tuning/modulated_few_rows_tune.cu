// Times the kernels of modulated_rms_norm for few rows of bf16 on device 0, forward, backward and
// both, beside the kernels for many rows; and compares their results. Its numbers go into the
// policies' comments.
//
//   modulated_few_rows_tune [groups group_rows hidden ...]

#include <cmath>

#include "kernels/common/launch.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_backward.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_few_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_sums.cuh"
#include "kernels/rms_norm/few_rows_forward.cuh"
#include "tests/kernels/tuning/few_rows_timer.h"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

using rms_norm::CeilDiv;
using rms_norm::Policy;
using tuning::Check;

constexpr int64_t kSets = 4;  // As the benchmark has.
constexpr int64_t kBytes = int64_t{64} << 20;

struct Shape {
  int64_t groups;
  int64_t group_rows;
  int64_t hidden;

  int64_t rows() const { return groups * group_rows; }
  std::string Name() const {
    return std::to_string(groups) + "x" + std::to_string(group_rows) + "x" +
           std::to_string(hidden) + " ";
  }
};

struct Bench {
  tuning::Rotating x{kSets * kBytes}, dy{kSets * kBytes}, y{kSets * kBytes}, dx{kSets * kBytes};
  tuning::Rotating scale{kSets * kBytes}, shift{kSets * kBytes}, dscale{kBytes}, dshift{kBytes};
  tuning::Rotating weight{kBytes}, rstd{kBytes}, dweight{kBytes}, sums{int64_t{256} << 20};
  int sm_count = tuning::NewCall().sm_count;
};

BFloat16* Of(const tuning::Rotating& r) { return reinterpret_cast<BFloat16*>(r.base()); }

char* At(const tuning::Rotating& of, Shape s, int turn) {
  return of.base() + turn % kSets * s.rows() * s.hidden * 2;
}
char* GroupAt(const tuning::Rotating& of, Shape s, int turn) {
  return of.base() + turn % kSets * s.groups * s.hidden * 2;
}

using Run = int (*)(const Bench&, Shape, int turn);

// ---- Forward ----

rms_norm::ModulatedForwardArgs ForwardArgsOf(const Bench& b, Shape s, int turn) {
  rms_norm::ModulatedForwardArgs args = {};
  args.x = At(b.x, s, turn);
  args.weight = b.weight.base();
  args.y = At(b.y, s, turn);
  args.rstd = reinterpret_cast<float*>(b.rstd.base());
  args.x_stride = args.y_stride = s.hidden;
  args.inverse_hidden = 1.0f / static_cast<float>(s.hidden);
  args.norm = {s.rows(), s.hidden, 1e-6f, 0.0f, /*round_normed=*/true};
  args.modulation = {GroupAt(b.scale, s, turn),
                     GroupAt(b.shift, s, turn),
                     s.hidden,
                     s.hidden,
                     FB_BF16,
                     FB_BF16,
                     s.group_rows};
  return args;
}

template <int kWarps, int kPacks, int kRows, int kResident>
int RunRows(const Bench& b, Shape s, int turn) {
  const int64_t warps = CeilDiv(s.hidden / 8, int64_t{32} * kPacks);
  if (warps > kWarps) return cudaErrorInvalidValue;
  return LaunchKernel(
      modulated_rms_norm::ModulatedForwardRowsKernel<BFloat16, kWarps, kPacks, kRows, kResident>,
      {.blocks = s.groups * CeilDiv(s.group_rows, kRows),
       .threads = dim3(static_cast<unsigned>(warps * 32))},
      ForwardArgsOf(b, s, turn));
}

// As many rows have it.
int RunForward(const Bench& b, Shape s, int turn) {
  if (s.group_rows == 1) return RunRows<8, 4, 1, 24>(b, s, turn);
  return s.hidden <= 4096 ? RunRows<8, 2, 2, 32>(b, s, turn) : RunRows<8, 4, 2, 16>(b, s, turn);
}

template <int kPacks, bool kDependent>
int RunFewForward(const Bench& b, Shape s, int turn) {
  const Policy p = rms_norm::CutRow(s.hidden / 8, kPacks, 512, 1, 32);
  if (p.packs == 0 || p.threads_per_row < 32) return cudaErrorInvalidValue;
  return LaunchKernel(rms_norm::FewRowsForwardKernel<BFloat16, false, true, kPacks>,
                      {.blocks = s.rows(),
                       .threads = dim3(static_cast<unsigned>(p.threads_per_row)),
                       .dependent = kDependent},
                      ForwardArgsOf(b, s, turn));
}

// ---- Backward ----

template <int kPacks>
int RunManyOf(const Bench& b, Shape s, int turn, const Policy& policy) {
  const int64_t resident = modulated_rms_norm::Resident(policy, b.sm_count);
  modulated_rms_norm::BackwardArgs args = {};
  args.dy = At(b.dy, s, turn), args.x = At(b.x, s, turn), args.dx = At(b.dx, s, turn);
  args.weight = b.weight.base();
  args.scale = GroupAt(b.scale, s, turn);
  args.rstd = reinterpret_cast<const float*>(b.rstd.base());
  args.dscale = {b.dscale.base(), FB_BF16};
  args.dshift = {b.dshift.base(), FB_BF16};
  args.dweight = {b.dweight.base(), FB_BF16};
  args.dy_stride = args.x_stride = args.dx_stride = args.scale_stride = s.hidden;
  args.weight_dtype = args.scale_dtype = FB_BF16;
  args.stages = policy.stages;
  args.shared_factor = true;
  args.groups = s.groups, args.group_rows = s.group_rows;
  args.slices = modulated_rms_norm::SelectSlices(s.groups, s.group_rows, policy.rows_per_block,
                                                 resident, /*has_dweight=*/true);
  args.direct = args.slices.per_group == 1;
  args.norm = {s.rows(), s.hidden, 1e-6f, 0.0f, /*round_normed=*/true};
  const int64_t slices = s.groups * args.slices.per_group;
  args.dy_normed_sums = reinterpret_cast<float*>(b.sums.base());
  args.dy_sums = args.direct ? nullptr : args.dy_normed_sums + slices * s.hidden;
  const LaunchShape shape = {
      .blocks = rms_norm::BackwardBlocks(policy, slices * policy.rows_per_block, b.sm_count),
      .threads = dim3(static_cast<unsigned>(policy.threads_per_row),
                      static_cast<unsigned>(policy.rows_per_block)),
      .shared_bytes = static_cast<int>(rms_norm::BackwardSharedBytes(policy, 2, 2))};
  const auto kernel = modulated_rms_norm::BackwardKernel<BFloat16, BFloat16, kPacks>;
  if (const int error = LaunchKernel(kernel, shape, args)) return error;
  return modulated_rms_norm::LaunchGroupSums(args, true, nullptr);
}

int RunMany(const Bench& b, Shape s, int turn) {
  const Policy policy = modulated_rms_norm::SelectBackward(90, s.hidden / 8, 2, 2);
  if (policy.packs == 1) return RunManyOf<1>(b, s, turn, policy);
  if (policy.packs == 2) return RunManyOf<2>(b, s, turn, policy);
  return RunManyOf<4>(b, s, turn, policy);
}

template <int kThreads, int kBatch, int kBlocks, bool kDependent = false>
int RunFew(const Bench& b, Shape s, int turn) {
  modulated_rms_norm::FewRowsArgs args = {};
  args.dy = At(b.dy, s, turn), args.x = At(b.x, s, turn), args.dx = At(b.dx, s, turn);
  args.weight = b.weight.base();
  args.scale = GroupAt(b.scale, s, turn);
  args.rstd = reinterpret_cast<const float*>(b.rstd.base());
  args.dweight = b.dweight.base(), args.dscale = b.dscale.base(), args.dshift = b.dshift.base();
  args.dy_stride = args.x_stride = args.dx_stride = args.scale_stride = s.hidden;
  args.dweight_dtype = FB_BF16;
  args.round_normed = true;
  LaunchShape shape = modulated_rms_norm::CutFewRows(s.groups, s.group_rows, s.hidden, /*bytes=*/2,
                                                     kThreads, kBatch, &args);
  shape.dependent = kDependent;
  constexpr int kPacks = 512 / kThreads;
  if (s.hidden > 8192) return cudaErrorInvalidValue;
  using modulated_rms_norm::FewRowsBackwardKernel;
  return LaunchKernel(s.hidden <= 4096
                          ? FewRowsBackwardKernel<BFloat16, kPacks, kThreads, kBatch, kBlocks>
                          : FewRowsBackwardKernel<BFloat16, 2 * kPacks, kThreads, kBatch, kBlocks>,
                      shape, args);
}

// ---- Checks and times ----

std::vector<float> ValuesOf(const void* from, int64_t count) {
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  Check(cudaMemcpy(bits.data(), from, bits.size() * 2, cudaMemcpyDeviceToHost));
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    const uint32_t word = uint32_t{bits[i]} << 16;
    std::memcpy(&values[i], &word, 4);
  }
  return values;
}

// The distance over the norm of `b`; NaN where one has it.
double Apart(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

using Results = std::vector<std::vector<float>>;

Results ResultsOf(const Bench& b, Shape s, Run run) {
  for (const tuning::Rotating* of : {&b.y, &b.dx, &b.dscale, &b.dshift, &b.dweight}) {
    Check(cudaMemset(of->base(), 0xff, static_cast<size_t>(s.rows() * s.hidden) * 2));
  }
  Check(run(b, s, 0));
  Check(cudaDeviceSynchronize());
  const int64_t of_rows = s.rows() * s.hidden;
  const int64_t of_groups = s.groups * s.hidden;
  return {ValuesOf(b.y.base(), of_rows), ValuesOf(b.dx.base(), of_rows),
          ValuesOf(b.dscale.base(), of_groups), ValuesOf(b.dshift.base(), of_groups),
          ValuesOf(b.dweight.base(), s.hidden)};
}

void Compare(const Bench& b, Shape s, const char* name, const Results& want, Run run,
             bool forward) {
  const Results got = ResultsOf(b, s, run);
  const Results again = ResultsOf(b, s, run);
  const size_t begin = forward ? 0 : 1;
  const size_t end = forward ? 1 : want.size();
  bool good = true;
  std::printf("%s%s", s.Name().c_str(), name);
  for (size_t i = begin; i < end; ++i) {
    const double apart = Apart(got[i], want[i]);
    good = good && apart < 1e-3 && got[i] == again[i];
    std::printf(" %.1e", apart);
  }
  std::printf(" %s\n", good ? "ok" : "FAIL");
}

void CheckShape(const Bench& b, Shape s) {
  const Results y = ResultsOf(b, s, RunRows<16, 4, 1, 16>);
  Compare(b, s, "forward", y, RunFewForward<1, false>, true);
  const Results want = ResultsOf(b, s, RunMany);
  Compare(b, s, "backward 512, 1", want, RunFew<512, 1, 2>, false);
  Compare(b, s, "backward 256, 2", want, RunFew<256, 2, 3>, false);
  Compare(b, s, "backward 256, 4", want, RunFew<256, 4, 2>, false);
  Compare(b, s, "backward 128, 4", want, RunFew<128, 4, 5>, false);
}

void Time(const Bench& b, Shape s, int chain) {
  std::vector<tuning::Candidate> c;
  const auto add = [&](const char* name, Run first, Run second = nullptr) {
    if (first(b, s, 0) != cudaSuccess) return;
    if (second != nullptr && second(b, s, 0) != cudaSuccess) return;
    c.push_back({(chain > 1 ? "chain " : "") + s.Name() + name, [=, &b](int turn) {
                   const int error = first(b, s, turn);
                   return error != cudaSuccess || second == nullptr ? error : second(b, s, turn);
                 }});
  };
  if (s.rows() <= 512) {
    add("forward, many", RunForward);
    add("forward, 1 row of 1 pack", RunRows<16, 1, 1, 32>);
    add("forward, few, 1 pack", RunFewForward<1, false>);
    add("forward, few, 2 packs", RunFewForward<2, false>);
    add("forward, few, 1 pack, dependent", RunFewForward<1, true>);
    add("forward, few, 2 packs, dependent", RunFewForward<2, true>);
  }
  add("backward, many", RunMany);
  add("backward, few, 512 threads, 1 row", RunFew<512, 1, 2>);
  add("backward, few, 256 threads, 1 row", RunFew<256, 1, 4>);
  add("backward, few, 256 threads, 2 rows", RunFew<256, 2, 3>);
  add("backward, few, 256 threads, 4 rows", RunFew<256, 4, 2>);
  if (s.hidden <= 4096) {
    add("backward, few, 128 threads, 2 rows", RunFew<128, 2, 5>);
    add("backward, few, 128 threads, 4 rows", RunFew<128, 4, 5>);
  }
  if (s.rows() <= 256) {
    add("both, many", RunForward, RunMany);
    add("both, few, 512 threads", RunFewForward<2, true>, RunFew<512, 1, 2, true>);
    add("both, few, 256 threads, 2 rows", RunFewForward<2, true>, RunFew<256, 2, 3, true>);
    add("both, few, 256 threads, 4 rows", RunFewForward<2, true>, RunFew<256, 4, 2, true>);
  }
  tuning::TimeInterleaved(c, chain);
}

int Main(int argc, char** argv) {
  std::vector<Shape> shapes;
  for (int i = 1; i + 2 < argc; i += 3)
    shapes.push_back({std::atoll(argv[i]), std::atoll(argv[i + 1]), std::atoll(argv[i + 2])});
  if (shapes.empty()) {
    for (const int64_t hidden : {1024, 2048, 4096, 8192}) shapes.push_back({16, 4, hidden});
    for (const int64_t group_rows : {8, 16, 32, 64, 128}) shapes.push_back({16, group_rows, 4096});
    for (const int64_t groups : {1, 2, 4, 64}) shapes.push_back({groups, 64 / groups, 4096});
    for (const int64_t groups : {1, 256}) shapes.push_back({groups, 256 / groups, 4096});
    for (const int64_t groups : {1, 1024}) shapes.push_back({groups, 1024 / groups, 4096});
    shapes.insert(shapes.end(), {{16, 8, 256},
                                 {16, 16, 256},
                                 {256, 1, 256},
                                 {16, 32, 256},
                                 {16, 32, 512},
                                 {512, 1, 512},
                                 {16, 48, 1024},
                                 {16, 64, 1024},
                                 {768, 1, 1024},
                                 {16, 64, 2048},
                                 {16, 64, 8192},
                                 {16, 128, 8192}});
  }
  const Bench b;
  tuning::FillBf16(Of(b.x), kSets * kBytes / 2, 0.1f, 1.0f, 1);
  tuning::FillBf16(Of(b.dy), kSets * kBytes / 2, 0.0f, 1.0f, 2);
  tuning::FillBf16(Of(b.scale), kSets * kBytes / 2, 0.0f, 0.3f, 3);
  tuning::FillBf16(Of(b.shift), kSets * kBytes / 2, 0.0f, 0.3f, 4);
  tuning::FillBf16(Of(b.weight), kBytes / 2, 1.0f, 0.2f, 5);
  Check(LoadKernel(modulated_rms_norm::BackwardKernel<BFloat16, BFloat16, 2>, true));
  Check(LoadKernel(modulated_rms_norm::BackwardKernel<BFloat16, BFloat16, 4>, true));
  for (const Shape s : {Shape{16, 4, 4096},
                        {1, 1, 4096},
                        {1, 37, 1000},
                        {3, 7, 264},
                        {5, 11, 1032},
                        {64, 1, 2048},
                        {130, 2, 512},
                        {9, 20, 4096},
                        {2, 33, 4096}}) {
    CheckShape(b, s);
  }
  for (const Shape s : shapes) {
    Time(b, s, 1);
    if (s.rows() <= 64) Time(b, s, 16);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
