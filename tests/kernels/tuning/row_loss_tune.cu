// Times the ways to cut rows that row_loss_policy.h could choose, on device 0, for kl_div (of
// probabilities), jsd (between its ends) and tvd, the loss alone and with its gradient, as a table:
// share of the copy rate measured in the same run, by least traffic (docs/kernels/kl_div.md). Its
// numbers go into the policy's comments.

#include <algorithm>
#include <cstdio>

#include "kernels/common/row_loss_launch.cuh"
#include "kernels/jsd/jsd.cuh"
#include "kernels/kl_div/kl_div.cuh"
#include "kernels/tvd/tvd.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::row_loss {
namespace {

constexpr int64_t kBytes = int64_t{512}
                           << 20;  // Of each matrix: ten times the L2 cache of an H200.
constexpr int64_t kElements = int64_t{1} << 27;
constexpr int64_t kMaxRows = kElements / 64;

struct Bench {
  // Small negative numbers: logarithms of probabilities, and all the same to the time.
  tuning::Rotating input{kBytes, 0xbc};
  tuning::Rotating target{kBytes, 0xbc};
  tuning::Rotating dinput{kBytes};
  tuning::Rotating loss{kMaxRows * 4};
  tuning::Rotating workspace{kMaxRows * 4};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(dinput, input, kBytes);
};

struct Problem {
  const char* operation;
  int64_t cols;
  bool with_gradient;

  int64_t rows() const { return kElements / cols; }
};

// The tensors of a forward on turn `turn`.
struct Tensors {
  FbTensor inputs[4];
  FbTensor outputs[3];

  Tensors(const Bench& bench, const Problem& p, int32_t dtype, int turn) {
    FbTensor absent = {};
    absent.ndim = -1;
    inputs[0] = bench.input.Matrix(p.rows(), p.cols, dtype, turn);
    inputs[1] = bench.target.Matrix(p.rows(), p.cols, dtype, turn);
    inputs[2] = inputs[3] = absent;
    outputs[0] = {bench.loss.base(), {p.rows()}, {1}, 1, FB_F32, FB_CUDA, 0};
    outputs[1] = absent;
    outputs[2] = p.with_gradient ? bench.dinput.Matrix(p.rows(), p.cols, dtype, turn) : absent;
  }
};

template <typename C, typename T, typename Function>
void Print(const Bench& bench, const Problem& p, const Function& function) {
  constexpr int32_t kDType = sizeof(T) == 4 ? FB_F32 : FB_BF16;
  constexpr int kLanes = kPackLanes<T>;
  const Kernel<Function> kernel = p.with_gradient
                                      ? RowLossKernel<Function, T, kLanes, Mode::kGradient, C>
                                      : RowLossKernel<Function, T, kLanes, Mode::kLoss, C>;
  const double us = tuning::MedianUs([&](int turn) {
    const Tensors tensors(bench, p, kDType, turn);
    FbCall raw = bench.call;
    raw.inputs = tensors.inputs;
    raw.outputs = tensors.outputs;
    raw.num_inputs = 4;
    raw.num_outputs = 3;
    return LaunchCut(kernel, PolicyFor<C>(raw, p.cols), raw, ForwardCallOf(raw, 0), function,
                     bench.workspace.base());
  });
  if (us == 0.0) return;
  const auto bytes =
      static_cast<double>(p.rows() * p.cols * int64_t{sizeof(T)} * (p.with_gradient ? 3 : 2));
  std::printf(
      "%-6s %-13s %-4s %7lld x %-6lld threads %3d unroll %d blocks %2d tile %5d  %8.1f us "
      "%5.1f %%%s\n",
      p.operation, p.with_gradient ? "loss+gradient" : "loss", kDType == FB_F32 ? "f32" : "bf16",
      static_cast<long long>(p.rows()), static_cast<long long>(p.cols), C::kThreads, C::kUnroll,
      C::kBlocksPerSm, C::kTileUnits, us, 100.0 * bytes / us / bench.copy_rate,
      std::is_same_v<C, DefaultCut> ? "  <- policy" : "");
}

template <typename T, typename Function>
void Tune(const Bench& bench, const Problem& p, const Function& function) {
  Print<DefaultCut, T>(bench, p, function);
  // More on its way, or less; blocks of other sizes.
  Print<Cut<256, 1, 4, 4096>, T>(bench, p, function);
  Print<Cut<256, 4, 2, 4096>, T>(bench, p, function);
  Print<Cut<256, 1, 6, 4096>, T>(bench, p, function);
  Print<Cut<256, 2, 3, 4096>, T>(bench, p, function);
  Print<Cut<128, 2, 8, 4096>, T>(bench, p, function);
  Print<Cut<512, 2, 2, 4096>, T>(bench, p, function);
  Print<Cut<512, 1, 3, 4096>, T>(bench, p, function);
  // Shorter and longer tiles.
  Print<Cut<256, 2, 4, 1024>, T>(bench, p, function);
  Print<Cut<256, 2, 4, 2048>, T>(bench, p, function);
  Print<Cut<256, 2, 4, 16384>, T>(bench, p, function);
}

template <typename T>
void TuneAll(const Bench& bench) {
  for (const int64_t cols : {64, 1024, 4096, 32000, 128256, 262144}) {
    for (const bool with_gradient : {false, true}) {
      Tune<T>(bench, {"kl_div", cols, with_gradient}, kl_div::OfProbabilities(0.0f));
      Tune<T>(bench, {"jsd", cols, with_gradient}, jsd::Mixture({0.5f, 0.5f}));
      Tune<T>(bench, {"tvd", cols, with_gradient}, tvd::Distance());
    }
  }
}

}  // namespace
}  // namespace fuseboard::row_loss

int main() {
  const fuseboard::row_loss::Bench bench;
  fuseboard::row_loss::TuneAll<fuseboard::BFloat16>(bench);
  fuseboard::row_loss::TuneAll<float>(bench);
}
