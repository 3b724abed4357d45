#include <gtest/gtest.h>

#include <string>

#include "kernels/abi/group_norm.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::group_norm {
namespace {

using testing::KernelCall;
using testing::TestTensor;

constexpr FbGroupNormParams kParams = {sizeof(FbGroupNormParams), 2, 1e-5};

std::string Reason(const KernelCall& call) {
  return testing::RejectReason(testing::OpenKernel("group_norm"), call);
}

TestTensor Image(int32_t dtype = FB_BF16) { return {dtype, {3, 6, 8}}; }
TestTensor Vector(int32_t dtype = FB_BF16) { return {dtype, {6}}; }
TestTensor Statistic() { return {FB_F32, {6}}; }

KernelCall Forward() {
  return {FB_FORWARD,
          {Image(), Vector(), Vector(FB_F32)},
          {Image(), Statistic(), Statistic()},
          &kParams};
}

KernelCall Backward() {
  return {FB_BACKWARD,
          {Image(), Image(), Vector(), Statistic(), Statistic()},
          {Image(), Vector(), Vector(FB_F32)},
          &kParams};
}

TEST(GroupNormRejectTest, GoodCallsAreTaken) {
  EXPECT_EQ(Reason(Forward()), "");
  EXPECT_EQ(Reason(Backward()), "");
}

TEST(GroupNormRejectTest, WrongTensorsAreNamedWithBothValues) {
  KernelCall call = Forward();
  call.inputs[1] = TestTensor(FB_BF16, {7});
  EXPECT_EQ(Reason(call), "weight: want shape [6], got [7]");
  call = Forward();
  call.inputs[2] = Vector(FB_I64);
  EXPECT_EQ(Reason(call), "bias: want f32, f16 or bf16, got i64");
  call = Forward();
  call.outputs[0] = Image(FB_F32);
  EXPECT_EQ(Reason(call), "y: want bf16, got f32");
  call = Forward();
  call.outputs[1] = TestTensor(FB_F32, {5});
  EXPECT_EQ(Reason(call), "mean: want shape [6], got [5]");
  call = Backward();
  call.inputs[0] = TestTensor(FB_BF16, {3, 6, 7});
  EXPECT_EQ(Reason(call), "dy: want shape [3, 6, 8], got [3, 6, 7]");
  call = Backward();
  call.inputs[2] = {};
  EXPECT_EQ(Reason(call), "dweight: want absent without a weight, got a tensor");
  call = Backward();
  call.outputs[1] = Vector(FB_F32);
  EXPECT_EQ(Reason(call), "dweight: want bf16, got f32");
}

TEST(GroupNormRejectTest, ElementsLieOneAfterTheOther) {
  KernelCall call = Forward();
  call.inputs[0] = TestTensor(FB_BF16, {3, 6, 8}, {.strides = {48, 1, 6}});  // Channels last.
  EXPECT_EQ(Reason(call), "x: want stride 1 in dimension 2, got 6");
  call = Backward();
  call.inputs[0] = TestTensor(FB_BF16, {3, 6, 8}, {.strides = {96, 8, 1}});
  EXPECT_EQ(Reason(call), "dy: want stride 48 in dimension 0, got 96");
}

TEST(GroupNormRejectTest, GroupsDivideTheChannels) {
  for (const int64_t groups : {int64_t{0}, int64_t{4}, int64_t{-2}}) {
    const FbGroupNormParams params = {sizeof(FbGroupNormParams), groups, 1e-5};
    KernelCall call = Forward();
    call.params = &params;
    EXPECT_EQ(Reason(call), "x: want channels in a multiple of the groups, got 6 channels and " +
                                std::to_string(groups) + " groups");
  }
}

TEST(GroupNormRejectTest, ChannelsHaveElements) {
  KernelCall call = Forward();
  call.inputs[0] = TestTensor(FB_BF16, {3, 6, 0});
  EXPECT_EQ(Reason(call), "x: want at least 1 channel and 1 element, got 6 and 0");
}

TEST(GroupNormRejectTest, EpsIsFiniteAndNotNegative) {
  const FbGroupNormParams negative = {sizeof(FbGroupNormParams), 2, -1.0};
  KernelCall call = Forward();
  call.params = &negative;
  EXPECT_EQ(Reason(call), "eps: want a finite number >= 0, got -1");
}

}  // namespace
}  // namespace fuseboard::group_norm
