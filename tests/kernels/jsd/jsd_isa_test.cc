// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/abi/jsd.h"
#include "kernels/jsd/jsd_cpu.h"
#include "tests/kernels/common/row_loss_isa_suite.h"

namespace fuseboard::jsd {
namespace {

TEST(JsdIsaTest, AllInstructionSetsAgree) {
  for (const double beta : {0.0, 0.3, 1.0}) {
    const FbJsdParams params = {sizeof(FbJsdParams), beta, 0, 0.0};
    const row_loss::Operation operation = {"jsd", &params, {false, false}, nullptr};
    FB_EXPECT_ISAS_TO_AGREE(operation);
  }
}

}  // namespace
}  // namespace fuseboard::jsd
