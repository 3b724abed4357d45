// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/abi/kl_div.h"
#include "kernels/kl_div/kl_div_cpu.h"
#include "tests/kernels/common/row_loss_isa_suite.h"

namespace fuseboard::kl_div {
namespace {

TEST(KlDivIsaTest, AllInstructionSetsAgree) {
  for (const int32_t log_target : {0, 1}) {
    const FbKlDivParams params = {sizeof(FbKlDivParams), log_target, 0.0, 0};
    const row_loss::Operation operation = {"kl_div", &params, {false, log_target == 0}, nullptr};
    FB_EXPECT_ISAS_TO_AGREE(operation);
  }
}

}  // namespace
}  // namespace fuseboard::kl_div
