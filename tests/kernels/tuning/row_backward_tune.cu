// Times the ways to cut bf16 rows of the backward kernels of rms_norm, fused_add_rms_norm and
// layer_norm that hold a row in one block's registers, on device 0, the last step with it, as
// shares of the copy rate of the same run: the best ones first. Its numbers go into the policies'
// comments.
//
//   row_backward_tune [hidden ...]     Widths that no pack divides: rows that begin anywhere.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/common/launch.cuh"
#include "kernels/common/sum_partials.cuh"
#include "kernels/layer_norm/layer_norm_backward.cuh"
#include "kernels/layer_norm/layer_norm_policy.h"
#include "kernels/rms_norm/rms_norm_backward.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int64_t kRows = 16384;
constexpr int64_t kSmallBytes = int64_t{64} << 20;
constexpr int kLanes = 8;

struct Bench {
  tuning::Rotating x{kBytes}, dy{kBytes}, dx{kBytes}, dsum{kBytes};
  tuning::Rotating weight{kSmallBytes}, out{kSmallBytes}, statistics{kSmallBytes};
  tuning::Rotating partials{kSmallBytes}, of_bias{kSmallBytes};
  double copy_rate = tuning::CopyRate(dx, x, kBytes);
};

char* At(const tuning::Rotating& of, int64_t hidden, int turn) {
  return static_cast<char*>(of.Matrix(kRows, hidden, FB_BF16, turn).data);
}
float* Floats(const tuning::Rotating& of) { return reinterpret_cast<float*>(of.base()); }

using RmsKernel = void (*)(rms_norm::BackwardArgs);
using LayerKernel = void (*)(layer_norm::BackwardArgs);

struct Form {
  const char* name;
  int packs;
  bool unaligned;
  bool add;
  RmsKernel rms;      // Or NULL.
  LayerKernel layer;  // Or NULL.
};

template <bool kAdd, int kPacks, bool kUnaligned>
constexpr Form RmsForm() {
  return {kAdd ? "fused_add_rms_norm" : "rms_norm",
          kPacks,
          kUnaligned,
          kAdd,
          rms_norm::RmsNormBackwardKernel<BFloat16, BFloat16, kAdd, kPacks, false, kUnaligned>,
          nullptr};
}

template <int kPacks, bool kUnaligned>
constexpr Form LayerForm() {
  return {
      "layer_norm", kPacks,
      kUnaligned,   false,
      nullptr,      layer_norm::LayerNormBackwardKernel<BFloat16, true, kPacks, false, kUnaligned>};
}

const Form kForms[] = {
#if TUNE_PART != 2
    RmsForm<false, 2, false>(), RmsForm<false, 3, false>(), RmsForm<false, 4, false>(),
    RmsForm<false, 5, false>(), RmsForm<true, 2, false>(),  RmsForm<true, 3, false>(),
    RmsForm<true, 4, false>(),  RmsForm<false, 2, true>(),  RmsForm<false, 3, true>(),
    RmsForm<false, 4, true>(),  RmsForm<true, 2, true>(),
#endif
#if TUNE_PART != 1
    LayerForm<2, false>(),      LayerForm<3, false>(),      LayerForm<4, false>(),
    LayerForm<5, false>(),      LayerForm<2, true>(),       LayerForm<3, true>(),
    LayerForm<4, true>(),
#endif
};

struct Cut {
  Form form;
  rms_norm::Policy policy;
  double us;
  double alone;  // Without the last step.
};

int Tensors(const Form& form) { return form.add ? 3 : 2; }

int Launch(const Bench& b, const Cut& cut, int64_t hidden, bool finish, int turn) {
  const auto& p = cut.policy;
  const int64_t blocks = rms_norm::BackwardBlocks(p, kRows, 132);
  const int shared =
      static_cast<int>(rms_norm::BackwardSharedBytes(p, 2, 2 * (Tensors(cut.form) - 1)));
  const LaunchShape shape = {.blocks = blocks,
                             .threads = dim3(static_cast<unsigned>(p.threads_per_row),
                                             static_cast<unsigned>(p.rows_per_block)),
                             .shared_bytes = shared};
  const bool layer = cut.form.layer != nullptr;
  cudaError_t error = cudaSuccess;
  if (layer) {
    layer_norm::BackwardArgs args = {};
    args.dy = At(b.dy, hidden, turn), args.x = At(b.x, hidden, turn), args.weight = b.weight.base();
    args.mean = Floats(b.statistics), args.rstd = Floats(b.statistics) + kRows;
    args.dx = At(b.dx, hidden, turn);
    args.weight_partials = Floats(b.partials), args.bias_partials = Floats(b.of_bias);
    args.dy_stride = args.x_stride = args.dx_stride = args.hidden = hidden;
    args.rows = kRows, args.weight_dtype = FB_BF16;
    args.stages = p.stages, args.shared_weight = true;
    error = LaunchKernel(cut.form.layer, shape, args);
  } else {
    rms_norm::BackwardArgs args = {};
    args.dy = At(b.dy, hidden, turn), args.x = At(b.x, hidden, turn), args.weight = b.weight.base();
    args.rstd = Floats(b.statistics) + kRows;
    if (cut.form.add) args.dsum = At(b.dsum, hidden, turn), args.dsum_stride = hidden;
    args.dx = At(b.dx, hidden, turn), args.partials = Floats(b.partials);
    args.dy_stride = args.x_stride = args.dx_stride = hidden;
    args.weight_dtype = FB_BF16, args.stages = p.stages, args.shared_weight = true;
    args.norm = {kRows, hidden, 1e-6f, 0.0f, true};
    error = LaunchKernel(cut.form.rms, shape, args);
  }
  if (error != cudaSuccess || !finish) return error;
  const auto of = [&](const tuning::Rotating& from, int64_t at) {
    return PartialSums{Floats(from), blocks, hidden, b.out.base() + at, FB_BF16};
  };
  return LaunchTwoSums(of(b.partials, 0), layer ? of(b.of_bias, 1 << 20) : PartialSums{},
                       /*dependent=*/true, nullptr);
}

