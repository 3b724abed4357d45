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
      EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), beta, -100, 0.0}), "");
    }
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), 1.5, -100, 0.0}),
              "beta: want a number in [0, 1], got 1.5");
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), -0.1, -100, 0.0}),
              "beta: want a number in [0, 1], got -0.1");
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbJsdParams), std::nan(""), -100, 0.0}),
              "beta: want a number in [0, 1], got nan");
    EXPECT_EQ(ReasonFor(phase, {4, 0.5, -100, 0.0}), "params: want struct_size >= 24, got 4");
  }
}

// dinput lies `shift` elements from input, of rows `stride` apart.
std::string LogitsReasonFor(const FbJsdParams& params, int64_t shift = 0, int64_t stride = 8) {
  alignas(16) static float memory[64];
  const auto matrix = [&](int64_t at) {
    return FbTensor{memory + at, {3, 8}, {stride, 1}, 2, FB_F32, FB_CPU, 0};
  };
  FbTensor absent = {};
  absent.ndim = -1;
  const FbTensor inputs[] = {matrix(0), matrix(0), absent, absent};
  const FbTensor outputs[] = {absent, matrix(shift)};
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  call.num_inputs = 4;
  call.num_outputs = 2;
  call.num_threads = 1;
  call.inputs = inputs;
  call.outputs = outputs;
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("jsd").entries[FB_FORWARD][FB_CPU];
  const char* why = entry.reject_reason(&call);
  return why == nullptr ? "" : why;
}

TEST(JsdRejectTest, ForwardFromLogitsNamesTheField) {
  const FbJsdParams params = {sizeof(FbJsdParams), 0.5, -100, 2.0};
  EXPECT_EQ(LogitsReasonFor(params, /*shift=*/0), "");  // In place.
  EXPECT_EQ(LogitsReasonFor(params, /*shift=*/24), "");
  EXPECT_EQ(LogitsReasonFor(params, /*shift=*/8, /*stride=*/16), "");  // Interleaved.
  EXPECT_NE(LogitsReasonFor(params, /*shift=*/1)
                .find("dinput: want the memory of input or none of it, got an overlap"),
            std::string::npos);
  EXPECT_EQ(LogitsReasonFor({sizeof(FbJsdParams), 0.5, -100, 0.0}),
            "temperature: want more than 0, got 0");
  EXPECT_EQ(LogitsReasonFor({sizeof(FbJsdParams), 0.5, -100, std::nan("")}),
            "temperature: want more than 0, got nan");
  EXPECT_EQ(LogitsReasonFor({sizeof(FbJsdParams), 2.0, -100, 1.0}),
            "beta: want a number in [0, 1], got 2");
  EXPECT_EQ(LogitsReasonFor({24, 0.5, -100, 1.0}), "params: want struct_size >= 32, got 24");
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
