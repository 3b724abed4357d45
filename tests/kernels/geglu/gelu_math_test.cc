// The GPU's formulas for 16-bit dtypes, over an exponential and a reciprocal that are as wrong as
// the device's may be, at every value of the dtype: the error before the one rounding at the end.

#include "kernels/geglu/gelu_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/kernels/geglu/geglu_case.h"

namespace fuseboard::geglu {
namespace {

// As PTX documents ex2.approx.ftz and rcp.approx.ftz: within 2 and 1 ulp; subnormals are 0.
template <int kSign>
struct WorstUnit {
  static float Off(double exact, int ulp) {
    auto result = static_cast<float>(exact);
    if (std::fabs(result) < 0x1p-126f) return 0.0f;
    for (int i = 0; i < ulp; ++i) result = std::nextafter(result, kSign * INFINITY);
    return result;
  }
  static float Exp2(float x) { return Off(std::exp2(static_cast<double>(x)), 2); }
  static float Reciprocal(float x) { return Off(1.0 / static_cast<double>(x), 1); }
};

// The largest error relative to the value, over all finite gates whose result is normal in the
// dtype.
template <typename Unit>
double LargestError(int32_t gelu, int32_t dtype, double smallest_normal) {
  double largest = 0.0;
  testing::TestTensor gates(dtype, {1});
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto view = gates.View(gates.image().data(), FB_CPU);
    *static_cast<uint16_t*>(view.data) = static_cast<uint16_t>(bits);
    const double gate = gates.At(0, 0);
    const double want = Gelu(gelu, gate);
    if (!std::isfinite(gate) || std::fabs(want) < smallest_normal) continue;
    const auto g = static_cast<float>(gate);
    float exponential = 0.0f;
    const float weight =
        gelu == FB_GELU_TANH ? TanhWeight<Unit>(g, g * g) : NormalWeight<Unit>(g, &exponential);
    largest = std::fmax(largest, std::fabs(static_cast<double>(g * weight) / want - 1.0));
  }
  return largest;
}

void ExpectErrorBelow(int32_t dtype, double smallest_normal, double bound) {
  for (const int32_t gelu : {FB_GELU_TANH, FB_GELU_EXACT}) {
    SCOPED_TRACE("dtype " + std::to_string(dtype) + ", gelu " + std::to_string(gelu));
    EXPECT_LT(LargestError<WorstUnit<1>>(gelu, dtype, smallest_normal), bound);
    EXPECT_LT(LargestError<WorstUnit<-1>>(gelu, dtype, smallest_normal), bound);
  }
}

TEST(GeluMathTest, ErrorIsBelowATwentiethOfHalfAnUlp) {
  ExpectErrorBelow(FB_F16, 0x1p-14, 0x1p-11 / 20);
  // 2^-121 instead of 2^-126: the device flushes what is smaller, and the weight is that over g.
  ExpectErrorBelow(FB_BF16, 0x1p-121, 0x1p-8 / 2 / 20);
}

}  // namespace
}  // namespace fuseboard::geglu
