#include "kernels/torch/qk_norm_rope_arguments.h"

#include "kernels/torch/checks.h"

namespace fuseboard::torch_binding {

void NormRopeArguments::CheckWeight(size_t side) const {
  if (!weight(side).has_value()) return;
  const char* name = side == 0 ? "q_weight" : "k_weight";
  const at::Tensor& of = heads(side);
  const at::Tensor& tensor = *weight(side);
  TORCH_CHECK(of.defined(), "qk_norm_rope: k_weight is given without k");
  CheckFloating("qk_norm_rope", name, tensor);
  CheckDim("qk_norm_rope", name, tensor, 1);
  CheckSameDevice("qk_norm_rope", "q", q_, name, tensor);
  const c10::SymInt dim = of.sym_size(-1);
  CheckSize("qk_norm_rope", side == 0 ? "q_weight.size(0)" : "k_weight.size(0)", tensor.sym_size(0),
            "a row's number of elements", norm.all_heads ? of.sym_size(-3) * dim : dim);
}

void NormRopeArguments::Check() const {
  CheckRotary("qk_norm_rope", q_, k_, cos, sin, rotary);
  const int32_t casting = norm.params.casting;
  TORCH_CHECK(casting >= FB_CASTING_LLAMA && casting <= FB_CASTING_NONE,
              "qk_norm_rope: casting is ", casting, ", want 0 (llama), 1 (gemma) or 2 (none)");
  CheckWeight(0);
  CheckWeight(1);
}

FbQkNormRopeParams NormRopeArguments::params() const {
  FbQkNormRopeParams result = {};
  result.struct_size = sizeof(FbQkNormRopeParams);
  result.casting = norm.params.casting;
  result.eps = norm.params.eps;
  result.offset = norm.params.offset;
  result.all_heads = norm.all_heads ? 1 : 0;
  result.rope = rotary.params();
  return result;
}

}  // namespace fuseboard::torch_binding
