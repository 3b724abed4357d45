// The arguments that the operators of qk_norm_rope share, q and k side by side, and their checks.

#ifndef KERNELS_TORCH_QK_NORM_ROPE_ARGUMENTS_H_
#define KERNELS_TORCH_QK_NORM_ROPE_ARGUMENTS_H_

#include "kernels/abi/qk_norm_rope.h"
#include "kernels/torch/qk_norm_rope_composite.h"

namespace fuseboard::torch_binding {

// References: lives no longer than the operator's call. Side 0 is q, side 1 is k.
class NormRopeArguments {
 public:
  NormRopeArguments(const at::Tensor& q, const std::optional<at::Tensor>& k,
                    const std::optional<at::Tensor>& q_weight,
                    const std::optional<at::Tensor>& k_weight, const at::Tensor& cos,
                    const at::Tensor& sin, double eps, double offset, int64_t casting,
                    bool all_heads, const RotaryOptions& rotary)
      : cos(cos),
        sin(sin),
        norm{{sizeof(FbRmsNormParams), static_cast<int32_t>(casting), eps, offset}, all_heads},
        rotary(rotary),
        q_(q),
        k_(k),
        q_weight_(q_weight),
        k_weight_(k_weight) {}

  // Errors: c10::Error, naming the argument and both values.
  void Check() const;

  // Undefined for a k that is None.
  const at::Tensor& heads(size_t side) const { return side == 0 ? q_ : ValueOrUndefined(k_); }
  const std::optional<at::Tensor>& weight(size_t side) const {
    return side == 0 ? q_weight_ : k_weight_;
  }
  at::ScalarType ResultType(size_t side) const {
    return NormedType(heads(side), weight(side), norm);
  }
  c10::Device device() const { return q_.device(); }

  FbQkNormRopeParams params() const;

  const at::Tensor& cos;
  const at::Tensor& sin;
  const HeadNorm norm;
  const RotaryOptions rotary;

 private:
  void CheckWeight(size_t side) const;

  const at::Tensor& q_;
  const std::optional<at::Tensor>& k_;
  const std::optional<at::Tensor>& q_weight_;
  const std::optional<at::Tensor>& k_weight_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_QK_NORM_ROPE_ARGUMENTS_H_
