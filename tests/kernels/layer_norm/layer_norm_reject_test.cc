#include <gtest/gtest.h>

#include <string>

#include "kernels/abi/layer_norm.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::layer_norm {
namespace {

using testing::KernelCall;
using testing::TestTensor;

constexpr FbLayerNormParams kParams = {sizeof(FbLayerNormParams), 1e-5};

std::string Reason(const KernelCall& call) {
  return testing::RejectReason(testing::OpenKernel("layer_norm"), call);
}

TestTensor Matrix(int32_t dtype = FB_BF16) { return {dtype, {4, 8}}; }
TestTensor Vector(int32_t dtype = FB_BF16) { return {dtype, {8}}; }
TestTensor Statistic() { return {FB_F32, {4}}; }

KernelCall Forward() {
  return {FB_FORWARD,
          {Matrix(), Vector(), Vector(FB_F32)},
          {Matrix(), Statistic(), Statistic()},
          &kParams};
}

KernelCall Backward() {
  return {FB_BACKWARD,
          {Matrix(), Matrix(), Vector(), Statistic(), Statistic()},
          {Matrix(), Vector(), Vector(FB_F32)},
          &kParams};
}

TEST(LayerNormRejectTest, GoodCallsAreTaken) {
  EXPECT_EQ(Reason(Forward()), "");
  EXPECT_EQ(Reason(Backward()), "");
}

TEST(LayerNormRejectTest, WrongTensorsAreNamedWithBothValues) {
  KernelCall call = Forward();
  call.inputs[1] = TestTensor(FB_BF16, {7});
  EXPECT_EQ(Reason(call), "weight: want shape [8], got [7]");
  call = Forward();
  call.inputs[2] = Vector(FB_I64);
  EXPECT_EQ(Reason(call), "bias: want f32, f16 or bf16, got i64");
  call = Forward();
  call.outputs[0] = Matrix(FB_F32);
  EXPECT_EQ(Reason(call), "y: want bf16, got f32");
  call = Forward();
  call.outputs[1] = TestTensor(FB_F32, {5});
  EXPECT_EQ(Reason(call), "mean: want shape [4], got [5]");
  call = Backward();
  call.inputs[0] = Matrix(FB_F32);
  EXPECT_EQ(Reason(call), "dy: want bf16, got f32");
  call = Backward();
  call.inputs[2] = {};
  EXPECT_EQ(Reason(call), "dweight: want absent without a weight, got a tensor");
  call = Backward();
  call.outputs[1] = Vector(FB_F32);
  EXPECT_EQ(Reason(call), "dweight: want bf16, got f32");
}

TEST(LayerNormRejectTest, EpsIsFiniteAndNotNegative) {
  const FbLayerNormParams negative = {sizeof(FbLayerNormParams), -1.0};
  KernelCall call = Forward();
  call.params = &negative;
  EXPECT_EQ(Reason(call), "eps: want a finite number >= 0, got -1");
}

}  // namespace
}  // namespace fuseboard::layer_norm
