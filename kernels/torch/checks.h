// Checks that several operators share. Messages name the field and both values.

#ifndef KERNELS_TORCH_CHECKS_H_
#define KERNELS_TORCH_CHECKS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/SymBool.h>
#include <c10/util/Exception.h>

#include <optional>

namespace fuseboard::torch_binding {

inline void CheckFloating(const char* operation, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), operation, ": ", name, " has dtype ",
              tensor.scalar_type(), ", want a floating point dtype");
}

inline void CheckSameDevice(const char* operation, const char* name_a, const at::Tensor& a,
                            const char* name_b, const at::Tensor& b) {
  TORCH_CHECK(!b.defined() || a.device() == b.device(), operation, ": ", name_a, " is on ",
              a.device(), " but ", name_b, " is on ", b.device());
}

inline void CheckDim(const char* operation, const char* name, const at::Tensor& tensor,
                     int64_t dim) {
  TORCH_CHECK(tensor.dim() == dim, operation, ": ", name, " has ", tensor.dim(),
              " dimensions, want ", dim);
}

inline void CheckSize(const char* operation, const char* name_a, const c10::SymInt& a,
                      const char* name_b, const c10::SymInt& b) {
  TORCH_SYM_CHECK(a.sym_eq(b), operation, ": ", name_a, " is ", a, " but ", name_b, " is ", b);
}

inline void CheckTarget(const char* operation, const char* rows_name, const c10::SymInt& rows,
                        const at::Tensor& target) {
  TORCH_CHECK(target.scalar_type() == at::kLong || target.scalar_type() == at::kInt, operation,
              ": target has dtype ", target.scalar_type(), ", want Long or Int");
  CheckDim(operation, "target", target, 1);
  CheckSize(operation, "target.size(0)", target.sym_size(0), rows_name, rows);
}

inline void CheckClassWeight(const char* operation, const c10::SymInt& vocab,
                             const std::optional<at::Tensor>& class_weight) {
  if (!class_weight.has_value()) return;
  CheckFloating(operation, "class_weight", *class_weight);
  CheckDim(operation, "class_weight", *class_weight, 1);
  CheckSize(operation, "class_weight.size(0)", class_weight->sym_size(0), "the vocabulary", vocab);
}

// An option that is a tensor; a gradient for it would be lost in silence.
inline void CheckNoGradient(const char* operation, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(!tensor.defined() || !tensor.requires_grad() || !c10::GradMode::is_enabled(),
              operation, ": ", name, " requires grad, but no gradient is computed for it");
}

// The dtype that the composites compute in and that statistics are kept in.
inline at::ScalarType AccumulationType(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// The dtype in which statistics are kept that a backward subtracts from numbers as large: an f32
// one has lost what an f32 gradient still shows.
inline at::ScalarType StatisticType(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_CHECKS_H_
