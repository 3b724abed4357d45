#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/row_alignment.h"
#include "kernels/softmax/softmax_cuda.h"
#include "kernels/softmax/softmax_looping.cuh"

namespace fuseboard::softmax {
namespace {

using Kernel = void (*)(Call);

// What of a call chooses its kernel, beside the dtype.
struct Form {
  int packs;
  bool cluster;
  bool aligned;  // Looping kernels: in packs, not element by element.
};

// Only rows of 8 packs per thread go to clusters.
template <typename T>
Kernel ForwardKernelOf(const Form& form) {
  switch (form.packs) {
    case 1:
      return SoftmaxForwardKernel<T, 1, false>;
    case 2:
      return SoftmaxForwardKernel<T, 2, false>;
    case 4:
      return SoftmaxForwardKernel<T, 4, false>;
    case 8:
      return form.cluster ? SoftmaxForwardKernel<T, 8, true> : SoftmaxForwardKernel<T, 8, false>;
    default:
      return form.aligned ? SoftmaxForwardLoopingKernel<T, kPackLanes<T>>
                          : SoftmaxForwardLoopingKernel<T, 1>;
  }
}

template <typename T>
Kernel BackwardKernelOf(const Form& form) {
  switch (form.packs) {
    case 1:
      return SoftmaxBackwardKernel<T, 1, false, false>;
    case 2:
      return SoftmaxBackwardKernel<T, 2, false, false>;
    case 4:
      return form.cluster ? SoftmaxBackwardKernel<T, 4, false, true>
                          : SoftmaxBackwardKernel<T, 4, false, false>;
    case 8:
      return SoftmaxBackwardKernel<T, 8, true, true>;
    default:
      return form.aligned ? SoftmaxBackwardLoopingKernel<T, kPackLanes<T>>
                          : SoftmaxBackwardLoopingKernel<T, 1>;
  }
}

Kernel KernelOf(FbPhase phase, int32_t dtype, const Form& form) {
  return DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return phase == FB_FORWARD ? ForwardKernelOf<T>(form) : BackwardKernelOf<T>(form);
  });
}

RowAlignment AlignmentOf(const FbCall& call) {
  RowAlignment alignment;
  for (int i = 0; i < call.num_inputs; ++i) alignment.Add(call.inputs[i]);
  alignment.Add(call.outputs[0]);
  return alignment;
}

bool HasEdges(const FbCall& call, const RowAlignment& alignment) {
  const FbTensor& x = call.inputs[0];
  return x.shape[1] * (x.dtype == FB_F32 ? 4 : 2) % 16 != 0 || !alignment.whole();
}

// The same rows from the last to the first. Who made dy wrote its last rows last, and finds them in
// the L2 cache: H200, forward and backward of 8192 x 4096 bf16 84 us, in order 86. Rows with edges
// stay in order: 2048 x 50257 287 us, reversed 291.
Call Reversed(Call call) {
  const int64_t bytes = call.dtype == FB_F32 ? 4 : 2;
  const auto reverse = [&](Matrix& matrix) {
    matrix.base = static_cast<char*>(matrix.base) + (call.rows - 1) * matrix.stride * bytes;
    matrix.stride = -matrix.stride;
  };
  for (Matrix& matrix : call.in) reverse(matrix);
  reverse(call.out);
  return call;
}

int32_t Launch(FbPhase phase, const FbCall& raw, const Policy& policy,
               const RowAlignment& alignment) {
  Call call = CallOf(raw);
  if (call.rows == 0) return cudaSuccess;
  const bool aligned = alignment.alike();
  if (phase == FB_BACKWARD && aligned && !HasEdges(raw, alignment)) call = Reversed(call);
  const LaunchShape shape = {.blocks = std::min(BlocksOf(policy, call.rows), kMaxBlocks),
                             .threads = dim3(policy.threads_per_row, policy.rows_per_block),
                             .cluster = policy.cluster,
                             .shared_bytes = SharedBytes(policy),
                             .dependent = raw.sm >= 90,
                             .stream = static_cast<cudaStream_t>(raw.stream)};
  return LaunchKernel(KernelOf(phase, call.dtype, {policy.packs, policy.cluster > 1, aligned}),
                      shape, call);
}

int32_t SelectAndLaunch(FbPhase phase, const FbCall& raw) {
  const FbTensor& x = raw.inputs[0];
  const RowAlignment alignment = AlignmentOf(raw);
  Policy policy = {};
  if (alignment.alike()) {
    const int64_t row_bytes = x.shape[1] * (x.dtype == FB_F32 ? 4 : 2);
    const RowShape row = {.packs = row_bytes / 16, .has_edges = HasEdges(raw, alignment)};
    policy = phase == FB_FORWARD ? SelectForward(raw.sm, row) : SelectBackward(raw.sm, row);
    policy = SpreadRows(policy, x.shape[0], raw.sm_count);
  }
  const bool fits = policy.packs != 0 && BlocksOf(policy, x.shape[0]) <= kMaxBlocks;
  if (!fits) policy = SelectLooping(x.shape[1]);
  return Launch(phase, raw, policy, alignment);
}

}  // namespace

int32_t ForwardCuda(const FbCall* call, void* /*workspace*/) {
  return SelectAndLaunch(FB_FORWARD, *call);
}

int32_t BackwardCuda(const FbCall* call, void* /*workspace*/) {
  return SelectAndLaunch(FB_BACKWARD, *call);
}

int32_t LaunchForward(const FbCall& call, const Policy& policy) {
  return Launch(FB_FORWARD, call, policy, AlignmentOf(call));
}

int32_t LaunchBackward(const FbCall& call, const Policy& policy) {
  return Launch(FB_BACKWARD, call, policy, AlignmentOf(call));
}

int32_t LoadKernels() {
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      for (const int packs : {0, 1, 2, 4, 8}) {
        for (const bool second : {false, true}) {  // In a cluster, or aligned.
          const cudaError_t error = LoadKernel(KernelOf(phase, dtype, {packs, second, second}));
          if (error != cudaSuccess) return error;
        }
      }
    }
  }
  return cudaSuccess;
}

}  // namespace fuseboard::softmax
