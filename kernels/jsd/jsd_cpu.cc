// jsd on the CPU, compiled once per instruction set: the elements; rows are row_loss_cpu.h's.

#include "kernels/jsd/jsd_cpu.h"

#include "kernels/common/cpu_log.h"
#include "kernels/common/row_loss_cpu.h"
#include "kernels/jsd/jsd_call.h"
#include "kernels/jsd/logits_cpu.h"

namespace fuseboard::jsd::FB_CPU_ISA {
namespace {

using fuseboard::FB_CPU_ISA::Exp;
using fuseboard::FB_CPU_ISA::ExpNonPositive;
using fuseboard::FB_CPU_ISA::Log;
// p * (y - x) of p = e^y: 0 where p is, whatever it is multiplied by, but NaN of NaN.
inline float Divergence(float p, float y, float x) {
  const float none = x != x ? x : p;
  return p > 0.0f ? p * (y - x) : none;
}

// beta = 0
struct TargetFromInput {
  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    float p[rows::kBlock];
    for (int64_t i = 0; i < n; ++i) p[i] = Exp(y[i]);
    if (loss != nullptr) {
      for (int64_t i = 0; i < n; ++i) loss[i] = Divergence(p[i], y[i], x[i]);
    }
    if (gradient != nullptr) {
      for (int64_t i = 0; i < n; ++i) gradient[i] = -p[i];
    }
  }
};

// beta = 1
struct InputFromTarget {
  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    float q[rows::kBlock];
    float divergence[rows::kBlock];
    for (int64_t i = 0; i < n; ++i) q[i] = Exp(x[i]);
    for (int64_t i = 0; i < n; ++i) divergence[i] = Divergence(q[i], x[i], y[i]);
    if (loss != nullptr) {
      for (int64_t i = 0; i < n; ++i) loss[i] = divergence[i];
    }
    if (gradient != nullptr) {
      for (int64_t i = 0; i < n; ++i) gradient[i] = divergence[i] + q[i];
    }
  }
};

// Between the ends; the formulas are those of jsd.cuh. Short loops: the compiler vectorises no
// longer ones for x86-64.
class Mixture {
 public:
  explicit Mixture(const Weights& weights) : weights_(weights) {}

  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    constexpr float kFar = 110.0f;  // e^-kFar is 0.
    Block block;
    for (int64_t i = 0; i < n; ++i) {
      const float most = x[i] > y[i] ? x[i] : y[i];
      const float distance = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
      block.top[i] = Exp(x[i] != x[i] ? x[i] : most);
      block.gap[i] = distance < kFar ? distance : kFar;
      block.ratio[i] = ExpNonPositive(-block.gap[i]);
    }
    const Weights w = weights_;
    for (int64_t i = 0; i < n; ++i) {
      const bool input_is_top = x[i] > y[i];
      block.low_part[i] = (input_is_top ? w.target : w.input) * block.ratio[i];
      block.mixture[i] = block.low_part[i] + (input_is_top ? w.input : w.target);
    }
    for (int64_t i = 0; i < n; ++i) block.log_mixture[i] = Log(block.mixture[i]);
    if (loss != nullptr) StoreLoss(block, n, loss);
    if (gradient != nullptr) StoreGradient(x, y, block, n, gradient);
  }

 private:
  struct Block {
    float top[rows::kBlock];       // The larger probability of the two.
    float gap[rows::kBlock];       // The distance of their logarithms.
    float ratio[rows::kBlock];     // e^-gap
    float low_part[rows::kBlock];  // Of the smaller one in mixture.
    float mixture[rows::kBlock];   // Over top.
    float log_mixture[rows::kBlock];
  };

  static void StoreLoss(const Block& block, int64_t n, float* loss) {
    for (int64_t i = 0; i < n; ++i) {
      loss[i] = -block.top[i] *
                (block.mixture[i] * block.log_mixture[i] + block.low_part[i] * block.gap[i]);
    }
  }

  void StoreGradient(const float* x, const float* y, const Block& block, int64_t n,
                     float* gradient) const {
    const float weight = weights_.input;
    for (int64_t i = 0; i < n; ++i) {
      const bool input_is_top = x[i] > y[i];
      const float q = block.top[i] * (input_is_top ? 1.0f : block.ratio[i]);
      const float log_ratio = block.log_mixture[i] + (input_is_top ? 0.0f : block.gap[i]);
      gradient[i] = -weight * q * log_ratio;
    }
  }

  Weights weights_;
};

// Calls run(function) with the function of the call's beta.
template <typename Fn>
int32_t WithFunction(const FbCall& call, const Fn& run) {
  const double beta = ParamsOf(call).beta;
  if (beta == 0.0) return run(TargetFromInput());
  if (beta == 1.0) return run(InputFromTarget());
  return run(Mixture(WeightsOf(beta)));
}

int32_t Run(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  return WithFunction(raw, [&](const auto& f) { return rows::Run(raw, call, f, workspace); });
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* workspace) {
  if (IsFromLogits(*call)) {
    return WithFunction(*call, [&](const auto& f) {
      return RunLogits(*call, LogitsCallOf(*call), f, ParamsOf(*call).temperature);
    });
  }
  return Run(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

}  // namespace fuseboard::jsd::FB_CPU_ISA
