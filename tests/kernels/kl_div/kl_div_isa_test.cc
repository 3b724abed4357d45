// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/abi/kl_div.h"
#include "kernels/kl_div/kl_div_cpu.h"
#include "tests/kernels/common/row_loss_isa_suite.h"

    namespace fuseboard::kl_div {
  namespace {

  TEST(KlDivIsaTest, AllInstructionSetsAgree) {
    for (const int32_t log_target : {0, 1}) {
      const FbKlDivParams params = {sizeof(FbKlDivParams), log_target, 0.0};
      const row_loss::Operation operation = {
          "kl_div", &params, false, {false, log_target == 0}, nullptr};
#if defined(FB_HAVE_X86_ISAS)
      row_loss::ExpectIsasToAgree(operation, baseline::kCpuEntries, avx2::kCpuEntries,
                                  avx512::kCpuEntries);
#else
      row_loss::ExpectIsasToAgree(operation, baseline::kCpuEntries, baseline::kCpuEntries,
                                  baseline::kCpuEntries);
#endif
    }
  }

  }  // namespace
}  // namespace fuseboard::kl_div
