// Times the norms on few rows of bf16 on device 0: forward, backward and both, over the ways to cut
// them, beside the kernels for many rows; and compares the backward for few rows with the other.
// Its numbers go into the policies' comments.
//
//   few_rows_tune [rows hidden ...]

#include <cmath>

#include "kernels/common/launch.cuh"
#include "kernels/common/sum_partials.cuh"
#include "kernels/layer_norm/layer_norm_backward.cuh"
#include "kernels/layer_norm/layer_norm_policy.h"
#include "kernels/rms_norm/few_rows_backward.cuh"
#include "kernels/rms_norm/few_rows_forward.cuh"
#include "kernels/rms_norm/rms_norm_backward.cuh"
#include "kernels/rms_norm/rms_norm_forward.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"
#include "tests/kernels/tuning/few_rows_timer.h"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

using rms_norm::Policy;

constexpr int64_t kSets = 4;  // As the benchmark has.
constexpr int64_t kBytes = int64_t{64} << 20;

struct Shape {
  int64_t rows;
  int64_t hidden;
};

BFloat16* Of(const tuning::Rotating& r) { return reinterpret_cast<BFloat16*>(r.base()); }

struct Bench {
  tuning::Rotating x{kSets * kBytes}, dy{kSets * kBytes}, sum{kSets * kBytes};
  tuning::Rotating y{kSets * kBytes}, dx{kSets * kBytes};
  tuning::Rotating vectors{kBytes}, workspace{int64_t{256} << 20}, other{kBytes};
  int sm_count = tuning::NewCall().sm_count;

  char* At(const tuning::Rotating& of, Shape s, int turn) const {
    return of.base() + turn % kSets * s.rows * s.hidden * 2;
  }
  char* Vector(int index) const { return vectors.base() + (int64_t{index} << 20); }
  char* weight() const { return Vector(0); }
  float* rstd() const { return reinterpret_cast<float*>(Vector(1)); }
  float* mean() const { return reinterpret_cast<float*>(Vector(2)); }
  char* dweight() const { return Vector(3); }
  char* dbias() const { return Vector(4); }
};

// ---- Forward ----

template <bool kAdd>
rms_norm::ForwardArgs ForwardArgsOf(const Bench& b, Shape s, int turn) {
  rms_norm::ForwardArgs args = {};
  args.x = b.At(b.x, s, turn);
  args.weight = b.weight();
  args.y = b.At(b.y, s, turn);
  args.rstd = b.rstd();
  args.residual = b.At(b.dy, s, turn);
  args.sum = b.At(b.sum, s, turn);
  args.residual_stride = args.sum_stride = args.x_stride = args.y_stride = s.hidden;
  args.weight_dtype = FB_BF16;
  args.inverse_hidden = 1.0f / static_cast<float>(s.hidden);
  args.norm = {s.rows, s.hidden, 1e-6f, 0.0f, true};
  return args;
}

template <bool kAdd, int kPacks>
int RunForward(const Bench& b, Shape s, int turn) {
  const Policy p = rms_norm::CutRow(s.hidden / 8, kPacks, 512, 1, 32);
  if (p.packs == 0 || p.threads_per_row < 32) return cudaErrorInvalidValue;
  return LaunchKernel(
      rms_norm::RmsNormForwardKernel<BFloat16, BFloat16, true, kAdd, false, kPacks, false>,
      {.blocks = s.rows, .threads = dim3(static_cast<unsigned>(p.threads_per_row))},
      ForwardArgsOf<kAdd>(b, s, turn));
}

// The kernel for few rows.
template <bool kAdd, int kPacks, bool kDependent>
int RunFewForward(const Bench& b, Shape s, int turn) {
  const Policy p = rms_norm::CutRow(s.hidden / 8, kPacks, 512, 1, 32);
  if (p.packs == 0 || p.threads_per_row < 32) return cudaErrorInvalidValue;
  return LaunchKernel(rms_norm::FewRowsForwardKernel<BFloat16, kAdd, false, kPacks>,
                      {.blocks = s.rows,
                       .threads = dim3(static_cast<unsigned>(p.threads_per_row)),
                       .dependent = kDependent},
                      ForwardArgsOf<kAdd>(b, s, turn));
}

