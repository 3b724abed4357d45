// Rotary position embedding in ATen operators: what runs when no kernel library does.
//
// With round_products half rotation is, operator by operator, transformers' apply_rotary_pos_emb,
// and interleaved rotation GLM's, so that results and gradients have the same bits; without it, all
// is computed in fp32 (fp64 where an input is) and rounded once. Any shape, strides and mix of
// dtypes; the result has the dtype of the heads.

#ifndef KERNELS_TORCH_ROPE_COMPOSITE_H_
#define KERNELS_TORCH_ROPE_COMPOSITE_H_

#include "kernels/torch/rotary_heads.h"

namespace fuseboard::torch_binding {

// Factors in the form of a model's own code: one per element, [(batch), 1, positions, rotary_dim].
class RotaryFactors {
 public:
  RotaryFactors(const at::Tensor& cos, const at::Tensor& sin, const RotaryOptions& options);

  // Writes the rotated heads, or with `inverse` the gradient of their input, to `out`, of the same
  // shape and any strides.
  void Rotate(const at::Tensor& heads, bool inverse, const at::Tensor& out) const;

 private:
  at::Tensor OtherOfPair(const at::Tensor& x, bool inverse) const;

  at::Tensor cos_;
  at::Tensor sin_;
  int64_t rotary_dim_;
  bool interleaved_;
  bool round_products_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_ROPE_COMPOSITE_H_
