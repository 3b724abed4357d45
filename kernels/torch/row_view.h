// Tensors as the C views that kernel libraries take.

#ifndef KERNELS_TORCH_ROW_VIEW_H_
#define KERNELS_TORCH_ROW_VIEW_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::torch_binding {

// Stands for an optional tensor that is not there.
inline constexpr FbTensor kAbsent = [] {
  FbTensor absent{};
  absent.ndim = -1;
  return absent;
}();

// `tensor` with its own shape and strides. The view does not own the memory; a kernel's inputs may
// be written through it only if the kernel's contract says so. REQUIRES: at most FB_MAX_DIMS
// dimensions.
FbTensor ViewOf(const at::Tensor& tensor);

// `tensor` as one dimension. REQUIRES: contiguous.
FbTensor FlatViewOf(const at::Tensor& tensor);

// A tensor of any rank and strides seen as [rows, cols] with one row stride and column stride 1.
// Holds a contiguous copy if its strides do not allow that: (b, s, h, d) contiguous, sliced in the
// last dimension or expanded in all leading ones needs none; a transposed view does.
class RowView {
 public:
  explicit RowView(const at::Tensor& tensor);

  const FbTensor& view() const { return view_; }

 private:
  at::Tensor copy_;  // Undefined if the view is of the tensor itself.
  FbTensor view_;
};

inline const at::Tensor& ValueOrUndefined(const std::optional<at::Tensor>& tensor) {
  static const at::Tensor undefined;
  return tensor.has_value() ? *tensor : undefined;
}

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_ROW_VIEW_H_