// ---- Backward ----

// A persistent grid and the kernel that finishes its sums.
template <bool kCenter, bool kAdd, int kPacks>
int RunMany(const Bench& b, Shape s, int turn, const Policy& p) {
  const int64_t blocks = rms_norm::BackwardBlocks(p, s.rows, b.sm_count);
  const int other = kAdd ? 4 : 2;
  LaunchShape shape = {
      .blocks = blocks,
      .threads =
          dim3(static_cast<unsigned>(p.threads_per_row), static_cast<unsigned>(p.rows_per_block)),
      .shared_bytes = static_cast<int>(rms_norm::BackwardSharedBytes(p, 2, other))};
  auto* const partials = reinterpret_cast<float*>(b.workspace.base());
  if constexpr (kCenter) {
    layer_norm::BackwardArgs args = {};
    args.dy = b.At(b.dy, s, turn), args.x = b.At(b.x, s, turn), args.weight = b.weight();
    args.mean = b.mean(), args.rstd = b.rstd(), args.dx = b.At(b.dx, s, turn);
    args.weight_partials = partials, args.bias_partials = partials + blocks * s.hidden;
    args.dy_stride = args.x_stride = args.dx_stride = s.hidden;
    args.rows = s.rows, args.hidden = s.hidden, args.weight_dtype = FB_BF16;
    args.stages = p.stages, args.shared_weight = p.shared_weight;
    const auto kernel = layer_norm::LayerNormBackwardKernel<BFloat16, true, kPacks, false>;
    if (const int error = LaunchKernel(kernel, shape, args)) return error;
    return LaunchTwoSums({partials, blocks, s.hidden, b.dweight(), FB_BF16},
                         {args.bias_partials, blocks, s.hidden, b.dbias(), FB_BF16}, true, nullptr);
  } else {
    rms_norm::BackwardArgs args = {};
    args.dy = b.At(b.dy, s, turn), args.x = b.At(b.x, s, turn), args.weight = b.weight();
    args.rstd = b.rstd(), args.dx = b.At(b.dx, s, turn), args.partials = partials;
    if (kAdd) args.dsum = b.At(b.sum, s, turn), args.dsum_stride = s.hidden;
    args.dy_stride = args.x_stride = args.dx_stride = s.hidden;
    args.weight_dtype = FB_BF16;
    args.stages = p.stages, args.shared_weight = p.shared_weight;
    args.norm = {s.rows, s.hidden, 1e-6f, 0.0f, true};
    const auto kernel = rms_norm::RmsNormBackwardKernel<BFloat16, BFloat16, kAdd, kPacks, false>;
    if (const int error = LaunchKernel(kernel, shape, args)) return error;
    return LaunchTwoSums({partials, blocks, s.hidden, b.dweight(), FB_BF16}, {}, true, nullptr);
  }
}

