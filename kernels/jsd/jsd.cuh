// The elements of jsd on the GPU; rows are row_loss.cuh's.
//
// Between the ends, of log-probabilities x (input, weight v) and y (target, weight w) with m the
// logarithm of their mixture:
//   loss = w e^y (y - m) + v e^x (x - m),   d loss / d x = v e^x (x - m)
// With top and low the larger and the smaller of x and y, gap = top - low and
// mixture = w_top + w_low e^-gap, m = top + log(mixture), and so
//   loss = -e^top (mixture log(mixture) + w_low e^-gap gap)
//   x - m = -log(mixture) if x is top, else -(log(mixture) + gap)
// which neither overflows nor subtracts large numbers that are nearly equal.

#ifndef KERNELS_JSD_JSD_CUH_
#define KERNELS_JSD_JSD_CUH_

#include "kernels/common/row_loss.cuh"
#include "kernels/common/row_loss_log.cuh"
#include "kernels/jsd/jsd_call.h"

namespace fuseboard::jsd {

using row_loss::LogUnit;

// What p = e^y multiplies in p * (y - x), which is 0 where p is, but NaN of NaN.
__device__ __forceinline__ float LogRatio(float p, float y, float x) {
  const float none = isnan(x) ? x : 0.0f;
  return p > 0.0f ? y - x : none;
}

// beta = 0
struct TargetFromInput {
  template <typename T>
  __device__ __forceinline__ float LossFactor() const {
    return 1.0f;
  }
  template <typename T>
  __device__ __forceinline__ float GradientFactor() const {
    return -1.0f;
  }

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    const float p = LogUnit<T>::Exp(y * LogUnit<T>::kPerNat);
    return {p, LogRatio(p, y, x), p};
  }
};

// beta = 1
struct InputFromTarget {
  template <typename T>
  __device__ __forceinline__ float LossFactor() const {
    return 1.0f;
  }
  template <typename T>
  __device__ __forceinline__ float GradientFactor() const {
    return 1.0f;
  }

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    const float q = LogUnit<T>::Exp(x * LogUnit<T>::kPerNat);
    const float log_ratio = LogRatio(q, x, y);
    return {q, log_ratio, fmaf(q, log_ratio, q)};
  }
};

// Logarithms are in T's unit, which the factors take out.
class Mixture {
 public:
  explicit Mixture(const Weights& weights) : weights_(weights) {}

  template <typename T>
  __device__ __forceinline__ float LossFactor() const {
    return -LogUnit<T>::kNats;
  }
  template <typename T>
  __device__ __forceinline__ float GradientFactor() const {
    return -LogUnit<T>::kNats * weights_.input;
  }

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    using Unit = LogUnit<T>;
    constexpr float kFar = 110.0f * Unit::kPerNat;  // e^-110 is 0.
    // NaN of one input makes top NaN; two of -inf make it 0, and their gap kFar.
    const float top = Unit::Exp(MaxOrNaN(x, y) * Unit::kPerNat);
    const float gap = fminf(fabsf(x - y) * Unit::kPerNat, kFar);
    const float ratio = Unit::Exp(-gap);
    const bool input_is_top = x > y;
    const float low_weight = input_is_top ? weights_.target : weights_.input;
    const float low_part = __fmul_rn(low_weight, ratio);
    const float mixture = __fadd_rn(low_part, input_is_top ? weights_.input : weights_.target);
    const float log_mixture = Unit::Log(mixture);
    const float q = input_is_top ? top : top * ratio;
    const float log_ratio = input_is_top ? log_mixture : log_mixture + gap;
    return {top, fmaf(mixture, log_mixture, __fmul_rn(low_part, gap)), q * log_ratio};
  }

 private:
  Weights weights_;
};

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_JSD_CUH_
