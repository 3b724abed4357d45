// The builds for each instruction set that this machine can run, against each other: what a machine
// with fewer instructions computes is then known from one with more.

#include <gtest/gtest.h>

#include "kernels/common/cpu_isa.h"
#include "kernels/rms_norm/rms_norm_cpu.h"
#include "tests/kernels/rms_norm/rms_norm_case.h"

namespace fuseboard::rms_norm {
namespace {

using testing::KernelCall;

using Launch = int32_t (*)(const FbCall* call, void* workspace);

std::vector<testing::TestTensor> RunWith(Launch launch, const KernelCall& call) {
  FbKernel kernel = testing::OpenKernel("rms_norm");
  kernel.entries[call.phase][FB_CPU].launch = launch;
  KernelCall copy = call;
  testing::Run(kernel, FB_CPU, &copy);
  return copy.outputs;
}

void ExpectSameResults(Launch a, Launch b, const KernelCall& call) {
  const auto got = RunWith(a, call);
  const auto want = RunWith(b, call);
  for (size_t i = 0; i < got.size(); ++i) {
    testing::ExpectClose(
        got[i], [&](auto r, auto c) { return want[i].At(r, c); }, 0.1);
  }
}

TEST(RmsNormIsaTest, AllInstructionSetsAgree) {
#if defined(FB_HAVE_X86_ISAS)
  const CpuIsa here = DetectCpuIsa();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case c = {.rows = 33, .hidden = 1029, .x_dtype = dtype, .weight_dtype = dtype};
    const FbRmsNormParams params = c.params();
    const KernelCall forward = ForwardCall(c, &params);
    const KernelCall backward = BackwardCall(c, &params, {});
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
}  // namespace fuseboard::rms_norm
