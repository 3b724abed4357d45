// jsd on the CPU, compiled once per instruction set: the elements; rows are row_loss_cpu.h's.

#include "kernels/jsd/jsd_cpu.h"

#include "kernels/common/cpu_log.h"
#include "kernels/common/row_loss_cpu.h"
#include "kernels/jsd/jsd_call.h"

namespace fuseboard::jsd::FB_CPU_ISA {
namespace {

using fuseboard::FB_CPU_ISA::Exp;
using fuseboard::FB_CPU_ISA::ExpNonPositive;
using fuseboard::FB_CPU_ISA::Log;
namespace rows = row_loss::FB_CPU_ISA;

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

// The formulas are those of jsd.cuh.
struct Mixture {
  Weights weights;

  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    constexpr float kFar = 110.0f;  // e^-kFar is 0.
    float top[rows::kBlock];        // The larger probability of the two.
    float gap[rows::kBlock];        // The distance of their logarithms.
    float ratio[rows::kBlock];      // e^-gap
    float log_mixture[rows::kBlock];
    for (int64_t i = 0; i < n; ++i) {
      const float most = x[i] > y[i] ? x[i] : y[i];
      const float distance = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
      top[i] = Exp(x[i] != x[i] ? x[i] : most);
      gap[i] = distance < kFar ? distance : kFar;
      ratio[i] = ExpNonPositive(-gap[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const bool input_is_top = x[i] > y[i];
      const float top_weight = input_is_top ? weights.input : weights.target;
      const float low_part = (input_is_top ? weights.target : weights.input) * ratio[i];
      const float mixture = low_part + top_weight;
      log_mixture[i] = Log(mixture);
      if (loss != nullptr) loss[i] = -top[i] * (mixture * log_mixture[i] + low_part * gap[i]);
    }
    if (gradient == nullptr) return;
    for (int64_t i = 0; i < n; ++i) {
      const bool input_is_top = x[i] > y[i];
      const float q = input_is_top ? top[i] : top[i] * ratio[i];
      const float log_ratio = input_is_top ? log_mixture[i] : log_mixture[i] + gap[i];
      gradient[i] = -weights.input * q * log_ratio;
    }
  }
};

int32_t Run(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  const double beta = ParamsOf(raw).beta;
  if (beta == 0.0) return rows::Run(raw, call, TargetFromInput(), workspace);
  if (beta == 1.0) return rows::Run(raw, call, InputFromTarget(), workspace);
  return rows::Run(raw, call, Mixture{WeightsOf(beta)}, workspace);
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

}  // namespace fuseboard::jsd::FB_CPU_ISA
