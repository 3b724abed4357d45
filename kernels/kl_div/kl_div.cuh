// The elements of kl_div on the GPU; rows are row_loss.cuh's.

#ifndef KERNELS_KL_DIV_KL_DIV_CUH_
#define KERNELS_KL_DIV_KL_DIV_CUH_

#include "kernels/common/row_loss.cuh"

namespace fuseboard::kl_div {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

// log(p), from CUDA's logf for f32; for 16-bit floats within 2e-7 in absolute terms.
template <typename T>
__device__ __forceinline__ float LogOf(float p) {
  if constexpr (std::is_same_v<T, float>) {
    return logf(p);
  } else {
    return Log2Approx(p) * kLn2;
  }
}

// e^y, likewise.
template <typename T>
__device__ __forceinline__ float ExpOf(float y) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(y);
  } else {
    return Exp2Approx(y * kLog2E);
  }
}

struct OfProbabilities {
  float floor;  // See FloorOf.
  float loss_factor = 1.0f;
  float gradient_factor = -1.0f;

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    // Below the smallest normal number, where Log2Approx is -inf, y log y is 0 for all that f32 can
    // tell beside any other term.
    constexpr float kLeast = 0x1p-126f;
    const float logarithm = LogOf<T>(y < floor ? floor : y);
    const float entropy = fabsf(y) < kLeast ? 0.0f : y * logarithm;
    return {fmaf(-y, x, entropy), y};
  }
};

struct OfLogProbabilities {
  float loss_factor = 1.0f;
  float gradient_factor = -1.0f;

  template <typename T>
  __device__ __forceinline__ row_loss::Terms At(float x, float y) const {
    const float probability = ExpOf<T>(y);
    return {probability * (y - x), probability};
  }
};

}  // namespace fuseboard::kl_div

#endif  // KERNELS_KL_DIV_KL_DIV_CUH_
