#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/modulated_rms_norm/modulated_rms_norm_case.h"

namespace fuseboard::modulated_rms_norm {
namespace {

using testing::KernelCall;
using testing::TestTensor;

// Why a good call is refused once `spoil` has been at it.
std::string ReasonFor(FbPhase phase, const std::function<void(KernelCall*)>& spoil) {
  const Case c = {.norm = {.rows = 6, .hidden = 8}};
  const FbRmsNormParams params = c.norm.params();
  KernelCall call =
      phase == FB_FORWARD ? ForwardCall(c, &params) : BackwardCall(c, &params, /*dy_layout=*/{});
  spoil(&call);
  return testing::RejectReason(testing::OpenKernel("modulated_rms_norm"), call);
}

TEST(ModulatedRmsNormRejectTest, AGoodCallIsNotRefused) {
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    EXPECT_EQ(ReasonFor(phase, [](auto*) {}), "");
  }
}

TEST(ModulatedRmsNormRejectTest, NamesTheTensorAndBothValues) {
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call) {
                        call->inputs[2] = TestTensor(FB_F32, {4, 8});
                      }),
            "scale: want a number of rows that divides 6, got 4");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call) {
                        call->inputs[3] = TestTensor(FB_F32, {3, 8});
                      }),
            "shift: want shape [2, 8], got [3, 8]");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call) {
                        call->inputs[3] = TestTensor(FB_I64, {2, 8});
                      }),
            "shift: want f32, f16 or bf16, got i64");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call) {
                        call->outputs[0] = TestTensor(FB_BF16, {6, 8});
                      }),
            "y: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call) {
                        call->outputs[2] = TestTensor(FB_BF16, {2, 8});
                      }),
            "dscale: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call) {
                        call->outputs[3] = TestTensor(FB_F32, {2, 8}, {.row_stride = 9});
                      }),
            "dshift: want row stride 8, got 9");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call) {
                        call->inputs[0] = TestTensor(FB_BF16, {6, 8});
                      }),
            "dy: want f32, got bf16");
}

}  // namespace
}  // namespace fuseboard::modulated_rms_norm
