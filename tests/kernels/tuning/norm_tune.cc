// Times the ways to cut bf16 rows that rms_norm_policy.h could choose, for rms_norm and layer_norm,
// on device 0, as a table: share of the copy rate measured in the same run, by least traffic
// (docs/kernels/rms_norm.md). Its numbers go into the policy's comments.
//
//   norm_tune [rms_norm|layer_norm [hidden ...]]

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/abi/layer_norm.h"
#include "kernels/abi/rms_norm.h"
#include "kernels/layer_norm/layer_norm_cuda.h"
#include "kernels/layer_norm/layer_norm_policy.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/wide_policy.h"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard {
namespace {

using rms_norm::CutRow;
using rms_norm::Policy;

constexpr int64_t kBytes = int64_t{512} << 20;      // Of each tensor: ten times an H200's L2 cache.
constexpr int64_t kElements = int64_t{1} << 26;     // 16,384 x 4,096.
constexpr int64_t kSmallBytes = int64_t{64} << 20;  // Of what has one value a row or a column.

FbTensor Vector(char* base, int64_t size, int32_t dtype) {
  return {base, {size}, {1}, 1, dtype, FB_CUDA, 0};
}

struct Bench {
  tuning::Rotating x{kBytes};
  tuning::Rotating dy{kBytes};
  tuning::Rotating y{kBytes};
  tuning::Rotating weight{kSmallBytes};
  tuning::Rotating bias{kSmallBytes};
  tuning::Rotating dweight{kSmallBytes};
  tuning::Rotating dbias{kSmallBytes};
  tuning::Rotating mean{kSmallBytes};
  tuning::Rotating rstd{kSmallBytes};
  tuning::Rotating workspace{int64_t{1} << 30};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

struct Shape {
  int64_t rows;
  int64_t hidden;
};

// The two operations, each with what it launches.
struct RmsNorm {
  static constexpr const char* kName = "rms_norm";

  static Policy ForwardPolicy(int sm, int64_t row_packs) {
    const Policy wide = rms_norm::SelectWideForward(sm, row_packs, 1);
    return wide.packs != 0 ? wide : rms_norm::SelectForward(sm, row_packs);
  }
  static Policy BackwardPolicy(int sm, int64_t row_packs) {
    const Policy wide = rms_norm::SelectWideBackward(sm, row_packs, 2);
    return wide.packs != 0 ? wide : rms_norm::SelectBackward(sm, row_packs, 2, 2);
  }
  static int Load() { return rms_norm::LoadForwardKernels() + rms_norm::LoadBackwardKernels(); }

  static int Run(const Bench& bench, FbPhase phase, const Policy& policy, Shape s, int turn) {
    static constexpr FbRmsNormParams kParams = {sizeof(kParams), FB_CASTING_LLAMA, 1e-6, 0.0};
    FbCall call = bench.call;
    call.params = &kParams;
    const FbTensor x = bench.x.Matrix(s.rows, s.hidden, FB_BF16, turn);
    const FbTensor y = bench.y.Matrix(s.rows, s.hidden, FB_BF16, turn);
    const FbTensor weight = Vector(bench.weight.base(), s.hidden, FB_BF16);
    const FbTensor rstd = Vector(bench.rstd.base(), s.rows, FB_F32);
    if (phase == FB_FORWARD) {
      const FbTensor inputs[] = {x, weight};
      const FbTensor outputs[] = {y, rstd};
      call.inputs = inputs, call.outputs = outputs;
      return rms_norm::LaunchForward(call, policy);
    }
    const FbTensor inputs[] = {bench.dy.Matrix(s.rows, s.hidden, FB_BF16, turn), x, weight, rstd};
    const FbTensor outputs[] = {y, Vector(bench.dweight.base(), s.hidden, FB_BF16)};
    call.inputs = inputs, call.outputs = outputs;
    return rms_norm::LaunchBackward(call, policy, bench.workspace.base());
  }
};

struct LayerNorm {
  static constexpr const char* kName = "layer_norm";

  static Policy ForwardPolicy(int sm, int64_t row_packs) {
    const Policy wide = layer_norm::SelectWideForward(sm, row_packs);
    return wide.packs != 0 ? wide : layer_norm::SelectForward(sm, row_packs);
  }
  static Policy BackwardPolicy(int sm, int64_t row_packs) {
    const Policy wide = layer_norm::SelectWideBackward(sm, row_packs);
    return wide.packs != 0 ? wide : layer_norm::SelectBackward(sm, row_packs, 2);
  }
  static int Load() { return layer_norm::LoadForwardKernels() + layer_norm::LoadBackwardKernels(); }

