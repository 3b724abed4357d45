// The elements of kl_div on the GPU; rows are row_loss.cuh's.

#ifndef KERNELS_KL_DIV_KL_DIV_CUH_
#define KERNELS_KL_DIV_KL_DIV_CUH_

#include "kernels/common/row_loss.cuh"
#include "kernels/common/row_loss_log.cuh"

namespace fuseboard::kl_div {

using row_loss::LogUnit;

struct Factors {
  template <typename T>
  __device__ __forceinline__ float LossFactor() const {
    return 1.0f;
  }
  template <typename T>
  __device__ __forceinline__ float GradientFactor() const {
    return -1.0f;
  }
};

class OfProbabilities : public Factors {
 public:
  explicit OfProbabilities(float floor) : floor_(floor) {}

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    // Below the smallest normal number, where Log2Approx is -inf, y log y is 0 for all that f32 can
    // tell beside any other term.
    constexpr float kLeast = 0x1p-126f;
    const float logarithm = LogUnit<T>::Log(y < floor_ ? floor_ : y) * LogUnit<T>::kNats;
    const float entropy = fabsf(y) < kLeast ? 0.0f : y * logarithm;
    return {1.0f, fmaf(-y, x, entropy), y};
  }

 private:
  float floor_;  // See FloorOf.
};

struct OfLogProbabilities : Factors {
  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    const float probability = LogUnit<T>::Exp(y * LogUnit<T>::kPerNat);
    return {probability, y - x, probability};
  }
};

}  // namespace fuseboard::kl_div

#endif  // KERNELS_KL_DIV_KL_DIV_CUH_
