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
#include "kernels/qk_norm_rope/packed_backward.cuh"
#include "kernels/qk_norm_rope/packed_forward.cuh"
#include "kernels/qk_norm_rope/packed_launch.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_backward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_forward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"
#include "kernels/qk_norm_rope/row_backward.cuh"
#include "kernels/qk_norm_rope/row_forward.cuh"
#include "tests/kernels/tuning/bf16_bits.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::qk_norm_rope {
namespace {

using tuning::Check;
using tuning::Difference;
using tuning::FillBits;
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

  Bench() {
    for (int i = 0; i < 2; ++i) {
      FillBits(x[i].base(), kMaxBytes, 1 + i);
      FillBits(dy[i].base(), kMaxBytes, 3 + i);
    }
    FillBits(tables.base(), 2 * kPositions * 256 * 2, 5);
    FillBits(weights.base(), int64_t{1} << 20, 6);
  }
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
               .round_normed = !model.all_heads,
               .round_scaled = true,
               .all_heads = model.all_heads};
  Rotation& r = call.rotation;
  r.cos = {bench.tables.base(), 0, 0, model.dim, 1};
  r.sin = {bench.tables.base() + kPositions * model.dim * 4, 0, 0, model.dim, 1};
  r.batch = kBatch;
  r.positions = kPositions;
  r.dim = static_cast<int32_t>(model.dim);
  r.pairs = r.dim / 2;
  r.section_end[0] = r.section_end[1] = r.pairs;
  r.table_dtype = model.all_heads ? FB_F32 : FB_BF16;
  r.inverse = backward;
  r.round_products = !model.all_heads;
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

// Two floats at a time; rows of all heads: the row kernels.
template <typename C, bool kRoundNormed = true>
void TimePackedForward(const Bench& bench, const Model& model) {
  Call call = CallFor(bench, model, false);
  call.norm.round_normed = kRoundNormed && !model.all_heads;
  PackedPlan plan;
  auto kernel = QkNormRopePackedForwardKernel<BFloat16, kRoundNormed, C>;
  if (model.all_heads) {
    kernel = QkNormRopeRowForwardKernel<BFloat16, C>;
    if (!TakesRows(call) || !CutRows<C>(call, &plan)) return;
  } else if (!TakesPacked(call) || !CutPacked<C>(call, &plan)) {
    return;
  }
  const LaunchShape shape = {.blocks = plan.blocks(), .threads = dim3(C::kThreads)};
  const double us = MedianUs([&](int) { return LaunchKernel(kernel, shape, call, plan); });
  Print<C>(bench, model, "forward", "packed", us, 2);
}

template <typename C, bool kRoundNormed = true>
void TimePackedBackward(const Bench& bench, const Model& model) {
  Call call = CallFor(bench, model, true);
  call.norm.round_normed = kRoundNormed && !model.all_heads;
  PackedPlan plan;
  auto kernel = QkNormRopePackedBackwardKernel<BFloat16, kRoundNormed, C>;
  if (model.all_heads) {
    kernel = QkNormRopeRowBackwardKernel<BFloat16, C>;
    if (!TakesRows(call) || !CutRows<C>(call, &plan)) return;
  } else if (!TakesPacked(call) || !CutPacked<C>(call, &plan)) {
    return;
  }
  SharePacked(call, int64_t{bench.device.sm_count} * C::kBlocksPerSm, &plan);
  auto* partials = reinterpret_cast<float*>(bench.partials.base());
  PartialSums sums[2];
  for (int i = 0; i < 2; ++i) {
    const FbTensor& out = call.side[i].dweight;
    const int64_t features = FeaturesOf(call, call.side[i]);
    plan.side[i].partials = partials;
    sums[i] = {partials, plan.side[i].blocks, features, out.data, out.dtype};
    partials += plan.side[i].blocks * features;
  }
  const LaunchShape shape = {.blocks = plan.blocks(),
                             .threads = dim3(C::kThreads),
                             .shared_bytes = HeadRing<BFloat16, C>::kBytes};
  Check(LoadKernel(kernel, true));
  const double us = MedianUs([&](int) -> int {
    if (const int error = LaunchKernel(kernel, shape, call, plan)) return error;
    return static_cast<int>(LaunchTwoSums(sums[0], sums[1], bench.device.sm >= 90, nullptr));
  });
  Print<C>(bench, model, "backward",
           C::kStages == 1   ? "ring of 1"
           : C::kStages == 2 ? "ring of 2"
                             : "ring of 3",
           us, 3);
}

