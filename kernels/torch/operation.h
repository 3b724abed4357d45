// The operations of this binding, as an index for tables and as the stem for people.

#ifndef KERNELS_TORCH_OPERATION_H_
#define KERNELS_TORCH_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace fuseboard::torch_binding {

enum class Operation { kRmsNorm, kSwiglu, kCrossEntropy, kFusedLinearCrossEntropy };

inline constexpr std::array<const char*, 4> kOperationNames = {
    "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy"};

constexpr const char* NameOf(Operation operation) {
  return kOperationNames[static_cast<size_t>(operation)];
}

// The handle that asks for the ATen composite instead of a kernel library.
inline constexpr int64_t kNoKernel = -1;

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_OPERATION_H_
