// The builds for each instruction set that this machine can run, against each other: bit by bit, as
// none fuses a multiplication with an addition.

#include <gtest/gtest.h>

#include "kernels/common/cpu_isa.h"
#include "kernels/rope/rope_cpu.h"
#include "tests/kernels/rope/rope_case.h"

namespace fuseboard::rope {
namespace {

using testing::KernelCall;

using Launch = int32_t (*)(const FbCall* call, void* workspace);

void ExpectSameResults(Launch got, Launch want, const KernelCall& call) {
  FbKernel kernel = testing::OpenKernel("rope");
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

TEST(RopeIsaTest, AllInstructionSetsAgree) {
#if defined(FB_HAVE_X86_ISAS)
  const CpuIsa here = DetectCpuIsa();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int32_t interleaved : {0, 1}) {
      for (const int32_t round : {0, 1}) {
        // 263 pairs: more than one block, and a tail that no vector divides.
        const Case c = {.dim = 531,
                        .rotary_dim = 526,
                        .dtype = dtype,
                        .table_dtype = dtype,
                        .interleaved = interleaved,
                        .round_products = round};
        const FbRopeParams params = c.params();
        for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
          const KernelCall call = CallOf(c, phase, &params);
          const bool forward = phase == FB_FORWARD;
          const Launch baseline = forward ? baseline::ForwardCpu : baseline::BackwardCpu;
          if (here >= CpuIsa::kAvx2) {
            ExpectSameResults(forward ? avx2::ForwardCpu : avx2::BackwardCpu, baseline, call);
          }
          if (here >= CpuIsa::kAvx512) {
            ExpectSameResults(forward ? avx512::ForwardCpu : avx512::BackwardCpu, baseline, call);
          }
        }
      }
    }
  }
#else
  EXPECT_EQ(DetectCpuIsa(), CpuIsa::kBaseline);
#endif
}

}  // namespace
}  // namespace fuseboard::rope
