// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/abi/tvd.h"
#include "kernels/tvd/tvd_cpu.h"
#include "tests/kernels/common/row_loss_isa_suite.h"

namespace fuseboard::tvd {
namespace {

TEST(TvdIsaTest, AllInstructionSetsAgree) {
  const FbTvdParams params = {sizeof(FbTvdParams), 0};
  const row_loss::Operation operation = {"tvd", &params, {true, true}, nullptr};
  FB_EXPECT_ISAS_TO_AGREE(operation);
}

}  // namespace
}  // namespace fuseboard::tvd
