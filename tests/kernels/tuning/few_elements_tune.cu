// Times elementwise kernels on few elements of bf16 on device 0, over the ways to cut them. Its
// numbers go into the policy's comments.

#include "kernels/elementwise/elementwise_launch.cuh"
#include "kernels/geglu/geglu.cuh"
#include "kernels/relu_squared/relu_squared.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "tests/kernels/tuning/few_rows_timer.h"

namespace fuseboard::elementwise {
namespace {

constexpr int64_t kSets = 4;
constexpr int64_t kMatrixBytes = int64_t{256} << 20;

struct Bench {
  tuning::Rotating memory{5 * kMatrixBytes, 0x3e};

  char* At(int matrix, int64_t elements, int turn) const {
    return memory.base() + matrix * kMatrixBytes + turn % kSets * elements * 2;
  }
};

template <typename F>
Call CallOver(const Bench& b, int64_t elements, int turn) {
  Call call = {};
  for (int i = 0; i < F::kInputs; ++i) call.in[i] = {b.At(i, elements, turn), elements, 1};
  for (int i = 0; i < F::kOutputs; ++i) call.out[i] = {b.At(3 + i, elements, turn), elements, 1};
  call.rows = 1;
  call.cols = elements;
  call.dtype = FB_BF16;
  return call;
}

template <typename F>
typename F::Params ParamsFor() {
  if constexpr (std::is_same_v<typename F::Params, GatedParams>) {
    return {.round_activation = true};
  } else {
    return {};
  }
}

template <template <typename> typename Function, typename C>
int Run(const Bench& b, int64_t elements, int turn, bool /*dependent*/) {
  using F = Function<BFloat16>;
  const Policy policy = SelectPolicy<C>(elements / 8);
  const Tiles tiles = TilesOf<C>(policy, 1, elements / 8);
  const LaunchShape shape = {.blocks = tiles.count,
                             .threads = dim3(static_cast<unsigned>(policy.threads_per_row), 1)};
  return LaunchKernel(ElementwiseKernel<Function, BFloat16, 8, C, false>, shape,
                      CallOver<F>(b, elements, turn), ParamsFor<F>(), tiles);
}

template <template <typename> typename Function, int kThreads>
int RunFew(const Bench& b, int64_t elements, int turn, bool dependent) {
  using F = Function<BFloat16>;
  FewElements few = {};
  few.runs = static_cast<int32_t>(elements / 8);
  for (int i = 0; i < F::kInputs; ++i) few.in[i] = b.At(i, elements, turn);
  for (int i = 0; i < F::kOutputs; ++i) few.out[i] = b.At(3 + i, elements, turn);
  return LaunchKernel(FewElementsKernel<Function, BFloat16>,
                      {.blocks = (few.runs + kThreads - 1) / kThreads,
                       .threads = dim3(kThreads),
                       .dependent = dependent},
                      few, ParamsFor<F>());
}

template <template <typename> typename Function>
void TimeAll(const Bench& b, int64_t elements, const std::string& at) {
  std::vector<tuning::Candidate> c;
  const auto add = [&](const char* name, int (*run)(const Bench&, int64_t, int, bool)) {
    c.push_back({at + name, [=, &b](int turn) { return run(b, elements, turn, false); }});
  };
  add("tiles 128 x 1", Run<Function, Cut<128, 1, 8>>);
  add("tiles 128 x 2", Run<Function, Cut<128, 2, 8>>);
  add("tiles 256 x 1", Run<Function, Cut<256, 1, 4>>);
  add("few 128", RunFew<Function, 128>);
  add("few 256", RunFew<Function, 256>);
  tuning::TimeInterleaved(c);
}

template <template <typename> typename Forward, template <typename> typename Backward,
          typename CForward, typename CBackward>
void Both(const Bench& b, int64_t elements, const std::string& at) {
  std::vector<tuning::Candidate> c;
  const auto add = [&](const char* name, int (*first)(const Bench&, int64_t, int, bool),
                       int (*second)(const Bench&, int64_t, int, bool), bool dependent) {
    c.push_back({at + name, [=, &b](int turn) {
                   if (const int error = first(b, elements, turn, false)) return error;
                   return second(b, elements, turn, dependent);
                 }});
  };
  add("both in tiles", Run<Forward, CForward>, Run<Backward, CBackward>, false);
  add("both few", RunFew<Forward, 256>, RunFew<Backward, 256>, false);
  add("both few dependent", RunFew<Forward, 256>, RunFew<Backward, 256>, true);
  tuning::TimeInterleaved(c);
}

void Tune() {
  const Bench b;
  for (const int64_t cols : {2048, 14336}) {
    const std::string at = "64x" + std::to_string(cols) + " ";
    TimeAll<swiglu::Forward>(b, 64 * cols, at + "swiglu forward ");
    TimeAll<swiglu::Backward>(b, 64 * cols, at + "swiglu backward ");
    TimeAll<relu_squared::Forward>(b, 64 * cols, at + "relu_squared forward ");
    TimeAll<relu_squared::Backward>(b, 64 * cols, at + "relu_squared backward ");
    Both<swiglu::Forward, swiglu::Backward, TwoInputCut, ThreeInputCut>(b, 64 * cols,
                                                                        at + "swiglu ");
    Both<relu_squared::Forward, relu_squared::Backward, OneInputCut, TwoInputCut>(
        b, 64 * cols, at + "relu_squared ");
  }
  for (const int64_t elements : {int64_t{128} * 14336, int64_t{256} * 14336}) {
    const std::string at = std::to_string(elements) + " ";
    TimeAll<swiglu::Forward>(b, elements, at + "swiglu forward ");
    TimeAll<relu_squared::Forward>(b, elements, at + "relu_squared forward ");
    TimeAll<relu_squared::Backward>(b, elements, at + "relu_squared backward ");
  }
}

}  // namespace
}  // namespace fuseboard::elementwise

int main() { fuseboard::elementwise::Tune(); }
