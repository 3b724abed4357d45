// What the operators of rotary position embedding share: q and k as tensors of heads, the tables of
// factors, and results that lie in memory as their inputs do.

#ifndef KERNELS_TORCH_ROTARY_HEADS_H_
#define KERNELS_TORCH_ROTARY_HEADS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kernels/abi/rope.h"
#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {

// The options of kernels/abi/rope.h. `sections` is empty, or three numbers: then the tables have
// one more dimension in front, the streams.
struct RotaryOptions {
  int64_t rotary_dim;
  at::IntArrayRef sections;
  bool interleaved;
  bool round_products;

  FbRopeParams params() const;
};

// q and k are [batch, heads, positions, dim] or [heads, positions, dim]; cos and sin are
// [positions, width] or [1 or batch, positions, width], width being rotary_dim or half of it.
//
// Errors: c10::Error, naming `operation`, the tensor and both values.
void CheckRotary(const char* operation, const at::Tensor& q, const std::optional<at::Tensor>& k,
                 const at::Tensor& cos, const at::Tensor& sin, const RotaryOptions& options);

// The leading dimensions of a tensor of heads, from the outermost in memory to the innermost.
// Dimensions of size 1 or stride 0 stay where they are.
std::vector<int64_t> HeadOrderOf(const at::Tensor& heads);

// An uninitialised dense tensor whose leading dimensions lie in `order` and whose last is
// innermost: what a model's own operators would leave, so that the next view of it needs no copy.
at::Tensor EmptyHeads(at::IntArrayRef sizes, at::IntArrayRef order, at::ScalarType dtype,
                      c10::Device device);
at::Tensor EmptyHeadsMeta(c10::SymIntArrayRef sizes, at::IntArrayRef order,
                          const at::TensorOptions& options);

// A tensor of heads as kernels take it, with four dimensions. Holds a contiguous copy if the last
// dimension has another stride than 1.
class HeadsView {
 public:
  explicit HeadsView(const at::Tensor& heads);

  const FbTensor& view() const { return view_; }

 private:
  at::Tensor copy_;  // Undefined if the view is of the tensor itself.
  FbTensor view_;
};

// A table of factors as kernels take it: [streams, batch, positions, width].
FbTensor TableView(const at::Tensor& table, bool has_streams);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_ROTARY_HEADS_H_
