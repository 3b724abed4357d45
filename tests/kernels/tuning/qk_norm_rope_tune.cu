// Times the ways to cut qk_norm_rope that qk_norm_rope_policy.h could choose, on device 0, for q
// and k in bf16 at batch 4 and 4,096 positions: Qwen3 (32 and 8 heads of 128), Gemma 3 (8 and 4 of
// 256) and OLMo2 (32 and 32 of 128, rows of all heads); the backward with both weights' gradients.
// Microseconds and share of the copy rate measured in the same run, by least traffic. The tensors
// of Qwen3 are three times the L2 cache of an H200. Its numbers go into the policy's comments.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

#include "kernels/common/launch.cuh"
#include "kernels/common/sum_partials.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_backward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_forward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::qk_norm_rope {
namespace {

using tuning::Check;
using tuning::MedianUs;
using tuning::Rotating;

constexpr int64_t kBatch = 4;
constexpr int64_t kPositions = 4096;
constexpr int64_t kMaxHeads = 32;
constexpr int64_t kMaxBytes = kBatch * kPositions * kMaxHeads * 128 * 2;

struct Model {
  const char* name;
  int64_t heads[2];
  int64_t dim;
  bool all_heads;
};
constexpr Model kQwen3 = {"Qwen3", {32, 8}, 128, false};
constexpr Model kGemma3 = {"Gemma 3", {8, 4}, 256, false};
constexpr Model kOlmo2 = {"OLMo2", {32, 32}, 128, true};

struct Bench {
  Rotating x[2] = {Rotating(kMaxBytes, 0x3e), Rotating(kMaxBytes, 0x3e)};
  Rotating dy[2] = {Rotating(kMaxBytes, 0x3e), Rotating(kMaxBytes, 0x3e)};
  Rotating out[2] = {Rotating(kMaxBytes), Rotating(kMaxBytes)};
  Rotating tables = Rotating(2 * kPositions * 256 * 4, 0x3e);
  Rotating weights = Rotating(int64_t{1} << 20, 0x3e);
  Rotating partials = Rotating(int64_t{64} << 20);
  FbCall device = tuning::NewCall();
  double copy_rate = tuning::CopyRate(out[0], x[0], kMaxBytes);  // Bytes per microsecond.
};

// As a projection's view: the heads inside the positions.
Heads HeadsAt(const Rotating& memory, int64_t count, int64_t dim) {
  return {memory.base(), count, count * kPositions * dim, dim, count * dim};
}

Call CallFor(const Bench& bench, const Model& model, bool backward) {
  Call call = {};
  for (int i = 0; i < 2; ++i) {
    Side& side = call.side[i];
    side.x = HeadsAt(bench.x[i], model.heads[i], model.dim);
    if (backward) side.upstream = HeadsAt(bench.dy[i], model.heads[i], model.dim);
    side.out = HeadsAt(bench.out[i], model.heads[i], model.dim);
    const int64_t features = (model.all_heads ? model.heads[i] : 1) * model.dim;
    side.weight = bench.weights.Matrix(1, features, FB_BF16, 0);
    side.dweight = bench.weights.Matrix(1, features, FB_BF16, 2 + i);
  }
  call.dtype = call.result_dtype = FB_BF16;
  call.norm = {.eps = 1e-6f,
               .offset = 0.0f,
               .round_normed = true,
               .round_scaled = true,
               .all_heads = model.all_heads};
  Rotation& r = call.rotation;
  r.cos = {bench.tables.base(), 0, 0, model.dim, 1};
  r.sin = {bench.tables.base() + kPositions * model.dim * 2, 0, 0, model.dim, 1};
  r.batch = kBatch;
  r.positions = kPositions;
  r.dim = static_cast<int32_t>(model.dim);
  r.pairs = r.dim / 2;
  r.section_end[0] = r.section_end[1] = r.pairs;
  r.table_dtype = FB_BF16;
  r.inverse = backward;
  r.round_products = true;
  return call;
}

double BytesOf(const Model& model, int tensors) {
  return static_cast<double>(tensors * 2 * kBatch * kPositions * model.dim *
                             (model.heads[0] + model.heads[1]));
}

template <typename C>
void Print(const Bench& bench, const Model& model, const char* phase, const char* grid, double us,
           int tensors) {
  std::printf("%-8s %-8s %-10s threads %4d unroll %d blocks/sm %2d  %8.1f us %5.1f %%\n",
              model.name, phase, grid, C::kThreads, C::kUnroll, C::kBlocksPerSm, us,
              us == 0.0 ? 0.0 : 100 * BytesOf(model, tensors) / bench.copy_rate / us);
}

template <bool kAllHeads, typename C>
void TimeForward(const Bench& bench, const Model& model) {
  const Call call = CallFor(bench, model, false);
  for (const bool persistent : {false, true}) {
    Plan plan = PlanOf(call, kPackLanes<BFloat16>);
    if (!CutSides<C>(call, &plan)) return;
    for (SidePlan& side : plan.side) side.blocks = side.tiles.count;
    if (persistent) {
      ShareBlocks({plan.side[0].tiles.count, plan.side[1].tiles.count},
                  int64_t{bench.device.sm_count} * C::kBlocksPerSm, &plan);
    }
    const LaunchShape shape = {.blocks = plan.side[0].blocks + plan.side[1].blocks,
                               .threads = dim3(C::kThreads)};
    const double us = MedianUs([&](int) {
      return LaunchKernel(QkNormRopeForwardKernel<BFloat16, BFloat16, false, kAllHeads, C>, shape,
                          call, plan);
    });
    Print<C>(bench, model, "forward", persistent ? "persistent" : "tiles", us, 2);
  }
}

template <bool kAllHeads, typename C>
void TimeBackward(const Bench& bench, const Model& model) {
  const Call call = CallFor(bench, model, true);
  Plan plan = PlanOf(call, kPackLanes<BFloat16>);
  if (!CutSides<C>(call, &plan)) return;
  ShareBlocks({plan.side[0].tiles.count, plan.side[1].tiles.count},
              int64_t{bench.device.sm_count} * C::kBlocksPerSm, &plan);
  auto* partials = reinterpret_cast<float*>(bench.partials.base());
  for (SidePlan& side : plan.side) {
    side.partials = partials;
    partials += side.blocks * side.features;
  }
  const LaunchShape shape = {.blocks = plan.side[0].blocks + plan.side[1].blocks,
                             .threads = dim3(C::kThreads)};
  const double us = MedianUs([&](int) {
    int error = LaunchKernel(QkNormRopeBackwardKernel<BFloat16, BFloat16, false, kAllHeads, C>,
                             shape, call, plan);
    for (int i = 0; i < 2 && error == cudaSuccess; ++i) {
      const SidePlan& side = plan.side[i];
      error = LaunchSumPartials(side.partials, side.blocks, side.features, call.side[i].dweight,
                                i == 0 && bench.device.sm >= 90, nullptr);
    }
    return error;
  });
  Print<C>(bench, model, "backward", "persistent", us, 3);
}

template <typename C>
void TimeHeads(const Bench& bench) {
  TimeForward<false, C>(bench, kQwen3);
  TimeForward<false, C>(bench, kGemma3);
}

template <typename C>
void TimeHeadsBackward(const Bench& bench) {
  TimeBackward<false, C>(bench, kQwen3);
  TimeBackward<false, C>(bench, kGemma3);
}

void TimeAll() {
  const Bench bench;
  TimeHeads<Cut<128, 2, 4>>(bench);
  TimeHeads<Cut<128, 3, 3>>(bench);
  TimeHeads<Cut<128, 4, 3>>(bench);
  TimeHeads<Cut<128, 4, 4>>(bench);
  TimeHeads<Cut<256, 2, 2>>(bench);
  TimeHeads<Cut<256, 2, 3>>(bench);
  TimeHeads<Cut<256, 4, 1>>(bench);
  TimeHeads<Cut<256, 4, 2>>(bench);
  TimeHeadsBackward<Cut<64, 2, 6>>(bench);
  TimeHeadsBackward<Cut<128, 1, 4>>(bench);
  TimeHeadsBackward<Cut<128, 2, 2>>(bench);
  TimeHeadsBackward<Cut<128, 2, 3>>(bench);
  TimeHeadsBackward<Cut<128, 2, 4>>(bench);
  TimeHeadsBackward<Cut<256, 1, 2>>(bench);
  TimeHeadsBackward<Cut<256, 2, 1>>(bench);
  TimeForward<true, Cut<128, 2, 4>>(bench, kOlmo2);
  TimeForward<true, Cut<128, 4, 3>>(bench, kOlmo2);
  TimeForward<true, Cut<256, 2, 2>>(bench, kOlmo2);
  TimeForward<true, Cut<256, 4, 2>>(bench, kOlmo2);
  TimeBackward<true, Cut<128, 2, 2>>(bench, kOlmo2);
  TimeBackward<true, Cut<128, 2, 3>>(bench, kOlmo2);
  TimeBackward<true, Cut<256, 1, 2>>(bench, kOlmo2);
  TimeBackward<true, Cut<256, 2, 1>>(bench, kOlmo2);
}

}  // namespace
}  // namespace fuseboard::qk_norm_rope

int main() { fuseboard::qk_norm_rope::TimeAll(); }
