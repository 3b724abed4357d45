// What all row losses refuse is in kl_div_reject_test.cc.

#include <gtest/gtest.h>

#include "kernels/abi/tvd.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::tvd {
namespace {

using testing::KernelCall;
using testing::TestTensor;

std::string ReasonFor(FbPhase phase, const FbTvdParams& params, const TestTensor& target) {
  const TestTensor matrix(FB_F32, {3, 8});
  KernelCall call = {phase,
                     {matrix, target, TestTensor(), TestTensor()},
                     {TestTensor(), TestTensor(), matrix},
                     &params};
  if (phase == FB_BACKWARD) {
    call.inputs = {matrix, matrix, target, TestTensor()};
    call.outputs = {matrix};
  }
  return testing::RejectReason(testing::OpenKernel("tvd"), call);
}

TEST(TvdRejectTest, NamesTheTensorOrTheParameters) {
  const TestTensor target(FB_F32, {3, 8});
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbTvdParams), -100}, target), "");
    EXPECT_EQ(ReasonFor(phase, {4, -100}, target), "params: want struct_size >= 16, got 4");
    EXPECT_EQ(ReasonFor(phase, {sizeof(FbTvdParams), -100}, TestTensor(FB_F32, {3, 9})),
              "target: want shape [3, 8], got [3, 9]");
  }
}

}  // namespace
}  // namespace fuseboard::tvd
