#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/rms_norm/rms_norm_forward_launch.cuh"

namespace fuseboard::modulated_rms_norm {
namespace {

using rms_norm::ForwardCall;
using RowsKernel = rms_norm::ForwardKernel</*kModulate=*/true>;

// A structure as a template parameter is more than nvcc 13.0's stubs of kernels can name.
template <typename X, const RowsForm& kForm, int kResidentWarps>
RowsKernel RowsKernelOf() {
  return ModulatedForwardRowsKernel<X, kForm.warps, kForm.packs, kForm.rows, kResidentWarps>;
}

RowsKernel SelectRowsKernel(int32_t dtype, const RowsForm& form) {
  return DispatchFloat(dtype, [&](auto tag) -> RowsKernel {
    using X = typename decltype(tag)::type;
    if (form.rows == 1) return RowsKernelOf<X, kOneRow, 24>();
    if (form == kTwoRows) return RowsKernelOf<X, kTwoRows, 32>();
    return form == kTwoWideRows ? RowsKernelOf<X, kTwoWideRows, 16>()
                                : RowsKernelOf<X, kTwoWidestRows, 16>();
  });
}

// {} where the kernel for some rows to a block is not made for the call.
RowsForm RowsFormOf(const ForwardCall& f) {
  const int32_t dtype = f.x.dtype;
  const bool same = f.y.dtype == dtype && f.scale->dtype == dtype && f.shift->dtype == dtype &&
                    (IsAbsent(f.weight) || f.weight.dtype == dtype);
  const int bytes = dtype == FB_F32 ? 4 : 2;
  if (!same || f.norm.rows > rms_norm::kMaxGroups || !rms_norm::InPacks(f, bytes, bytes)) return {};
  return SelectRowsForm(f.norm.hidden * bytes / 16, f.norm.rows / f.scale->shape[0]);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  const RowsForm form = f.norm.rows == 0 ? RowsForm{} : RowsFormOf(f);
  if (form.rows == 0) {
    return rms_norm::LaunchForwardAs</*kAdd=*/false, /*kModulate=*/true>(
        *call, f, rms_norm::PolicyOfForward(*call, f));
  }
  const int64_t groups = f.scale->shape[0];
  const int64_t row_packs = f.norm.hidden * (f.x.dtype == FB_F32 ? 4 : 2) / 16;
  const LaunchShape shape = {.blocks = groups * rms_norm::CeilDiv(f.norm.rows / groups, form.rows),
                             .threads = dim3(static_cast<unsigned>(ThreadsOf(form, row_packs))),
                             .stream = static_cast<cudaStream_t>(call->stream)};
  return LaunchKernel(SelectRowsKernel(f.x.dtype, form), shape,
                      rms_norm::ArgsOfForward</*kAdd=*/false, /*kModulate=*/true>(f));
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const RowsForm& form : {kOneRow, kTwoRows, kTwoWideRows, kTwoWidestRows}) {
      const cudaError_t error = LoadKernel(SelectRowsKernel(dtype, form));
      if (error != cudaSuccess) return error;
    }
  }
  return rms_norm::LoadForwardKernelsAs</*kAdd=*/false, /*kModulate=*/true>();
}

}  // namespace fuseboard::modulated_rms_norm
