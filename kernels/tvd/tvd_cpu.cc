// tvd on the CPU, compiled once per instruction set: the elements; rows are row_loss_cpu.h's.

#include "kernels/tvd/tvd_cpu.h"

#include "kernels/common/row_loss_cpu.h"
#include "kernels/tvd/tvd_call.h"

namespace fuseboard::tvd::FB_CPU_ISA {
namespace {

namespace rows = row_loss::FB_CPU_ISA;

struct Distance {
  void operator()(const float* x, const float* y, int64_t n, float* loss, float* gradient) const {
    if (loss != nullptr) {
      for (int64_t i = 0; i < n; ++i) loss[i] = 0.5f * __builtin_fabsf(x[i] - y[i]);
    }
    if (gradient != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        const float above = x[i] > y[i] ? 0.5f : 0.0f;
        gradient[i] = x[i] < y[i] ? -0.5f : above;
      }
    }
  }
};

int32_t Run(const FbCall& raw, const row_loss::Call& call, void* workspace) {
  return rows::Run(raw, call, Distance(), workspace);
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::ForwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  return Run(*call, row_loss::BackwardCallOf(*call, ParamsOf(*call).ignore_index), workspace);
}

}  // namespace fuseboard::tvd::FB_CPU_ISA
