#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/kernels/geglu/geglu_case.h"

namespace fuseboard::geglu {
namespace {

using testing::KernelCall;
using testing::TestTensor;

std::string ReasonFor(FbPhase phase,
                      const std::function<void(KernelCall*, FbGegluParams*)>& spoil) {
  const Case c;  // [3, 8]
  FbGegluParams params = c.params();
  KernelCall call = phase == FB_FORWARD ? ForwardCall(c, &params) : BackwardCall(c, &params);
  spoil(&call, &params);
  return testing::RejectReason(testing::OpenKernel("geglu"), call);
}

TEST(GegluRejectTest, AcceptsAGoodCall) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto*) {}), "");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto*) {}), "");
}

TEST(GegluRejectTest, NamesTheTensorAndBothValues) {
  const auto with_up = [](const TestTensor& up) {
    return [up](KernelCall* call, FbGegluParams*) { call->inputs[1] = up; };
  };
  EXPECT_EQ(ReasonFor(FB_FORWARD, with_up(TestTensor(FB_F32, {3, 9}))),
            "up: want shape [3, 8], got [3, 9]");
  EXPECT_EQ(ReasonFor(FB_FORWARD, with_up(TestTensor(FB_BF16, {3, 8}))), "up: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call, auto*) {
                        call->outputs[1] = TestTensor(FB_F32, {3, 4});
                      }),
            "dup: want shape [3, 8], got [3, 4]");
}

TEST(GegluRejectTest, NamesTheParameterAndItsValue) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->round_activation = 2; }),
            "round_activation: want 0 or 1, got 2");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto* params) { params->gelu = 2; }),
            "gelu: want 0 (tanh) or 1 (exact), got 2");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->struct_size = 8; }),
            "params: want struct_size >= 12, got 8");
}

}  // namespace
}  // namespace fuseboard::geglu
