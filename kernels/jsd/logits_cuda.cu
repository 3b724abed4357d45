#include "kernels/jsd/jsd.cuh"
#include "kernels/jsd/jsd_call.h"
#include "kernels/jsd/logits_cuda.h"
#include "kernels/jsd/logits_launch.cuh"

namespace fuseboard::jsd {

int32_t LogitsCuda(const FbCall& raw) {
  const row_loss::Call call = LogitsCallOf(raw);
  if (row_loss::IsEmpty(call)) return cudaSuccess;
  const FbJsdParams& params = ParamsOf(raw);
  const auto inverse = static_cast<float>(1.0 / params.temperature);
  if (params.beta == 0.0) return LaunchLogits(raw, call, TargetFromInput(), inverse);
  if (params.beta == 1.0) return LaunchLogits(raw, call, InputFromTarget(), inverse);
  return LaunchLogits(raw, call, Mixture(WeightsOf(params.beta)), inverse);
}

int32_t LoadLogitsKernels() {
  for (const auto load : {LoadLogitsKernelsOf<TargetFromInput>,
                          LoadLogitsKernelsOf<InputFromTarget>, LoadLogitsKernelsOf<Mixture>}) {
    if (const int32_t error = load()) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard::jsd
