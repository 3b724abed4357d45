// The CPU's conversions and functions, against conversions written for the tests and against
// double. The program is built three times, once per instruction set (CMakeLists.txt), and passes
// with one test less where the machine cannot run its set.

#include "kernels/common/cpu_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/common/cpu_isa.h"
#include "tests/testing/test_tensor.h"

namespace fuseboard::FB_CPU_ISA {
namespace {

#define FB_STRING_OF(name) #name
#define FB_STRING(name) FB_STRING_OF(name)

bool Runs() {
  const std::string isa = FB_STRING(FB_CPU_ISA);
  const CpuIsa needed =
      isa == "avx512" ? CpuIsa::kAvx512 : (isa == "avx2" ? CpuIsa::kAvx2 : CpuIsa::kBaseline);
  return DetectCpuIsa() >= needed;
}

// Bits that say the same thing: all NaN are one.
template <typename T>
double Value(int32_t dtype, T bits) {
  fuseboard::testing::TestTensor tensor(dtype, {1});
  auto view = tensor.View(tensor.image().data(), FB_CPU);
  std::memcpy(view.data, &bits, sizeof(bits));
  return tensor.At(0, 0);
}

template <typename T>
void ExpectAllBitPatternsLoad(int32_t dtype) {
  std::vector<T> in(65536);
  for (uint32_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<uint16_t>(i);
  std::vector<float> out(in.size());
  LoadBlock(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    const double want = Value(dtype, in[i]);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(out[i])) << i;
    } else {
      ASSERT_EQ(out[i], want) << i;
      ASSERT_EQ(std::signbit(out[i]), std::signbit(want)) << i;
    }
  }
}

// Every value of the dtype, the middle to the next one (a tie), and one float to each side of that.
template <typename T>
void ExpectRoundingToNearestEven(int32_t dtype) {
  std::vector<float> in;
  for (uint32_t i = 0; i < 65536; ++i) {
    const double value = Value(dtype, T{static_cast<uint16_t>(i)});
    const double next = Value(dtype, T{static_cast<uint16_t>(i ^ 1)});
    if (!std::isfinite(value) || !std::isfinite(next)) continue;
    const auto tie = static_cast<float>((value + next) / 2);
    for (const float v : {static_cast<float>(value), tie, std::nextafter(tie, INFINITY),
                          std::nextafter(tie, -INFINITY)}) {
      in.push_back(v);
    }
  }
  for (const float v : {65519.0f, 65520.0f, -65520.0f, 1e30f, 3.4e38f, INFINITY, -INFINITY}) {
    in.push_back(v);
  }
  std::vector<T> out(in.size());
  StoreBlock(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(Value(dtype, out[i]), fuseboard::testing::RoundToDType(dtype, in[i])) << in[i];
  }
  const float nan = std::nanf("");
  T converted[1];
  StoreBlock(&nan, converted, 1);
  EXPECT_TRUE(std::isnan(Value(dtype, converted[0])));
}

class CpuFloatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Runs()) GTEST_SKIP() << "this machine lacks " << FB_STRING(FB_CPU_ISA);
  }
};

TEST_F(CpuFloatTest, EveryBitPatternOf16BitFloatsLoadsExactly) {
  ExpectAllBitPatternsLoad<Half>(FB_F16);
  ExpectAllBitPatternsLoad<BFloat16>(FB_BF16);
}

TEST_F(CpuFloatTest, StoringRoundsToNearestEvenAtEveryTie) {
  ExpectRoundingToNearestEven<Half>(FB_F16);
  ExpectRoundingToNearestEven<BFloat16>(FB_BF16);
}

TEST_F(CpuFloatTest, SingleValuesAreConvertedLikeBlocks) {
  // Blocks shorter than a vector take the scalar path, which F16C hides in longer ones.
  for (uint32_t i = 0; i < 65536; ++i) {
    const Half half = {static_cast<uint16_t>(i)};
    const double want = Value(FB_F16, half);
    if (std::isnan(want)) continue;
    ASSERT_EQ(ToFloat(half), want);
    ASSERT_EQ(FromFloat<Half>(static_cast<float>(want)).bits, half.bits);
  }
}

TEST_F(CpuFloatTest, ExpIsWithinOneUlpDownToTheSmallestFloat) {
  for (int i = 0; i < 76000; ++i) {  // To -104.
    const float x = -0.00137f * static_cast<float>(i);
    const double want = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
    ASSERT_NEAR(ExpNonPositive(x), want, 1.2 * ulp) << x;
  }
  EXPECT_EQ(ExpNonPositive(0.0f), 1.0f);
  EXPECT_EQ(ExpNonPositive(-INFINITY), 0.0f);
  EXPECT_EQ(ExpNonPositive(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(ExpNonPositive(std::nanf(""))));
}

TEST_F(CpuFloatTest, SigmoidIsWithinTwoUlp) {
  for (int i = -8500; i < 8500; ++i) {
    const float x = 0.0101f * static_cast<float>(i);
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    ASSERT_NEAR(Sigmoid(x), want, 2.2 * std::ldexp(1.0, std::ilogb(want) - 23)) << x;
  }
  EXPECT_EQ(Sigmoid(INFINITY), 1.0f);
  EXPECT_EQ(Sigmoid(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(Sigmoid(std::nanf(""))));
}

TEST_F(CpuFloatTest, NormalKeepsItsDigitsInBothTails) {
  double total = 0.0;
  constexpr int kSteps = 26000;  // To +-13, where the lower tail is 6e-39.
  for (int i = -kSteps; i <= kSteps; ++i) {
    const float x = 0.0005f * static_cast<float>(i);
    const double want = 0.5 * std::erfc(-static_cast<double>(x) * M_SQRT1_2);
    const double ulp = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
    const auto [cdf, density] = Normal(x);
    ASSERT_NEAR(cdf, want, (x < 0.0f ? 7.0 : 2.0) * ulp) << x;
    total += std::fabs(cdf - want) / ulp;
    const double want_density = std::exp(-0.5 * static_cast<double>(x) * x) / std::sqrt(2.0 * M_PI);
    ASSERT_NEAR(density, want_density, 4e-7 * want_density + 1e-44) << x;
  }
  EXPECT_LT(total / (2 * kSteps + 1), 1.0);
  EXPECT_EQ(Normal(INFINITY).cdf, 1.0f);
  EXPECT_EQ(Normal(-INFINITY).cdf, 0.0f);
  EXPECT_EQ(Normal(-1e30f).density, 0.0f);
  EXPECT_TRUE(std::isnan(Normal(std::nanf("")).cdf));
}

}  // namespace
}  // namespace fuseboard::FB_CPU_ISA
