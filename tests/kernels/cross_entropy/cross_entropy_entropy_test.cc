// The entropy of rows and its gradient against double.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/cross_entropy/cross_entropy_case.h"

namespace fuseboard::cross_entropy {
namespace {

using ::fuseboard::testing::KernelCall;
using ::fuseboard::testing::TestTensor;

constexpr int kEntropy = 5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CrossEntropyEntropyTest : public ::testing::TestWithParam<int> {};
FB_INSTANTIATE_PER_DEVICE(CrossEntropyEntropyTest);

struct Distribution {
  std::vector<double> logp;
  double entropy = 0;
  double z_size = 0;
};

Distribution DistributionOf(const Case& c, int64_t row) {
  Distribution d{.logp = ZOfRow(c, row)};
  double max = -kInfinity;
  for (const double z : d.logp) {
    max = std::max(max, z);
    if (std::isfinite(z)) d.z_size = std::max(d.z_size, std::fabs(z));
  }
  double sum = 0;
  for (const double z : d.logp) sum += std::exp(z - max);
  for (double& z : d.logp) z -= max + std::log(sum);
  for (const double l : d.logp) d.entropy -= l == -kInfinity ? 0 : std::exp(l) * l;
  return d;
}

// The exponents and the lse are as exact as the z that they are differences of.
double Unit(const Distribution& d) { return 4e-6 + 4e-7 * d.z_size; }

bool IsIgnored(const Case& c, int64_t row) {
  return static_cast<int64_t>(c.target.At(0, row)) == c.params.ignore_index;
}

KernelCall ForwardWithEntropy(const Case& c) {
  KernelCall call = c.Forward();
  call.outputs.emplace_back(c.statistic, std::vector<int64_t>{c.shape.rows});
  return call;
}

void ExpectEntropy(const Case& c, const TestTensor& entropy) {
  for (int64_t row = 0; row < c.shape.rows; ++row) {
    const double got = entropy.At(0, row);
    if (IsIgnored(c, row)) {
      EXPECT_EQ(got, 0) << "row " << row;
      continue;
    }
    const Distribution d = DistributionOf(c, row);
    EXPECT_NEAR(got, d.entropy, Unit(d) * (1 + d.entropy)) << "row " << row;
  }
}

// The gradient of scale * loss + dentropy * entropy.
void ExpectBothGradients(const Case& c, const TestTensor& dentropy, const TestTensor& dlogits) {
  const double scale = static_cast<float>(c.params.logit_scale);
  const double cap = static_cast<float>(c.params.softcap);
  for (int64_t row = 0; row < c.shape.rows; ++row) {
    const RowAnswer loss = Solve(c, row);
    const Distribution d = DistributionOf(c, row);
    const std::vector<double> z = ZOfRow(c, row);
    const double upstream = IsIgnored(c, row) ? 0 : dentropy.At(0, row);
    int64_t wrong = 0;
    for (int64_t i = 0; i < c.shape.vocab; ++i) {
      const double p = std::exp(d.logp[i]);
      const double slope = cap == 0 ? scale : scale * (1 - (z[i] / cap) * (z[i] / cap));
      const double term = p == 0 ? 0 : p * (d.logp[i] + d.entropy);
      const double want = loss.gradient[i] - upstream * slope * term;
      const double size = p == 0 ? 0 : p * (1 + d.entropy + std::fabs(d.logp[i]));
      const double allowed = GradientTolerance(c.shape.dtype) * std::fabs(want) +
                             GradientStep(c.shape.dtype) +
                             Unit(d) * (loss.term_size[i] + std::fabs(upstream * scale) * size);
      wrong += std::fabs(dlogits.At(row, i) - want) <= allowed ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << "row " << row;
  }
}

void RunBoth(Case c, int device_type) {
  c.wants_gradient = false;
  KernelCall forward = ForwardWithEntropy(c);
  testing::Run(Kernel(), device_type, &forward);
  ExpectForward(c, forward.outputs);
  ExpectEntropy(c, forward.outputs[kEntropy]);
  c.wants_gradient = true;
  KernelCall backward = c.Backward(forward.outputs[kLse]);
  TestTensor dentropy(FB_F32, {c.shape.rows}, {.row_stride = 2});
  dentropy.FillNormal(99, 1.0, 0.25);
  backward.inputs.push_back(forward.outputs[kEntropy]);
  backward.inputs.push_back(dentropy);
  testing::Run(Kernel(), device_type, &backward);
  ExpectBothGradients(c, dentropy, backward.outputs[0]);
}

TEST_P(CrossEntropyEntropyTest, MatchesDoubleForVocabulariesAndDTypes) {
  for (const int64_t vocab : {1, 2, 7, 9, 129, 1024, 1025, 4097, 32001, 128256}) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      SCOPED_TRACE(::testing::Message() << "vocab " << vocab << " dtype " << dtype);
      Case c({vocab > 5000 ? 2 : 5, vocab, dtype}, 21);
      RunBoth(c.WithScale(22), GetParam());
      if (dtype != FB_F32) continue;
      c.statistic = FB_F64;
      RunBoth(c, GetParam());
    }
  }
}

TEST_P(CrossEntropyEntropyTest, MatchesDoubleWithOptions) {
  for (const int32_t dtype : {FB_F32, FB_BF16}) {
    for (const double scale : {1.0, -0.5, 1 / 0.7}) {
      for (const double cap : {0.0, 4.0}) {
        SCOPED_TRACE(::testing::Message() << dtype << " scale " << scale << " cap " << cap);
        Case c({4, 1500, dtype}, 23, {1503, 1});
        c.params.logit_scale = scale;
        c.params.softcap = cap;
        RunBoth(c.WithClassWeights(24).WithScale(25, 3), GetParam());
        if (dtype != FB_F32) continue;
        c.statistic = FB_F64;
        RunBoth(c, GetParam());
      }
    }
  }
}

// A gradient adds up to 0 over its row, but for the error of lse and entropy, which all classes
// share. In fp32 an lse near 40 is off by up to 1.9e-6.
TEST_P(CrossEntropyEntropyTest, WideStatisticsKeepTheDigitsOfFp32) {
  Case c({12, 5000, FB_F32}, 29);
  for (int64_t row = 0; row < c.shape.rows; ++row) {
    for (int64_t i = 0; i < c.shape.vocab; ++i) {
      c.logits.Set(row, i, c.logits.At(row, i) + 10.0 * static_cast<double>(row % 4));
    }
  }
  c.statistic = FB_F64;
  c.wants_gradient = false;
  KernelCall forward = ForwardWithEntropy(c);
  testing::Run(Kernel(), GetParam(), &forward);
  KernelCall backward = c.Backward(forward.outputs[kLse]);
  TestTensor dentropy(FB_F32, {c.shape.rows});
  dentropy.Fill([](int64_t, int64_t) { return 1.0; });
  backward.inputs.push_back(forward.outputs[kEntropy]);
  backward.inputs.push_back(dentropy);
  testing::Run(Kernel(), GetParam(), &backward);
  for (int64_t row = 0; row < c.shape.rows; ++row) {
    const Distribution d = DistributionOf(c, row);
    EXPECT_NEAR(forward.outputs[kLse].At(0, row), Solve(c, row).lse, 2e-7) << "row " << row;
    EXPECT_NEAR(forward.outputs[kEntropy].At(0, row), d.entropy, 1e-6) << "row " << row;
    double sum = 0;
    for (int64_t i = 0; i < c.shape.vocab; ++i) sum += backward.outputs[0].At(row, i);
    EXPECT_NEAR(sum, 0, 1e-6) << "row " << row;
  }
}

TEST_P(CrossEntropyEntropyTest, MoreRowsThanRunAtOnceAndIgnoredOnes) {
  for (const int64_t vocab : {40, 2050}) {
    Case c({1500, vocab, FB_BF16}, 26);
    for (int64_t row = 0; row < c.shape.rows; row += 3) c.target.Set(0, row, -100);
    RunBoth(c, GetParam());
  }
}

TEST_P(CrossEntropyEntropyTest, ClassesOfMinusInfinityAddNothing) {
  for (const int32_t dtype : {FB_F32, FB_BF16}) {
    Case c({3, 1100, dtype}, 27);
    for (int64_t i = 100; i < 1100; ++i) c.logits.Set(1, i, -kInfinity);
    c.target.Set(0, 1, 5);
    c.wants_gradient = false;
    KernelCall forward = ForwardWithEntropy(c);
    testing::Run(Kernel(), GetParam(), &forward);
    ExpectEntropy(c, forward.outputs[kEntropy]);
    KernelCall backward = c.Backward(forward.outputs[kLse]);
    TestTensor dentropy(FB_F32, {3});
    dentropy.Fill([](int64_t, int64_t) { return 1.0; });
    backward.inputs.push_back(forward.outputs[kEntropy]);
    backward.inputs.push_back(dentropy);
    testing::Run(Kernel(), GetParam(), &backward);
    for (int64_t i = 0; i < 1100; ++i) {
      const double got = backward.outputs[0].At(1, i);
      EXPECT_TRUE(i < 100 ? std::isfinite(got) : got == 0) << i << " is " << got;
    }
  }
}

TEST_P(CrossEntropyEntropyTest, ATargetOutOfRangeMakesItsRowNaNAndNoOther) {
  Case c({3, 64, FB_F32}, 28);
  c.target.Set(0, 1, 64);
  c.wants_gradient = false;
  KernelCall forward = ForwardWithEntropy(c);
  testing::Run(Kernel(), GetParam(), &forward);
  EXPECT_TRUE(std::isnan(forward.outputs[kEntropy].At(0, 1)));
  EXPECT_TRUE(std::isfinite(forward.outputs[kEntropy].At(0, 0)));
  EXPECT_TRUE(std::isfinite(forward.outputs[kEntropy].At(0, 2)));
}

TEST_P(CrossEntropyEntropyTest, NoRowsIsSuccess) { RunBoth(Case({0, 32}, 1), GetParam()); }

TEST(CrossEntropyEntropyRejectTest, EntropyWantsLseAndNoGradientBesideIt) {
  Case c({4, 16}, 1);
  const auto why = [](const KernelCall& call) {
    testing::RawCall raw;
    testing::FillRawCall(call, FB_CPU, &raw);
    const char* reason = Kernel().entries[call.phase][FB_CPU].reject_reason(&raw.call);
    return std::string(reason == nullptr ? "" : reason);
  };
  EXPECT_EQ(why(ForwardWithEntropy(c)), "entropy: want no dlogits beside it, got some");
  c.wants_gradient = false;
  KernelCall call = ForwardWithEntropy(c);
  EXPECT_EQ(why(call), "");
  call.outputs[kLse] = TestTensor();
  EXPECT_EQ(why(call), "entropy: want lse beside it, got none");
  call = ForwardWithEntropy(c);
  call.outputs[kLse] = TestTensor(FB_F64, {4});
  EXPECT_EQ(why(call), "entropy: want f64, got f32");
  KernelCall backward = c.Backward(TestTensor(FB_F32, {4}));
  backward.inputs.emplace_back(FB_F32, std::vector<int64_t>{4});
  EXPECT_EQ(why(backward), "call: want 5 inputs and 1 outputs, got 6 and 1");
  backward.inputs.emplace_back(FB_F32, std::vector<int64_t>{3});
  EXPECT_EQ(why(backward), "dentropy: want shape [4], got [3]");
}

}  // namespace
}  // namespace fuseboard::cross_entropy
