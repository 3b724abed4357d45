// A forward from logits on the CPU: the twin of logits_kernel.cuh. Compiled once per instruction
// set (cpu_isa.h). Function is that of row_loss_cpu.h; rows are cut into blocks in one order, so
// that results do not depend on the threads.

#ifndef KERNELS_JSD_LOGITS_CPU_H_
#define KERNELS_JSD_LOGITS_CPU_H_

#include <cmath>

#include "kernels/common/cpu_log.h"
#include "kernels/common/row_loss_cpu.h"

namespace fuseboard::jsd::FB_CPU_ISA {

namespace rows = row_loss::FB_CPU_ISA;

// Calls fn(begin, n) for each block of `cols` columns.
template <typename Fn>
inline void ForEachBlock(int64_t cols, const Fn& fn) {
  for (int64_t begin = 0; begin < cols; begin += rows::kBlock) {
    fn(begin, cols - begin < rows::kBlock ? cols - begin : rows::kBlock);
  }
}

// log_softmax(logits / temperature) of a row.
template <typename T>
class LogSoftmax {
 public:
  LogSoftmax(const T* logits, int64_t cols, float inverse_temperature)
      : logits_(logits), inverse_temperature_(inverse_temperature) {
    float buffer[rows::kBlock];
    ForEachBlock(cols, [&](int64_t begin, int64_t n) {
      const float* x = rows::ViewBlock(logits_ + begin, buffer, n);
      for (int64_t i = 0; i < n; ++i) max_ = x[i] > max_ ? x[i] : max_;  // Never NaN.
    });
    double sum = 0.0;
    ForEachBlock(cols, [&](int64_t begin, int64_t n) {
      Block(begin, n, buffer);
      for (int64_t i = 0; i < n; ++i) buffer[i] = fuseboard::FB_CPU_ISA::ExpNonPositive(buffer[i]);
      sum += fuseboard::FB_CPU_ISA::SumBlock(buffer, n);
    });
    log_sum_ = static_cast<float>(std::log(sum));
  }

  // Columns [begin, begin + n).
  void Block(int64_t begin, int64_t n, float* out) const {
    float buffer[rows::kBlock];
    const float* x = rows::ViewBlock(logits_ + begin, buffer, n);
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - max_) * inverse_temperature_ - log_sum_;
  }

 private:
  const T* logits_;
  float inverse_temperature_;
  float max_ = -__builtin_inff();
  float log_sum_ = 0.0f;
};

template <typename T, typename Function>
void SolveLogits(const row_loss::Call& call, const Function& function, float inverse_temperature,
                 int64_t row) {
  const LogSoftmax<T> log_p(static_cast<const T*>(call.input) + row * call.input_stride, call.cols,
                            inverse_temperature);
  const LogSoftmax<T> log_q(static_cast<const T*>(call.target) + row * call.target_stride,
                            call.cols, inverse_temperature);
  float x[rows::kBlock];
  float y[rows::kBlock];
  float gradient[rows::kBlock];
  double loss = 0.0;
  double gradient_sum = 0.0;
  ForEachBlock(call.cols, [&](int64_t begin, int64_t n) {
    float losses[rows::kBlock];
    log_p.Block(begin, n, x);
    log_q.Block(begin, n, y);
    function(x, y, n, losses, gradient);
    loss += fuseboard::FB_CPU_ISA::SumBlock(losses, n);
    gradient_sum += fuseboard::FB_CPU_ISA::SumBlock(gradient, n);
  });
  if (call.loss != nullptr) call.loss[row] = static_cast<float>(loss);
  if (call.dinput == nullptr) return;
  const float scale = call.scale == nullptr ? 1.0f : call.scale[row * call.scale_stride];
  const float factor = scale * inverse_temperature;
  const auto sum = static_cast<float>(gradient_sum);
  T* dinput = static_cast<T*>(call.dinput) + row * call.dinput_stride;
  ForEachBlock(call.cols, [&](int64_t begin, int64_t n) {
    log_p.Block(begin, n, x);
    log_q.Block(begin, n, y);
    function(x, y, n, nullptr, gradient);
    for (int64_t i = 0; i < n; ++i) {
      gradient[i] = factor * (gradient[i] - fuseboard::FB_CPU_ISA::Exp(x[i]) * sum);
    }
    rows::StoreBlock(gradient, dinput + begin, n);
  });
}

template <typename Function>
int32_t RunLogits(const FbCall& raw, const row_loss::Call& call, const Function& function,
                  double temperature) {
  if (row_loss::IsEmpty(call)) return 0;
  const auto inverse = static_cast<float>(1.0 / temperature);
  const int64_t grain = rows::kGrainElements / (int64_t{call.cols} + 1) + 1;
  DispatchFloat(call.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    ParallelFor(raw, call.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (!rows::IsIgnored(call, row)) {
          SolveLogits<T>(call, function, inverse, row);
          continue;
        }
        if (call.loss != nullptr) call.loss[row] = 0.0f;
        ForEachBlock(call.cols,
                     [&](int64_t at, int64_t n) { rows::ClearBlock<T>(call, row, at, n); });
      }
    });
  });
  return 0;
}

}  // namespace fuseboard::jsd::FB_CPU_ISA

#endif  // KERNELS_JSD_LOGITS_CPU_H_
