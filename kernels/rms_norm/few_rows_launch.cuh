// Host side of few_rows_backward.cuh.

#ifndef KERNELS_RMS_NORM_FEW_ROWS_LAUNCH_CUH_
#define KERNELS_RMS_NORM_FEW_ROWS_LAUNCH_CUH_

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/rms_norm/few_rows_backward.cuh"
#include "kernels/rms_norm/few_rows_policy.h"

namespace fuseboard::rms_norm {

using FewRowsKernel = void (*)(FewRowsArgs);

template <bool kCenter, bool kAdd>
FewRowsKernel SelectFewRowsKernel(int32_t dtype, int packs) {
  return DispatchFloat(dtype, [&](auto tag) -> FewRowsKernel {
    using X = typename decltype(tag)::type;
    return packs == 1 ? FewRowsBackwardKernel<X, kCenter, kAdd, 1>
                      : FewRowsBackwardKernel<X, kCenter, kAdd, 2>;
  });
}

// Enqueues it for `args` without its sizes. `dx`, `dweight` and `dbias` may each be absent.
template <bool kCenter, bool kAdd>
cudaError_t LaunchFewRows(const FbCall& call, int32_t dtype, const Policy& policy, int64_t rows,
                          int64_t hidden, FewRowsArgs args) {
  const int64_t row_packs = hidden * (dtype == FB_F32 ? 4 : 2) / 16;
  const bool has_sums = args.dweight != nullptr || args.dbias != nullptr;
  args.rows = static_cast<int32_t>(rows);
  args.row_packs = static_cast<int32_t>(row_packs);
  args.column_blocks = has_sums ? static_cast<int32_t>(CeilDiv(row_packs, kFewRowsTile)) : 0;
  args.inverse_hidden = 1.0f / static_cast<float>(hidden);
  const LaunchShape shape = {.blocks = args.column_blocks + (args.dx != nullptr ? rows : 0),
                             .threads = dim3(static_cast<unsigned>(policy.threads_per_row)),
                             .dependent = call.sm >= 90,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  if (shape.blocks == 0) return cudaSuccess;
  return LaunchKernel(SelectFewRowsKernel<kCenter, kAdd>(dtype, policy.packs), shape, args);
}

template <bool kCenter, bool kAdd>
cudaError_t LoadFewRowsKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int packs : {1, 2}) {
      const cudaError_t error = LoadKernel(SelectFewRowsKernel<kCenter, kAdd>(dtype, packs));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_FEW_ROWS_LAUNCH_CUH_
