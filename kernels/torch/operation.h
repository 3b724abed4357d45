// The operations of this binding, as an index for tables and as the stem for people.

#ifndef KERNELS_TORCH_OPERATION_H_
#define KERNELS_TORCH_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace fuseboard::torch_binding {

// Known to the tables; the binding implements those whose operator is registered.
enum class Operation {
  kRmsNorm,
  kSwiglu,
  kCrossEntropy,
  kFusedLinearCrossEntropy,
  kFusedAddRmsNorm,
  kLayerNorm,
  kGroupNorm,
  kModulatedRmsNorm,
  kRope,
  kQkNormRope,
  kGeglu,
  kReluSquared,
  kKlDiv,
  kJsd,
  kTvd,
  kSoftmax,
  kFusedLinearScaledCrossEntropy,
  kSelectedLogProbs,
  kFusedLinearJsd,
};

inline constexpr std::array kOperationNames = {"rms_norm",
                                               "swiglu",
                                               "cross_entropy",
                                               "fused_linear_cross_entropy",
                                               "fused_add_rms_norm",
                                               "layer_norm",
                                               "group_norm",
                                               "modulated_rms_norm",
                                               "rope",
                                               "qk_norm_rope",
                                               "geglu",
                                               "relu_squared",
                                               "kl_div",
                                               "jsd",
                                               "tvd",
                                               "softmax",
                                               "fused_linear_scaled_cross_entropy",
                                               "selected_log_probs",
                                               "fused_linear_jsd"};
static_assert(kOperationNames.size() == static_cast<size_t>(Operation::kFusedLinearJsd) + 1);

constexpr const char* NameOf(Operation operation) {
  return kOperationNames[static_cast<size_t>(operation)];
}

// The handle that asks for the ATen composite instead of a kernel library.
inline constexpr int64_t kNoKernel = -1;

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_OPERATION_H_
