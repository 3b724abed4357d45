#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/modulated_rms_norm/wide_modulated.cuh"
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

int BytesOf(const ForwardCall& f) { return f.x.dtype == FB_F32 ? 4 : 2; }

// Whether the kernels for some rows to a block and for wide rows are made for the call.
bool IsOfOneDType(const ForwardCall& f) {
  const int32_t dtype = f.x.dtype;
  const bool same = f.y.dtype == dtype && f.scale->dtype == dtype && f.shift->dtype == dtype &&
                    (IsAbsent(f.weight) || f.weight.dtype == dtype);
  return same && f.norm.rows > 0 && f.norm.rows <= rms_norm::kMaxGroups &&
         rms_norm::InPacks(f, BytesOf(f), BytesOf(f));
}

WideModulatedForwardArgs WideArgsOf(const ForwardCall& f) {
  WideModulatedForwardArgs args = {};
  static_cast<rms_norm::WideForwardArgs&>(args) = rms_norm::WideArgsOf</*kAdd=*/false>(f);
  args.examples = {.scale = f.scale->data,
                   .scale_stride = f.scale->stride[0],
                   .rows = static_cast<int32_t>(f.norm.rows / f.scale->shape[0])};
  args.shift = f.shift->data;
  args.shift_stride = f.shift->stride[0];
  return args;
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  RowsForm form = {};
  if (IsOfOneDType(f)) {
    const int64_t row_packs = f.norm.hidden * BytesOf(f) / 16;
    const int64_t group_rows = f.norm.rows / f.scale->shape[0];
    const rms_norm::Policy wide = SelectWideForward(call->sm, row_packs, BytesOf(f), group_rows);
    if (wide.packs != 0 && RunsWideForward(*call, f.x.dtype, f.norm.hidden, wide)) {
      const int64_t clusters = WideClusters(*call, wide, f.norm.rows);
      return LaunchWideForward(*call, f.x.dtype, wide, WideArgsOf(f),
                               InStrides(clusters, group_rows));
    }
    form = SelectRowsForm(row_packs, group_rows);
  }
  if (form.rows == 0) {
    return rms_norm::LaunchForwardAs</*kAdd=*/false, /*kModulate=*/true>(
        *call, f, rms_norm::PolicyOfForward(*call, f));
  }
  const int64_t groups = f.scale->shape[0];
  const int64_t row_packs = f.norm.hidden * BytesOf(f) / 16;
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
  if (const cudaError_t error = LoadWideKernels(/*forward=*/true)) return error;
  return rms_norm::LoadForwardKernelsAs</*kAdd=*/false, /*kModulate=*/true>();
}

}  // namespace fuseboard::modulated_rms_norm
