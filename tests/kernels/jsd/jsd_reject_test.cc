// What all row losses refuse is in kl_div_reject_test.cc.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/abi/jsd.h"
#include "kernels/jsd/jsd_call.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::jsd {
namespace {

using testing::KernelCall;
using testing::TestTensor;

std::string ReasonFor(FbPhase phase, const FbJsdParams& params) {
  const TestTensor matrix(FB_F32, {3, 8});
  KernelCall call = {phase,
                     {matrix, matrix, TestTensor(), TestTensor()},
                     {TestTensor(), TestTensor(), matrix},
                     &params};
  if (phase == FB_BACKWARD) {
    call.inputs = {matrix, matrix, matrix, TestTensor()};
    call.outputs = {matrix};
  }
  return testing::RejectReason(testing::OpenKernel("jsd"), call);
}

TEST(JsdRejectTest, NamesTheParameter) {
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    for (const double beta : {0.0, 1e-300, 0.5, 1.0}) {
      EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), beta, -100}), "");
    }
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), 1.5, -100}),
              "beta: want a number in [0, 1], got 1.5");
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), -0.1, -100}),
              "beta: want a number in [0, 1], got -0.1");
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), std::nan(""), -100}),
              "beta: want a number in [0, 1], got nan");
    EXPECT_EQ(ReasonFor(phase, {4, 0.5, -100}), "params: want struct_size >= 24, got 4");
  }
}

TEST(JsdRejectTest, WeightsAddUpToOneAndAreNotZero) {
  for (int i = 1; i < 100000; ++i) {
    const Weights weights = WeightsOf(i * 1e-5);
    ASSERT_EQ(weights.target + weights.input, 1.0f) << i;
    ASSERT_NEAR(weights.target, i * 1e-5, 6e-8);
  }
  for (const double beta : {1e-300, 1e-30, 1e-10, 1.0 - 1e-10}) {
    const Weights weights = WeightsOf(beta);
    EXPECT_EQ(weights.target + weights.input, 1.0f) << beta;
    EXPECT_GT(weights.target, 0.0f);
    EXPECT_GT(weights.input, 0.0f);
  }
}

}  // namespace
}  // namespace fuseboard::jsd
