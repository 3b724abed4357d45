#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/modulated_rms_norm/wide_forward_launch.cuh"
#include "kernels/rms_norm/few_rows_forward.cuh"
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

RowsKernel SelectFewRowsKernel(int32_t dtype) {
  return DispatchFloat(dtype, [](auto tag) -> RowsKernel {
    using X = typename decltype(tag)::type;
    return rms_norm::FewRowsForwardKernel<X, /*kAdd=*/false, /*kModulate=*/true, 2>;
  });
}

int BytesOf(const ForwardCall& f) { return f.x.dtype == FB_F32 ? 4 : 2; }
int64_t RowPacks(const ForwardCall& f) { return f.norm.hidden * BytesOf(f) / 16; }

// Rows in packs, all of one dtype.
bool IsUsual(const ForwardCall& f) {
  const int32_t dtype = f.x.dtype;
  return f.norm.rows > 0 && f.norm.rows <= rms_norm::kMaxGroups && f.y.dtype == dtype &&
         f.scale->dtype == dtype && f.shift->dtype == dtype &&
         (IsAbsent(f.weight) || f.weight.dtype == dtype) &&
         rms_norm::InPacks(f, BytesOf(f), BytesOf(f));
}

rms_norm::ModulatedForwardArgs ArgsOf(const ForwardCall& f) {
  return rms_norm::ArgsOfForward</*kAdd=*/false, /*kModulate=*/true>(f);
}

int32_t LaunchFewRows(const FbCall& call, const ForwardCall& f, const rms_norm::Policy& policy) {
  const LaunchShape shape = {.blocks = f.norm.rows,
                             .threads = dim3(static_cast<unsigned>(policy.threads_per_row)),
                             .dependent = call.sm >= 90,
                             .stream = static_cast<cudaStream_t>(call.stream)};
  return LaunchKernel(SelectFewRowsKernel(f.x.dtype), shape, ArgsOf(f));
}

int32_t LaunchRows(const FbCall& call, const ForwardCall& f, const RowsForm& form) {
  const int64_t groups = f.scale->shape[0];
  const LaunchShape shape = {.blocks = groups * rms_norm::CeilDiv(f.norm.rows / groups, form.rows),
                             .threads = dim3(static_cast<unsigned>(ThreadsOf(form, RowPacks(f)))),
                             .stream = static_cast<cudaStream_t>(call.stream)};
  return LaunchKernel(SelectRowsKernel(f.x.dtype, form), shape, ArgsOf(f));
}

WideModulatedForwardArgs WideArgsOf(const ForwardCall& f) {
  WideModulatedForwardArgs args = {};
  static_cast<rms_norm::WideForwardArgs&>(args) = rms_norm::WideArgsOf</*kAdd=*/false>(f);
  args.examples.scale = f.scale->data;
  args.examples.scale_stride = f.scale->stride[0];
  args.examples.rows = static_cast<int32_t>(f.norm.rows / f.scale->shape[0]);
  args.shift = f.shift->data;
  args.shift_stride = f.shift->stride[0];
  return args;
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  if (IsUsual(f)) {
    const int64_t group_rows = f.norm.rows / f.scale->shape[0];
    const rms_norm::Policy few = SelectFewForward(f.norm.rows, RowPacks(f));
    if (few.few_rows) return LaunchFewRows(*call, f, few);
    const rms_norm::Policy wide = SelectWideForward(call->sm, RowPacks(f), BytesOf(f), group_rows);
    if (wide.packs != 0 && RunsWideForward(*call, f.x.dtype, f.norm.hidden, wide)) {
      const int64_t clusters = WideClusters(*call, wide, f.norm.rows);
      return LaunchWideForward(*call, f.x.dtype, wide, WideArgsOf(f),
                               InStrides(clusters, group_rows));
    }
    const RowsForm form = SelectRowsForm(RowPacks(f), group_rows);
    if (form.rows > 0) return LaunchRows(*call, f, form);
  }
  return rms_norm::LaunchForwardAs</*kAdd=*/false, /*kModulate=*/true>(
      *call, f, rms_norm::PolicyOfForward(*call, f));
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const RowsForm& form : {kOneRow, kTwoRows, kTwoWideRows, kTwoWidestRows}) {
      const cudaError_t error = LoadKernel(SelectRowsKernel(dtype, form));
      if (error != cudaSuccess) return error;
    }
  }
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    if (const cudaError_t error = LoadKernel(SelectFewRowsKernel(dtype))) return error;
  }
  if (const cudaError_t error = LoadWideForwardKernels()) return error;
  return rms_norm::LoadForwardKernelsAs</*kAdd=*/false, /*kModulate=*/true>();
}

}  // namespace fuseboard::modulated_rms_norm
