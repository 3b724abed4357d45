// The builds for each instruction set that this machine can run, against each other.

#include <gtest/gtest.h>

#include "kernels/common/cpu_isa.h"
#include "kernels/softmax/softmax_cpu.h"
#include "tests/kernels/softmax/softmax_case.h"

namespace fuseboard::softmax {
namespace {

using testing::KernelCall;

using Launch = int32_t (*)(const FbCall* call, void* workspace);

void ExpectSameResults(Launch got, Launch want, const KernelCall& call) {
  FbKernel kernel = testing::OpenKernel("softmax");
  KernelCall calls[] = {call, call};
  const Launch launches[] = {got, want};
  for (const int i : {0, 1}) {
    kernel.entries[call.phase][FB_CPU].launch = launches[i];
    testing::Run(kernel, FB_CPU, &calls[i]);
  }
  const testing::TestTensor& reference = calls[1].outputs[0];
  testing::ExpectClose(
      calls[0].outputs[0], [&](auto r, auto c) { return reference.At(r, c); }, 1e-3);
}

TEST(SoftmaxIsaTest, AllInstructionSetsAgree) {
#if defined(FB_HAVE_X86_ISAS)
  const CpuIsa here = DetectCpuIsa();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case c = {.rows = 3, .cols = 2051, .dtype = dtype};
    const KernelCall forward = ForwardCall(c);
    const KernelCall backward = BackwardCall(c);
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
}  // namespace fuseboard::softmax
