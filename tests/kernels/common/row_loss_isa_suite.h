// The CPU builds of a row loss for each instruction set that this machine can run, against the
// baseline.

#ifndef TESTS_KERNELS_COMMON_ROW_LOSS_ISA_SUITE_H_
#define TESTS_KERNELS_COMMON_ROW_LOSS_ISA_SUITE_H_

#include <utility>
#include <vector>

#include "kernels/common/cpu_isa.h"
#include "kernels/common/table.h"
#include "tests/kernels/common/row_loss_suite.h"

namespace fuseboard::row_loss {

inline std::vector<testing::TestTensor> RunWith(const Operation& operation, Launch launch,
                                                testing::KernelCall call) {
  FbKernel kernel = testing::OpenKernel(operation.name);
  kernel.entries[call.phase][FB_CPU].launch = launch;
  testing::Run(kernel, FB_CPU, &call);
  return call.outputs;
}

inline void ExpectSameResults(const Operation& operation, Launch got, Launch want,
                              const testing::KernelCall& call) {
  const auto got_outputs = RunWith(operation, got, call);
  const auto want_outputs = RunWith(operation, want, call);
  for (size_t i = 0; i < got_outputs.size(); ++i) {
    testing::ExpectClose(
        got_outputs[i], [&](auto r, auto c) { return want_outputs[i].At(r, c); }, 0.1);
  }
}

// The launches of one build.
struct CpuBuild {
  Launch forward;
  Launch backward;
};

inline void ExpectIsasToAgree(const Operation& operation, const CpuBuild& baseline,
                              const CpuBuild& avx2, const CpuBuild& avx512) {
  const Suite suite(operation, FB_CPU);
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case c = {.rows = 3, .cols = 2051, .dtype = dtype};
    testing::KernelCall forward = suite.ForwardCall(c);
    forward.outputs[0] = testing::TestTensor(FB_F32, {c.rows});
    forward.outputs[2] = testing::TestTensor(dtype, {c.rows, c.cols});
    const testing::KernelCall backward = suite.BackwardCall(c);
    for (const auto& [isa, build] :
         {std::pair{CpuIsa::kAvx2, &avx2}, std::pair{CpuIsa::kAvx512, &avx512}}) {
      if (DetectCpuIsa() < isa) continue;
      ExpectSameResults(operation, build->forward, baseline.forward, forward);
      ExpectSameResults(operation, build->backward, baseline.backward, backward);
    }
  }
}

}  // namespace fuseboard::row_loss

// The three builds of the operation in whose namespace this stands: namespaces, of which each build
// has its own, are no template arguments.
#if defined(FB_HAVE_X86_ISAS)
#define FB_EXPECT_ISAS_TO_AGREE(operation)                      \
  ::fuseboard::row_loss::ExpectIsasToAgree(                     \
      operation, {baseline::ForwardCpu, baseline::BackwardCpu}, \
      {avx2::ForwardCpu, avx2::BackwardCpu}, {avx512::ForwardCpu, avx512::BackwardCpu})
#else
#define FB_EXPECT_ISAS_TO_AGREE(operation) EXPECT_EQ(DetectCpuIsa(), CpuIsa::kBaseline)
#endif

#endif  // TESTS_KERNELS_COMMON_ROW_LOSS_ISA_SUITE_H_
