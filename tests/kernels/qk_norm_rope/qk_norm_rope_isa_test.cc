// The builds for each instruction set that this machine can run, against each other: bit by bit, as
// none fuses a multiplication with an addition.

#include <gtest/gtest.h>

#include "kernels/common/cpu_isa.h"
#include "kernels/qk_norm_rope/qk_norm_rope_cpu.h"
#include "tests/kernels/qk_norm_rope/qk_norm_rope_case.h"

namespace fuseboard::qk_norm_rope {
namespace {

using testing::KernelCall;

using Launch = int32_t (*)(const FbCall* call, void* workspace);

[[maybe_unused]] void ExpectSameResults(Launch got, Launch want, const KernelCall& call) {
  FbKernel kernel = testing::OpenKernel("qk_norm_rope");
  KernelCall calls[] = {call, call};
  const Launch launches[] = {got, want};
  for (const int i : {0, 1}) {
    kernel.entries[call.phase][FB_CPU].launch = launches[i];
    testing::Run(kernel, FB_CPU, &calls[i]);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    EXPECT_TRUE(calls[0].outputs[i].HasBitsOf(calls[1].outputs[i]));
  }
}

TEST(QkNormRopeIsaTest, AllInstructionSetsAgree) {
#if defined(FB_HAVE_X86_ISAS)
  const CpuIsa here = DetectCpuIsa();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int32_t interleaved : {0, 1}) {
      for (const int32_t all_heads : {0, 1}) {
        // 263 pairs: more than one block, and a tail that no vector divides.
        const Case c = {.rope = {.dim = 531,
                                 .rotary_dim = 526,
                                 .dtype = dtype,
                                 .table_dtype = dtype,
                                 .interleaved = interleaved,
                                 .round_products = interleaved},
                        .weight_dtype = dtype,
                        .all_heads = all_heads};
        const FbQkNormRopeParams params = c.params();
        const KernelCall forward = ForwardCall(c, &params);
        const KernelCall backward = BackwardCall(c, &params);
        if (here >= CpuIsa::kAvx2) {
          ExpectSameResults(avx2::ForwardCpu, baseline::ForwardCpu, forward);
          ExpectSameResults(avx2::BackwardCpu, baseline::BackwardCpu, backward);
        }
        if (here >= CpuIsa::kAvx512) {
          ExpectSameResults(avx512::ForwardCpu, baseline::ForwardCpu, forward);
          ExpectSameResults(avx512::BackwardCpu, baseline::BackwardCpu, backward);
        }
      }
    }
  }
#else
  EXPECT_EQ(DetectCpuIsa(), CpuIsa::kBaseline);
#endif
}

}  // namespace
}  // namespace fuseboard::qk_norm_rope
