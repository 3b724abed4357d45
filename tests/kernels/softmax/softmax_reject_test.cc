#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/softmax/softmax_case.h"

namespace fuseboard::softmax {
namespace {

using testing::KernelCall;
using testing::RawCall;
using testing::TestTensor;

KernelCall CallOf(FbPhase phase) {
  const Case c;  // [3, 8]
  return phase == FB_FORWARD ? ForwardCall(c) : BackwardCall(c);
}

std::string ReasonFor(FbPhase phase, const std::function<void(KernelCall*)>& spoil) {
  KernelCall call = CallOf(phase);
  spoil(&call);
  return testing::RejectReason(testing::OpenKernel("softmax"), call);
}

std::string ReasonForRaw(FbPhase phase, const std::function<void(RawCall*)>& spoil) {
  RawCall raw;
  testing::FillRawCall(CallOf(phase), FB_CPU, &raw);
  spoil(&raw);
  const char* why = testing::OpenKernel("softmax").entries[phase][FB_CPU].reject_reason(&raw.call);
  return why != nullptr ? why : "";
}

TEST(SoftmaxRejectTest, AcceptsAGoodCall) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*) {}), "");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*) {}), "");
}

TEST(SoftmaxRejectTest, NamesTheTensorAndBothValues) {
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call) {
                        call->inputs[0] = TestTensor(FB_I32, {3, 8});
                      }),
            "x: want f32, f16 or bf16, got i32");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto* call) { call->inputs[0] = TestTensor(FB_F32, {8}); }),
            "x: want 2 dimensions, got 1");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call) {
                        call->outputs[0] = TestTensor(FB_BF16, {3, 8});
                      }),
            "y: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto* call) { call->outputs[0] = TestTensor(); }),
            "y: want 2 dimensions, got -1");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call) {
                        call->inputs[1] = TestTensor(FB_F32, {3, 9});
                      }),
            "y: want shape [3, 8], got [3, 9]");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call) {
                        call->inputs[1] = TestTensor(FB_F16, {3, 8});
                      }),
            "y: want f32, got f16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call) {
                        call->outputs[0] = TestTensor(FB_F32, {2, 8});
                      }),
            "dx: want shape [3, 8], got [2, 8]");
}

TEST(SoftmaxRejectTest, NamesTheStrideDeviceCountsAndWidth) {
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[0].stride[1] = 8; }),
            "x: want column stride 1, got 8");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->outputs[0].stride[0] = 0; }),
            "y: want row stride >= 8 (rows that do not overlap), got 0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->inputs[0].device_type = FB_CUDA; }),
            "dy: want device 0:0, got 1:0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->call.num_inputs = 1; }),
            "call: want 2 inputs and 1 outputs, got 1 and 1");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[0].shape[1] = (1 << 30) + 1; }),
            "x: want at most 1073741824 columns, got 1073741825");
}

}  // namespace
}  // namespace fuseboard::softmax
