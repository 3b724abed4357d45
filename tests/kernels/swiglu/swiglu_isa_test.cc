// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/common/cpu_isa.h"
#include "kernels/swiglu/swiglu_cpu.h"
#include "tests/kernels/swiglu/swiglu_case.h"

namespace fuseboard::swiglu {
namespace {

using testing::KernelCall;

using Launch = int32_t (*)(const FbCall* call, void* workspace);

void ExpectSameResults(Launch got, Launch want, const KernelCall& call) {
  FbKernel kernel = testing::OpenKernel("swiglu");
  KernelCall calls[] = {call, call};
  const Launch launches[] = {got, want};
  for (const int i : {0, 1}) {
    kernel.entries[call.phase][FB_CPU].launch = launches[i];
    testing::Run(kernel, FB_CPU, &calls[i]);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const testing::TestTensor& reference = calls[1].outputs[i];
    testing::ExpectClose(
        calls[0].outputs[i], [&](auto r, auto c) { return reference.At(r, c); }, 0.05);
  }
}

TEST(SwigluIsaTest, AllInstructionSetsAgree) {
#if defined(FB_HAVE_X86_ISAS)
  const CpuIsa here = DetectCpuIsa();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case plain = {.rows = 3, .cols = 2051, .dtype = dtype, .round_activation = 1};
    Case gpt_oss = plain;
    gpt_oss.alpha = 1.702;
    gpt_oss.limit = 1.5;
    gpt_oss.up_offset = 1.0;
    for (const Case& c : {plain, gpt_oss}) {
      const FbSwigluParams params = c.params();
      for (const KernelCall& call : {ForwardCall(c, &params), BackwardCall(c, &params)}) {
        const bool forward = call.phase == FB_FORWARD;
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
#else
  EXPECT_EQ(DetectCpuIsa(), CpuIsa::kBaseline);
#endif
}

}  // namespace
}  // namespace fuseboard::swiglu