template <bool kCenter, bool kAdd, int kBatch>
int RunFew(const Bench& b, Shape s, int turn, int threads, bool dependent) {
  rms_norm::FewRowsArgs args = {};
  args.dy = b.At(b.dy, s, turn), args.x = b.At(b.x, s, turn), args.weight = b.weight();
  args.mean = b.mean(), args.rstd = b.rstd(), args.dx = b.At(b.dx, s, turn);
  if (kAdd) args.dsum = b.At(b.sum, s, turn), args.dsum_stride = s.hidden;
  args.dweight = b.dweight(), args.dbias = kCenter ? b.dbias() : nullptr;
  args.dy_stride = args.x_stride = args.dx_stride = s.hidden;
  args.rows = static_cast<int32_t>(s.rows), args.row_packs = static_cast<int32_t>(s.hidden / 8);
  args.column_blocks =
      static_cast<int32_t>(rms_norm::CeilDiv(args.row_packs, rms_norm::kFewRowsTile));
  args.dweight_dtype = args.dbias_dtype = FB_BF16;
  args.inverse_hidden = 1.0f / static_cast<float>(s.hidden);
  args.round_normed = !kCenter;
  const int64_t packs = rms_norm::CeilDiv(args.row_packs, threads);
  if (packs > 4) return cudaErrorInvalidValue;
  const auto kernel =
      packs == 1   ? rms_norm::FewRowsBackwardKernel<BFloat16, kCenter, kAdd, 1, kBatch>
      : packs == 2 ? rms_norm::FewRowsBackwardKernel<BFloat16, kCenter, kAdd, 2, kBatch>
                   : rms_norm::FewRowsBackwardKernel<BFloat16, kCenter, kAdd, 4, kBatch>;
  return LaunchKernel(kernel,
                      {.blocks = args.column_blocks + s.rows,
                       .threads = dim3(static_cast<unsigned>(threads)),
                       .dependent = dependent},
                      args);
}

// ---- Checks and times ----

std::vector<float> ValuesOf(const void* from, int64_t count) {
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  tuning::Check(cudaMemcpy(bits.data(), from, bits.size() * 2, cudaMemcpyDeviceToHost));
  std::vector<float> values;
  for (const uint16_t b : bits) {
    const uint32_t word = uint32_t{b} << 16;
    float v = 0.0f;
    std::memcpy(&v, &word, 4);
    values.push_back(v);
  }
  return values;
}

