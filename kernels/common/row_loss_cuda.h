// What the host decides about a row loss on CUDA before it launches. No CUDA header.

#ifndef KERNELS_COMMON_ROW_LOSS_CUDA_H_
#define KERNELS_COMMON_ROW_LOSS_CUDA_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/reject.h"
#include "kernels/common/row_alignment.h"
#include "kernels/common/row_loss_policy.h"

namespace fuseboard::row_loss {

// Whether the matrices of a checked call are taken in the same 16-byte units. Rows that are summed
// are if their inputs can be, wherever their gradient lies: it must not change the order.
inline bool InUnits(const FbCall& call) {
  const bool has_elements = call.num_outputs == 3 && !IsAbsent(call.outputs[1]);
  const bool sums = call.num_outputs > 1 && !has_elements;
  RowAlignment alignment;
  const auto add = [&](const FbTensor& tensor) {
    if (tensor.ndim == 2) alignment.Add(tensor);
  };
  for (int32_t i = 0; i < call.num_inputs; ++i) add(call.inputs[i]);
  for (int32_t i = 0; i < call.num_outputs && !sums; ++i) add(call.outputs[i]);
  return alignment.alike();
}

template <typename C>
Policy PolicyFor(const FbCall& call, int64_t cols) {
  // The second input is target in a forward and input in a backward: of the elements' dtype.
  const int64_t lanes = call.inputs[1].dtype == FB_F32 ? 4 : 8;
  return SelectPolicy<C>(InUnits(call) ? cols / lanes : cols);
}

// FbEntry::workspace_bytes of a forward: a float for each tile if a row has several.
inline uint64_t ForwardWorkspaceBytes(const FbCall* call) {
  if (IsAbsent(call->outputs[0])) return 0;
  const Policy policy = PolicyFor<DefaultCut>(*call, call->inputs[0].shape[1]);
  if (policy.tiles_per_row == 1) return 0;
  return static_cast<uint64_t>(call->inputs[0].shape[0]) *
         static_cast<uint64_t>(policy.tiles_per_row) * sizeof(float);
}

}  // namespace fuseboard::row_loss

#endif  // KERNELS_COMMON_ROW_LOSS_CUDA_H_