// Whether all blocks that the policy counts on are resident.
bool Fits(const Form& form, const rms_norm::Policy& p) {
  const int threads = p.threads_per_row * p.rows_per_block;
  const int shared = static_cast<int>(rms_norm::BackwardSharedBytes(p, 2, 2 * (Tensors(form) - 1)));
  const void* kernel = form.rms != nullptr ? reinterpret_cast<const void*>(form.rms)
                                           : reinterpret_cast<const void*>(form.layer);
  cudaFuncAttributes attributes;
  tuning::Check(cudaFuncGetAttributes(&attributes, kernel));
  if (threads > attributes.maxThreadsPerBlock || shared > 216 * 1024) return false;
  tuning::Check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 216 * 1024));
  tuning::Check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
  int blocks = 0;
  tuning::Check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads,
                                                              static_cast<size_t>(shared)));
  return blocks >= p.blocks_per_sm;
}

void TuneWidth(const Bench& b, int64_t hidden) {
  const int64_t row_packs = hidden / kLanes;
  std::vector<Cut> cuts;
  for (const Form& form : kForms) {
    if (form.unaligned != (hidden % kLanes != 0)) continue;
    const int64_t threads = rms_norm::CeilDiv(rms_norm::CeilDiv(row_packs, form.packs), 32) * 32;
    for (const int rows : {1, 2, 3}) {
      for (const int stages : {1, 2, 3}) {
        for (int blocks = 1; blocks <= 8; ++blocks) {
          const rms_norm::Policy p = {.packs = form.packs,
                                      .threads_per_row = static_cast<int>(threads),
                                      .rows_per_block = rows,
                                      .cluster = 1,
                                      .blocks_per_sm = blocks,
                                      .stages = stages,
                                      .shared_weight = true,
                                      .classes = form.unaligned ? kLanes : 0};
          const int64_t of_sm = threads * rows * blocks;
          if (of_sm * form.packs < 2 * row_packs || !Fits(form, p)) continue;
          cuts.push_back({form, p, 0.0, 0.0});
        }
      }
    }
  }
  for (Cut& cut : cuts) {
    cut.us = tuning::MedianUs([&](int turn) { return Launch(b, cut, hidden, true, turn); }, 10);
  }
  std::ranges::sort(cuts, {}, [](const Cut& cut) { return cut.us; });
  for (const char* name : {"rms_norm", "fused_add_rms_norm", "layer_norm"}) {
    int shown = 0;
    for (Cut& cut : cuts) {
      const auto& p = cut.policy;
      if (std::string(name) != cut.form.name || cut.us == 0.0) continue;
      const bool is_rms = cut.form.rms != nullptr;
      rms_norm::Policy now =
          rms_norm::SelectBackward(90, row_packs, 2, 2 * (Tensors(cut.form) - 1), p.classes > 0);
      if (!is_rms) now = layer_norm::SelectBackward(90, row_packs, 2, p.classes > 0);
      if (++shown > 6 && p != now) continue;
      cut.us = tuning::MedianUs([&](int turn) { return Launch(b, cut, hidden, true, turn); }, 30);
      cut.alone =
          tuning::MedianUs([&](int turn) { return Launch(b, cut, hidden, false, turn); }, 30);
      const double bytes = static_cast<double>(kRows * hidden * 2) * (Tensors(cut.form) + 1);
      std::printf(
          "%-18s H %5lld packs %d threads %3d rows %d blocks/sm %d stages %d  %7.1f us %5.1f %%  "
          "alone %7.1f us%s\n",
          name, static_cast<long long>(hidden), p.packs, p.threads_per_row, p.rows_per_block,
          p.blocks_per_sm, p.stages, cut.us, 100.0 * bytes / cut.us / b.copy_rate, cut.alone,
          p == now ? "  <- policy" : "");
    }
  }
}

int Main(int argc, char** argv) {
  std::vector<int64_t> widths;
  for (int i = 1; i < argc; ++i) widths.push_back(std::strtoll(argv[i], nullptr, 10));
  if (widths.empty()) widths = {1536, 2560, 2880, 3072, 3584, 3840, 4096, 5120, 2881, 4097};
  const Bench b;
  for (const tuning::Rotating* of : {&b.x, &b.dy, &b.dsum, &b.weight}) of->FillBf16(0.0f);
  std::vector<float> ones(2 * kRows, 1.0f);
  tuning::Check(
      cudaMemcpy(b.statistics.base(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
  for (const int64_t hidden : widths) TuneWidth(b, hidden);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