  static int Run(const Bench& bench, FbPhase phase, const Policy& policy, Shape s, int turn) {
    static constexpr FbLayerNormParams kParams = {sizeof(kParams), 1e-5};
    FbCall call = bench.call;
    call.params = &kParams;
    const FbTensor x = bench.x.Matrix(s.rows, s.hidden, FB_BF16, turn);
    const FbTensor y = bench.y.Matrix(s.rows, s.hidden, FB_BF16, turn);
    const FbTensor weight = Vector(bench.weight.base(), s.hidden, FB_BF16);
    const FbTensor bias = Vector(bench.bias.base(), s.hidden, FB_BF16);
    const FbTensor mean = Vector(bench.mean.base(), s.rows, FB_F32);
    const FbTensor rstd = Vector(bench.rstd.base(), s.rows, FB_F32);
    if (phase == FB_FORWARD) {
      const FbTensor inputs[] = {x, weight, bias};
      const FbTensor outputs[] = {y, mean, rstd};
      call.inputs = inputs, call.outputs = outputs;
      return layer_norm::LaunchForward(call, policy);
    }
    const FbTensor inputs[] = {bench.dy.Matrix(s.rows, s.hidden, FB_BF16, turn), x, weight, mean,
                               rstd};
    const FbTensor outputs[] = {y, Vector(bench.dweight.base(), s.hidden, FB_BF16),
                                Vector(bench.dbias.base(), s.hidden, FB_BF16)};
    call.inputs = inputs, call.outputs = outputs;
    return layer_norm::LaunchBackward(call, policy, bench.workspace.base());
  }
};

template <typename Operation>
void TimeAll(const Bench& bench, FbPhase phase, Shape s, const std::vector<Policy>& candidates) {
  for (const Policy& p : candidates) {
    const double us = tuning::MedianUs(
        [&](int turn) { return Operation::Run(bench, phase, p, s, turn); }, /*repeats=*/16);
    if (us == 0.0) continue;
    const auto bytes = static_cast<double>(s.rows * s.hidden * (phase == FB_FORWARD ? 4 : 6));
    std::printf(
        "%s %-8s %7lld x %-7lld packs %d threads %4d rows %2d cluster %d blocks/sm %d stages %d "
        "shared weight %d wide %d %8.1f us %5.1f %%%s\n",
        Operation::kName, phase == FB_FORWARD ? "forward" : "backward",
        static_cast<long long>(s.rows), static_cast<long long>(s.hidden), p.packs,
        p.threads_per_row, p.rows_per_block, p.cluster, p.blocks_per_sm, p.stages, p.shared_weight,
        p.wide, us, 100.0 * bytes / us / bench.copy_rate,
        p == candidates.front() ? "  <- policy" : "");
  }
}

void Add(std::vector<Policy>* candidates, const Policy& policy) {
  if (std::ranges::find(*candidates, policy) == candidates->end()) candidates->push_back(policy);
}

bool HasKernel(const Policy& p) { return p.cluster == 1 || p.packs >= 4; }

template <typename Operation>
std::vector<Policy> Forward(int sm, int64_t row_packs) {
  std::vector<Policy> candidates = {Operation::ForwardPolicy(sm, row_packs)};
  const int max_cluster = row_packs > 1024 && sm >= 90 ? rms_norm::kMaxCluster : 1;
  for (const int packs : {1, 2, 4, 8}) {
    for (const int threads : {32, 64, 128, 256, 512}) {
      for (const int block : {32, 128, 256}) {
        const Policy p = CutRow(row_packs, packs, threads, max_cluster, block);
        if (p.packs == 0 || p.threads_per_row * p.rows_per_block > 512) continue;
        if (HasKernel(p)) Add(&candidates, p);
      }
    }
  }
  return candidates;
}

template <typename Operation>
std::vector<Policy> Backward(int sm, int64_t row_packs) {
  std::vector<Policy> candidates = {Operation::BackwardPolicy(sm, row_packs)};
  const int max_cluster = row_packs > 1024 && sm >= 90 ? rms_norm::kMaxCluster : 1;
  for (const int packs : {1, 2, 4, 8}) {
    for (const int threads : {32, 128, 256, 512}) {
      Policy p = CutRow(row_packs, packs, threads, max_cluster, threads == 32 ? 256 : threads);
      if (p.packs == 0 || p.threads_per_row * p.rows_per_block > (packs <= 2 ? 256 : 512)) continue;
      if (!HasKernel(p)) continue;
      for (const bool shared_weight : {true, false}) {
        if (!shared_weight && p.rows_per_block > 1) continue;
        for (const int stages : {1, 2, 3}) {
          for (const int blocks : {1, 2, 3, 4, 6}) {
            p.shared_weight = shared_weight;
            p.stages = stages;
            p.blocks_per_sm = blocks;
            if (rms_norm::FitsShared(p, sm, 2, 2)) Add(&candidates, p);
          }
        }
      }
    }
  }
  return candidates;
}

template <typename Operation>
void Tune(const Bench& bench, const std::vector<int64_t>& widths) {
  tuning::Check(Operation::Load());
  for (const int64_t hidden : widths) {
    const Shape shape = {kElements / hidden, hidden};
    TimeAll<Operation>(bench, FB_FORWARD, shape, Forward<Operation>(bench.call.sm, hidden / 8));
    TimeAll<Operation>(bench, FB_BACKWARD, shape, Backward<Operation>(bench.call.sm, hidden / 8));
  }
}

int Main(int argc, char** argv) {
  std::vector<int64_t> widths;
  for (int i = 2; i < argc; ++i) widths.push_back(std::strtoll(argv[i], nullptr, 10));
  if (widths.empty()) {
    widths = {128, 1024, 2048, 4096, 5120, 8192, 16384, 65536, 131072, 262144};
  }
  const auto wants = [&](const char* name) { return argc < 2 || std::strcmp(argv[1], name) == 0; };
  const Bench bench;
  bench.x.FillBf16(0.0f);
  bench.dy.FillBf16(0.0f);
  bench.weight.FillBf16(1.0f);
  bench.bias.FillBf16(0.0f);
  if (wants(RmsNorm::kName)) Tune<RmsNorm>(bench, widths);
  if (wants(LayerNorm::kName)) Tune<LayerNorm>(bench, widths);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
