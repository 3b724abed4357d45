#include "kernels/torch/modulation.h"

#include "kernels/torch/checks.h"

namespace fuseboard::torch_binding {
namespace {

// [batch, hidden] where x has more dimensions between.
bool IsPerExample(const at::Tensor& modulation, const at::Tensor& x) {
  return modulation.dim() == 2 && x.dim() > 2;
}

// [batch, hidden] as [batch, 1, ..., hidden], with `dim` dimensions.
at::Tensor WithDimsBetween(at::Tensor modulation, int64_t dim) {
  while (modulation.dim() < dim) modulation = modulation.unsqueeze(1);
  return modulation;
}

}  // namespace

void CheckModulation(const char* operation, const char* name, const at::Tensor& modulation,
                     const at::Tensor& x) {
  CheckFloating(operation, name, modulation);
  CheckSameDevice(operation, "x", x, name, modulation);
  const bool per_example = IsPerExample(modulation, x);
  TORCH_CHECK(per_example || modulation.dim() == x.dim(), operation, ": ", name, " has ",
              modulation.dim(), " dimensions but x has ", x.dim());
  bool shared = false;
  const int64_t leading = per_example ? 1 : x.dim() - 1;
  for (int64_t i = 0; i < leading; ++i) {
    if (!shared && modulation.sym_size(i) == x.sym_size(i)) continue;
    shared = true;
    TORCH_CHECK(!per_example && modulation.sym_size(i) == 1, operation, ": ", name, " has shape ",
                modulation.sym_sizes(), " but x has shape ", x.sym_sizes());
  }
  TORCH_SYM_CHECK(modulation.sym_size(-1).sym_eq(x.sym_size(-1)), operation, ": ", name,
                  " has shape ", modulation.sym_sizes(), " but x has shape ", x.sym_sizes());
}

at::Tensor Spread(const at::Tensor& modulation, const at::Tensor& x) {
  return IsPerExample(modulation, x) ? WithDimsBetween(modulation, x.dim()) : modulation;
}

at::Tensor SumLike(const at::Tensor& values, const at::Tensor& modulation) {
  c10::DimVector sizes(modulation.sizes());
  if (IsPerExample(modulation, values)) sizes.insert(sizes.begin() + 1, values.dim() - 2, 1);
  // A result must not be one of the arguments.
  if (values.sizes() == at::IntArrayRef(sizes)) {
    return values.clone(at::MemoryFormat::Contiguous).view(modulation.sizes());
  }
  return values.sum_to_size(sizes).reshape(modulation.sizes()).contiguous();
}

}  // namespace fuseboard::torch_binding
