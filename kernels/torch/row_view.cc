#include "kernels/torch/row_view.h"

#include <algorithm>

namespace fuseboard::torch_binding {
namespace {

int32_t DTypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return FB_F32;
    case at::kHalf:
      return FB_F16;
    case at::kBFloat16:
      return FB_BF16;
    case at::kDouble:
      return FB_F64;
    case at::kInt:
      return FB_I32;
    case at::kLong:
      return FB_I64;
    case at::kBool:
      return FB_BOOL;
    default:
      return -1;  // No kernel takes it; reject_reason says so.
  }
}

FbTensor WithoutShape(const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  FbTensor view{};
  // const_data_ptr, so that reading a copy-on-write tensor does not copy it.
  view.data = const_cast<void*>(tensor.const_data_ptr());
  view.dtype = DTypeOf(tensor.scalar_type());
  view.device_type = device.is_cuda() ? FB_CUDA : FB_CPU;
  view.device_index = device.is_cuda() ? device.index() : 0;
  return view;
}

// The one stride that steps through all leading dimensions in order, if there is one.
std::optional<int64_t> RowStride(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t stride = 0;
  int64_t next = -1;  // What the next outer dimension's stride must be; -1: nothing seen yet.
  for (size_t i = sizes.size() - 1; i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (next < 0) {
      stride = strides[i];
    } else if (strides[i] != next) {
      return std::nullopt;
    }
    next = strides[i] * sizes[i];
  }
  return next < 0 ? sizes.back() : stride;
}

}  // namespace

FbTensor ViewOf(const at::Tensor& tensor) {
  FbTensor view = WithoutShape(tensor);
  view.ndim = static_cast<int32_t>(tensor.dim());
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), view.shape);
  std::copy(tensor.strides().begin(), tensor.strides().end(), view.stride);
  return view;
}

FbTensor FlatViewOf(const at::Tensor& tensor) {
  FbTensor view = WithoutShape(tensor);
  view.ndim = 1;
  view.shape[0] = tensor.numel();
  view.stride[0] = 1;
  return view;
}

RowView::RowView(const at::Tensor& tensor) {
  const int64_t cols = tensor.size(-1);
  const int64_t rows = cols == 0 ? 0 : tensor.numel() / cols;
  std::optional<int64_t> row_stride;
  if (cols == 1 || tensor.stride(-1) == 1) row_stride = RowStride(tensor.sizes(), tensor.strides());
  if (!row_stride) {
    copy_ = tensor.contiguous();
    row_stride = cols;
  }
  view_ = WithoutShape(copy_.defined() ? copy_ : tensor);
  view_.ndim = 2;
  view_.shape[0] = rows;
  view_.shape[1] = cols;
  view_.stride[0] = *row_stride;
  view_.stride[1] = 1;
}

}  // namespace fuseboard::torch_binding