double Apart(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

template <bool kCenter, bool kAdd>
Policy ManyPolicy(int64_t hidden) {
  if (kCenter) return layer_norm::SelectBackward(90, hidden / 8, 2);
  return rms_norm::SelectBackward(90, hidden / 8, 2, kAdd ? 4 : 2);
}

template <bool kCenter, bool kAdd>
int RunManyOf(const Bench& b, Shape s, int turn, const Policy& p) {
  switch (p.packs) {
    case 1:
      return RunMany<kCenter, kAdd, 1>(b, s, turn, p);
    case 2:
      return RunMany<kCenter, kAdd, 2>(b, s, turn, p);
    default:
      return RunMany<kCenter, kAdd, 4>(b, s, turn, p);
  }
}

// The three results of both, and those of the new one twice.
template <bool kCenter, bool kAdd>
void Check(const Bench& b, Shape s, const char* name) {
  const int64_t n = s.rows * s.hidden;
  const auto results = [&] {
    tuning::Check(cudaDeviceSynchronize());
    return std::vector{ValuesOf(b.At(b.dx, s, 0), n), ValuesOf(b.dweight(), s.hidden),
                       ValuesOf(b.dbias(), s.hidden)};
  };
  tuning::Check(RunManyOf<kCenter, kAdd>(b, s, 0, ManyPolicy<kCenter, kAdd>(s.hidden)));
  const auto want = results();
  const auto compare = [&](int batch, const std::function<int()>& run) {
    const auto got = [&] {
      tuning::Check(cudaMemset(b.At(b.dx, s, 0), 0xff, static_cast<size_t>(n) * 2));
      tuning::Check(cudaMemset(b.dweight(), 0xff, static_cast<size_t>(s.hidden) * 2));
      if (kCenter) tuning::Check(cudaMemset(b.dbias(), 0xff, static_cast<size_t>(s.hidden) * 2));
      tuning::Check(run());
      return results();
    };
    const auto first = got();
    const bool same = first == got();
    const double dx = Apart(first[0], want[0]);
    const double dweight = Apart(first[1], want[1]);
    const double dbias = kCenter ? Apart(first[2], want[2]) : 0.0;
    const bool good = same && dx < 1e-3 && dweight < 1e-3 && dbias < 1e-3;
    std::printf("%s %s %lldx%lld batch %d: dx %.2e dweight %.2e dbias %.2e\n",
                good ? "ok  " : "FAIL", name, static_cast<long long>(s.rows),
                static_cast<long long>(s.hidden), batch, dx, dweight, dbias);
  };
  compare(1, [&] { return RunFew<kCenter, kAdd, 1>(b, s, 0, 512, false); });
  compare(2, [&] { return RunFew<kCenter, kAdd, 2>(b, s, 0, 256, false); });
  compare(4, [&] { return RunFew<kCenter, kAdd, 4>(b, s, 0, 512, false); });
}

// y and rstd of the kernel for few rows and of the other.
template <bool kAdd>
void CheckForward(const Bench& b, Shape s) {
  const int64_t n = s.rows * s.hidden;
  const auto results = [&](int error) {
    tuning::Check(error);
    tuning::Check(cudaDeviceSynchronize());
    return std::vector{ValuesOf(b.At(b.y, s, 0), n), ValuesOf(b.rstd(), 2 * s.rows)};
  };
  const auto want = results(RunForward<kAdd, 4>(b, s, 0));
  tuning::Check(cudaMemset(b.At(b.y, s, 0), 0xff, static_cast<size_t>(n) * 2));
  const auto got = results(RunFewForward<kAdd, 1, false>(b, s, 0));
  const double y = Apart(got[0], want[0]);
  std::printf("%s forward %lldx%lld: y %.2e\n", y < 1e-3 ? "ok  " : "FAIL",
              static_cast<long long>(s.rows), static_cast<long long>(s.hidden), y);
}

void Forwards(const Bench& b, Shape s, const std::string& at, int chain) {
  std::vector<tuning::Candidate> c;
  const auto add = [&](const char* name, int (*run)(const Bench&, Shape, int)) {
    if (run(b, s, 0) != cudaSuccess) return;
    c.push_back({at + name, [=, &b](int turn) { return run(b, s, turn); }});
  };
  add("rms_norm forward packs 1", RunForward<false, 1>);
  add("rms_norm forward packs 2", RunForward<false, 2>);
  add("rms_norm forward few packs 1", RunFewForward<false, 1, false>);
  add("rms_norm forward few packs 2", RunFewForward<false, 2, false>);
  add("rms_norm forward few packs 1 dependent", RunFewForward<false, 1, true>);
  add("rms_norm forward few packs 2 dependent", RunFewForward<false, 2, true>);
  add("fused_add forward packs 1", RunForward<true, 1>);
  add("fused_add forward packs 2", RunForward<true, 2>);
  add("fused_add forward few packs 1", RunFewForward<true, 1, false>);
  add("fused_add forward few packs 2", RunFewForward<true, 2, false>);
  add("fused_add forward few packs 1 dependent", RunFewForward<true, 1, true>);
  add("fused_add forward few packs 2 dependent", RunFewForward<true, 2, true>);
  tuning::TimeInterleaved(c, chain);
}

template <bool kCenter, bool kAdd>
void Backwards(const Bench& b, Shape s, const std::string& at) {
  const Policy policy = ManyPolicy<kCenter, kAdd>(s.hidden);
  std::vector<tuning::Candidate> c = {{at + "backward many", [&b, s, policy](int turn) {
                                         return RunManyOf<kCenter, kAdd>(b, s, turn, policy);
                                       }}};
  const auto add = [&](const char* name, int threads,
                       int (*run)(const Bench&, Shape, int, int, bool)) {
    if (run(b, s, 0, threads, false) != cudaSuccess) return;
    c.push_back({at + name, [=, &b](int turn) { return run(b, s, turn, threads, false); }});
  };
  add("backward few, 512 threads, 1 row at a time", 512, RunFew<kCenter, kAdd, 1>);
  add("backward few, 512 threads, 2 rows at a time", 512, RunFew<kCenter, kAdd, 2>);
  add("backward few, 512 threads, 4 rows at a time", 512, RunFew<kCenter, kAdd, 4>);
  add("backward few, 256 threads, 2 rows at a time", 256, RunFew<kCenter, kAdd, 2>);
  add("backward few, 256 threads, 4 rows at a time", 256, RunFew<kCenter, kAdd, 4>);
  tuning::TimeInterleaved(c);
}

template <bool kAdd>
void Both(const Bench& b, Shape s, const std::string& at) {
  std::vector<tuning::Candidate> c;
  const Policy policy = ManyPolicy<false, kAdd>(s.hidden);
  const auto after = [&](const char* name, int (*forward)(const Bench&, Shape, int),
                         const std::function<int(int)>& backward) {
    if (forward(b, s, 0) != cudaSuccess) return;
    c.push_back({at + name, [=, &b](int turn) {
                   if (const int error = forward(b, s, turn)) return error;
                   return backward(turn);
                 }});
  };
  const auto few = [&b, s](int turn) { return RunFew<false, kAdd, 2>(b, s, turn, 512, true); };
  after("both: packs 4, many", RunForward<kAdd, 4>,
        [&b, s, policy](int turn) { return RunManyOf<false, kAdd>(b, s, turn, policy); });
  after("both: packs 1, few", RunForward<kAdd, 1>, few);
  after("both: few, few", RunFewForward<kAdd, 1, false>, few);
  after("both: few dependent, few", RunFewForward<kAdd, 1, true>, few);
  tuning::TimeInterleaved(c);
}

void Tune(const Bench& b, Shape s) {
  const std::string at = std::to_string(s.rows) + "x" + std::to_string(s.hidden) + " ";
  const bool small = s.rows * s.hidden <= 64 * 8192;
  if (small) Forwards(b, s, at, 1);
  if (small) Forwards(b, s, at + "of 16 ", 16);
  Backwards<false, false>(b, s, at + "rms_norm ");
  Backwards<false, true>(b, s, at + "fused_add ");
  Backwards<true, false>(b, s, at + "layer_norm ");
  if (!small) return;
  Both<false>(b, s, at + "rms_norm ");
  Both<true>(b, s, at + "fused_add ");
}

int Main(int argc, char** argv) {
  std::vector<Shape> shapes;
  for (int i = 1; i + 1 < argc; i += 2)
    shapes.push_back({std::atoll(argv[i]), std::atoll(argv[i + 1])});
  if (shapes.empty()) {
    for (const int64_t rows : {64, 256, 512, 1024, 2048}) {
      for (const int64_t hidden : {1024, 2048, 4096, 8192}) shapes.push_back({rows, hidden});
    }
    shapes.insert(shapes.end(), {{1, 4096}, {8, 4096}, {128, 4096}, {64, 256}, {64, 16384}});
  }
  const Bench b;
  tuning::FillBf16(Of(b.x), kSets * kBytes / 2, 0.1f, 1.0f, 1);
  tuning::FillBf16(Of(b.dy), kSets * kBytes / 2, 0.0f, 1.0f, 2);
  tuning::FillBf16(Of(b.sum), kSets * kBytes / 2, 0.0f, 1.0f, 3);
  tuning::FillBf16(reinterpret_cast<BFloat16*>(b.weight()), 1 << 19, 1.0f, 0.2f, 4);
  std::vector<float> ones(1 << 18, 0.9f);
  std::vector<float> tenths(1 << 18, 0.1f);
  tuning::Check(cudaMemcpy(b.rstd(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
  tuning::Check(cudaMemcpy(b.mean(), tenths.data(), tenths.size() * 4, cudaMemcpyHostToDevice));
  for (const Shape s :
       {Shape{64, 4096}, {1, 4096}, {37, 1000}, {64, 2048}, {65, 8184}, {300, 264}}) {
    Check<false, false>(b, s, "rms_norm");
    Check<false, true>(b, s, "fused_add");
    Check<true, false>(b, s, "layer_norm");
    if (s.hidden > 4096 || s.hidden < 1000) continue;
    CheckForward<false>(b, s);
    CheckForward<true>(b, s);
  }
  for (const Shape s : shapes) Tune(b, s);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
