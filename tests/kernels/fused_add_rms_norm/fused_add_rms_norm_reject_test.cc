#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/abi/fused_add_rms_norm.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::fused_add_rms_norm {
namespace {

using testing::KernelCall;
using testing::RejectReason;
using testing::TestTensor;

constexpr FbFusedAddRmsNormParams kParams = {sizeof(FbFusedAddRmsNormParams), FB_CASTING_LLAMA,
                                             1e-6, 0.0};

std::string Reason(const KernelCall& call) {
  return RejectReason(testing::OpenKernel("fused_add_rms_norm"), call);
}

TestTensor Matrix(int32_t dtype = FB_BF16) { return {dtype, {4, 8}}; }

KernelCall Forward() {
  return {FB_FORWARD,
          {Matrix(), Matrix(), TestTensor(FB_BF16, {8})},
          {Matrix(), Matrix(), TestTensor(FB_F32, {4})},
          &kParams};
}

KernelCall Backward() {
  return {FB_BACKWARD,
          {Matrix(), Matrix(), Matrix(), TestTensor(FB_BF16, {8}), TestTensor(FB_F32, {4})},
          {Matrix(), TestTensor(FB_BF16, {8})},
          &kParams};
}

TEST(FusedAddRmsNormRejectTest, GoodCallsAreTaken) {
  EXPECT_EQ(Reason(Forward()), "");
  EXPECT_EQ(Reason(Backward()), "");
  KernelCall call = Backward();
  call.inputs[1] = {};
  EXPECT_EQ(Reason(call), "");
}

TEST(FusedAddRmsNormRejectTest, ResidualAndSumAreLikeX) {
  KernelCall call = Forward();
  call.inputs[1] = Matrix(FB_F32);
  EXPECT_EQ(Reason(call), "residual: want bf16, got f32");
  call = Forward();
  call.inputs[1] = TestTensor(FB_BF16, {4, 9});
  EXPECT_EQ(Reason(call), "residual: want shape [4, 8], got [4, 9]");
  call = Forward();
  call.outputs[1] = Matrix(FB_F16);
  EXPECT_EQ(Reason(call), "sum: want bf16, got f16");
  call = Forward();
  call.outputs[1] = TestTensor(FB_BF16, {4, 8}, {.row_stride = 0});
  EXPECT_EQ(Reason(call), "sum: want row stride >= 8 (rows that do not overlap), got 0");
}

TEST(FusedAddRmsNormRejectTest, GradientsAreLikeWhatTheyAreOf) {
  KernelCall call = Backward();
  call.inputs[1] = Matrix(FB_F32);
  EXPECT_EQ(Reason(call), "dsum: want bf16, got f32");
  call = Backward();
  call.inputs[0] = TestTensor(FB_BF16, {3, 8});
  EXPECT_EQ(Reason(call), "dy: want shape [4, 8], got [3, 8]");
  call = Backward();
  call.outputs[0] = Matrix(FB_F32);
  EXPECT_EQ(Reason(call), "dx: want bf16, got f32");
  call = Backward();
  call.inputs[3] = {};
  EXPECT_EQ(Reason(call), "dweight: want absent without a weight, got a tensor");
}

}  // namespace
}  // namespace fuseboard::fused_add_rms_norm
