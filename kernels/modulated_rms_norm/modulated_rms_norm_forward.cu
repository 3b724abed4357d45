#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/rms_norm/rms_norm_forward_launch.cuh"

namespace fuseboard::modulated_rms_norm {
namespace {

using rms_norm::ForwardCall;
using RowKernel = rms_norm::ForwardKernel</*kModulate=*/true>;

RowKernel SelectRowKernel(int32_t dtype, int threads) {
  return DispatchFloat(dtype, [&](auto tag) -> RowKernel {
    using X = typename decltype(tag)::type;
    return threads <= 64 ? ModulatedForwardRowsKernel<X, 2, kRowPacks, 1, true, 24>
                         : ModulatedForwardRowsKernel<X, kRowWarps, kRowPacks, 1, true, 24>;
  });
}

// Threads of a block that has a row, or 0 where the kernel for that is not made for the call.
int ThreadsOfRow(const ForwardCall& f) {
  const int32_t dtype = f.x.dtype;
  const bool same = f.y.dtype == dtype && f.scale->dtype == dtype && f.shift->dtype == dtype &&
                    (IsAbsent(f.weight) || f.weight.dtype == dtype);
  const int bytes = dtype == FB_F32 ? 4 : 2;
  if (!same || f.norm.rows > rms_norm::kMaxGroups || !rms_norm::InPacks(f, bytes, bytes)) return 0;
  return SelectRowThreads(f.norm.hidden * bytes / 16);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  const int threads = f.norm.rows == 0 ? 0 : ThreadsOfRow(f);
  if (threads == 0) {
    return rms_norm::LaunchForwardAs</*kAdd=*/false, /*kModulate=*/true>(
        *call, f, rms_norm::PolicyOfForward(*call, f));
  }
  const LaunchShape shape = {.blocks = f.norm.rows,
                             .threads = dim3(static_cast<unsigned>(threads)),
                             .stream = static_cast<cudaStream_t>(call->stream)};
  return LaunchKernel(SelectRowKernel(f.x.dtype, threads), shape,
                      rms_norm::ArgsOfForward</*kAdd=*/false, /*kModulate=*/true>(f));
}

int32_t LoadForwardKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int threads : {64, 256}) {
      const cudaError_t error = LoadKernel(SelectRowKernel(dtype, threads));
      if (error != cudaSuccess) return error;
    }
  }
  return rms_norm::LoadForwardKernelsAs</*kAdd=*/false, /*kModulate=*/true>();
}

}  // namespace fuseboard::modulated_rms_norm