// Against the kernels that work in floats.
void CheckPacked(const Bench& bench, const Model& model) {
  Difference difference;
  Rotating expected[2] = {Rotating(kMaxBytes), Rotating(kMaxBytes)};
  Rotating weights(int64_t{1} << 20);
  const int64_t features[2] = {(model.all_heads ? model.heads[0] : 1) * model.dim,
                               (model.all_heads ? model.heads[1] : 1) * model.dim};
  const int64_t n[2] = {kBatch * kPositions * model.heads[0] * model.dim,
                        kBatch * kPositions * model.heads[1] * model.dim};
  const auto keep = [&] {
    for (int i = 0; i < 2; ++i) {
      Check(
          cudaMemcpy(expected[i].base(), bench.out[i].base(), n[i] * 2, cudaMemcpyDeviceToDevice));
      Check(cudaMemset(bench.out[i].base(), 0xff, n[i] * 2));
      const Call call = CallFor(bench, model, true);
      Check(cudaMemcpy(weights.base() + i * 65536, call.side[i].dweight.data, features[i] * 2,
                       cudaMemcpyDeviceToDevice));
      Check(cudaMemset(call.side[i].dweight.data, 0xff, features[i] * 2));
    }
  };
  const auto compare = [&](bool backward) {
    for (int i = 0; i < 2; ++i) {
      difference.Print(bench.out[i].base(), expected[i].base(), n[i], i == 0 ? "q" : "k");
      const Call call = CallFor(bench, model, true);
      if (backward) {
        difference.Print(call.side[i].dweight.data, weights.base() + i * 65536, features[i],
                         "dweight");
      }
    }
  };
  using FloatForward = Cut<128, 4, 3>;
  using FloatBackward = Cut<128, 2, 3>;
  if (model.all_heads) {
    TimeForward<true, FloatForward>(bench, model);
    keep();
    TimePackedForward<RowForwardCut>(bench, model);
  } else {
    TimeForward<false, FloatForward>(bench, model);
    keep();
    TimePackedForward<PackedForwardCut>(bench, model);
  }
  compare(false);
  if (model.all_heads) {
    TimeBackward<true, FloatBackward>(bench, model);
    keep();
    TimePackedBackward<RowBackwardCut>(bench, model);
  } else {
    TimeBackward<false, FloatBackward>(bench, model);
    keep();
    TimePackedBackward<PackedBackwardCut>(bench, model);
  }
  compare(true);
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

template <typename C>
void TimePackedForwards(const Bench& bench) {
  TimePackedForward<C>(bench, kQwen3);
  TimePackedForward<C, false>(bench, kGemma3);
}

template <typename C>
void TimePackedBackwards(const Bench& bench) {
  TimePackedBackward<C>(bench, kQwen3);
  TimePackedBackward<C, false>(bench, kGemma3);
}

void TimeAll() {
  const Bench bench;
  CheckPacked(bench, kQwen3);
  CheckPacked(bench, kGemma3);
  TimePackedForwards<Cut<64, 4, 8>>(bench);
  TimePackedForwards<Cut<64, 4, 10>>(bench);
  TimePackedForwards<Cut<128, 2, 8>>(bench);
  TimePackedForwards<Cut<128, 4, 4>>(bench);
  TimePackedForwards<Cut<128, 4, 5>>(bench);
  TimePackedForwards<Cut<256, 2, 4>>(bench);
  TimePackedForwards<Cut<256, 4, 2>>(bench);
  TimePackedBackwards<RingCut<32, 2, 8, 2>>(bench);
  TimePackedBackwards<RingCut<32, 2, 10, 2>>(bench);
  TimePackedBackwards<RingCut<64, 2, 3, 2>>(bench);
  TimePackedBackwards<RingCut<64, 2, 4, 2>>(bench);
  TimePackedBackwards<RingCut<64, 2, 5, 1>>(bench);
  TimePackedBackwards<RingCut<64, 2, 5, 2>>(bench);
  TimePackedBackwards<RingCut<64, 2, 5, 3>>(bench);
  TimePackedBackwards<RingCut<64, 2, 6, 2>>(bench);
  TimePackedBackwards<RingCut<128, 2, 2, 2>>(bench);
  TimePackedBackwards<RingCut<128, 2, 3, 2>>(bench);
  TimePackedBackwards<RingCut<128, 2, 4, 1>>(bench);
  TimePackedBackwards<RingCut<256, 2, 1, 2>>(bench);
  CheckPacked(bench, kOlmo2);
  TimePackedForward<Cut<128, 4, 3>>(bench, kOlmo2);
  TimePackedForward<Cut<128, 4, 4>>(bench, kOlmo2);
  TimePackedForward<Cut<128, 4, 5>>(bench, kOlmo2);
  TimePackedForward<Cut<256, 2, 2>>(bench, kOlmo2);
  TimePackedForward<Cut<256, 2, 3>>(bench, kOlmo2);
  TimePackedForward<Cut<64, 8, 5>>(bench, kOlmo2);
  TimePackedBackward<RingCut<128, 2, 2, 2>>(bench, kOlmo2);
  TimePackedBackward<RingCut<128, 2, 3, 1>>(bench, kOlmo2);
  TimePackedBackward<RingCut<128, 2, 3, 2>>(bench, kOlmo2);
  TimePackedBackward<RingCut<128, 2, 3, 3>>(bench, kOlmo2);
  TimePackedBackward<RingCut<256, 1, 1, 2>>(bench, kOlmo2);
  TimePackedBackward<RingCut<256, 1, 2, 2>>(bench, kOlmo2);
  TimePackedBackward<RingCut<256, 2, 1, 2>>(bench, kOlmo2);
}

}  // namespace
}  // namespace fuseboard::qk_norm_rope

int main() { fuseboard::qk_norm_rope::TimeAll(); }
