#include <gtest/gtest.h>

#include <string>

#include "kernels/abi/relu_squared.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::relu_squared {
namespace {

using testing::KernelCall;
using testing::TestTensor;

std::string Reason(const KernelCall& call) {
  return testing::RejectReason(testing::OpenKernel("relu_squared"), call);
}

TestTensor Matrix(int32_t dtype = FB_BF16) { return {dtype, {4, 8}}; }

TEST(ReluSquaredRejectTest, GoodCallsAreTaken) {
  EXPECT_EQ(Reason({FB_FORWARD, {Matrix()}, {Matrix()}}), "");
  EXPECT_EQ(Reason({FB_BACKWARD, {Matrix(), Matrix()}, {Matrix()}}), "");
}

TEST(ReluSquaredRejectTest, NamesTheTensorAndBothValues) {
  EXPECT_EQ(Reason({FB_FORWARD, {Matrix(FB_I32)}, {Matrix()}}),
            "x: want f32, f16 or bf16, got i32");
  EXPECT_EQ(Reason({FB_FORWARD, {Matrix()}, {Matrix(FB_F32)}}), "y: want bf16, got f32");
  EXPECT_EQ(Reason({FB_BACKWARD, {Matrix(), TestTensor(FB_BF16, {4, 9})}, {Matrix()}}),
            "x: want shape [4, 8], got [4, 9]");
  EXPECT_EQ(Reason({FB_BACKWARD, {Matrix(), Matrix()}, {TestTensor()}}),
            "dx: want 2 dimensions, got -1");
  EXPECT_EQ(Reason({FB_FORWARD, {Matrix(), Matrix()}, {Matrix()}}),
            "call: want 1 inputs and 1 outputs, got 2 and 1");
}

}  // namespace
}  // namespace fuseboard::relu_squared
