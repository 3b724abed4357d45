// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/common/cpu_isa.h"
#include "kernels/group_norm/group_norm_cpu.h"
#include "tests/kernels/group_norm/group_norm_case.h"

namespace fuseboard::group_norm {
namespace {

using testing::KernelCall;

using Launch = int32_t (*)(const FbCall* call, void* workspace);

void ExpectSameResults(Launch got, Launch want, const KernelCall& call) {
  FbKernel kernel = testing::OpenKernel("group_norm");
  KernelCall calls[] = {call, call};
  const Launch launches[] = {got, want};
  for (const int i : {0, 1}) {
    kernel.entries[call.phase][FB_CPU].launch = launches[i];
    testing::Run(kernel, FB_CPU, &calls[i]);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const testing::TestTensor& reference = calls[1].outputs[i];
    testing::ExpectClose(
        calls[0].outputs[i], [&](auto r, auto c) { return reference.At(r, c); }, 1e-1);
  }
}

TEST(GroupNormIsaTest, AllInstructionSetsAgree) {
#if defined(FB_HAVE_X86_ISAS)
  const CpuIsa here = DetectCpuIsa();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case c = Case{.channels = 6, .elements = 1051, .groups = 3}.With(dtype);
    const FbGroupNormParams params = c.Params();
    const KernelCall forward = NewForward(c, &params);
    const KernelCall backward = NewBackward(c, &params);
    if (here >= CpuIsa::kAvx2) {
      ExpectSameResults(avx2::ForwardCpu, baseline::ForwardCpu, forward);
      ExpectSameResults(avx2::BackwardCpu, baseline::BackwardCpu, backward);
    }
    if (here >= CpuIsa::kAvx512) {
      ExpectSameResults(avx512::ForwardCpu, baseline::ForwardCpu, forward);
      ExpectSameResults(avx512::BackwardCpu, baseline::BackwardCpu, backward);
    }
  }
#else
  EXPECT_EQ(DetectCpuIsa(), CpuIsa::kBaseline);
#endif
}

}  // namespace
}  // namespace fuseboard::group_norm
