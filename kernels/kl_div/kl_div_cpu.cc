// kl_div on the CPU, compiled once per instruction set: the elements; rows are row_loss_cpu.h's.

#include "kernels/kl_div/kl_div_cpu.h"

#include "kernels/common/cpu_log.h"
#include "kernels/common/row_loss_cpu.h"
#include "kernels/kl_div/kl_div_call.h"

namespace fuseboard::kl_div::FB_CPU_ISA {
namespace {

using fuseboard::FB_CPU_ISA::Exp;
using fuseboard::FB_CPU_ISA::Log;
namespace rows = row_loss::FB_CPU_ISA;

struct OfProbabilities {
  float floor;  // See FloorOf.

  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    if (loss != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        const float logarithm = Log(y[i] < floor ? floor : y[i]);
        loss[i] = (y[i] == 0.0f ? 0.0f : y[i] * logarithm) - y[i] * x[i];
      }
    }
    if (gradient != nullptr) {
      for (int64_t i = 0; i < n; ++i) gradient[i] = -y[i];
    }
  }
};

struct OfLogProbabilities {
  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    float probability[rows::kBlock];
    for (int64_t i = 0; i < n; ++i) probability[i] = Exp(y[i]);
    if (loss != nullptr) {
      for (int64_t i = 0; i < n; ++i) loss[i] = probability[i] * (y[i] - x[i]);
    }
    if (gradient != nullptr) {
      for (int64_t i = 0; i < n; ++i) gradient[i] = -probability[i];
    }
  }
};

int32_t Run(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  const FbKlDivParams& params = ParamsOf(raw);
  if (params.log_target != 0) return rows::Run(raw, call, OfLogProbabilities(), workspace);
  return rows::Run(raw, call, OfProbabilities{FloorOf(params)}, workspace);
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

}  // namespace fuseboard::kl_div::FB_CPU_ISA
