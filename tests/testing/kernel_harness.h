// Runs one entry of a kernel library on the CPU or the GPU and checks what is true of every kernel:
//  - nothing outside the output's elements is written, and no input at all,
//  - every element of an output is written,
//  - two runs are bit-equal, whatever the memory held before and (CPU) whatever the number of
//  threads,
//  - launch returns 0 and stays within its workspace.
// What the values should be is the test's own business: a reference in double, and ExpectClose.
//
// Libraries come from $FUSEBOARD_HOME/lib/fuseboard/kernels. Test suites are parameterised by the
// device type and instantiated by FB_INSTANTIATE_PER_DEVICE: ctest runs the instances named Gpu*
// under label gpu and all others under label cpu. A Gpu test fails where there is no GPU.
//
// Under a checker that takes long for large calls FUSEBOARD_TEST_GPU_ELEMENTS and
// FUSEBOARD_TEST_GPU_COLUMNS are numbers: calls with a tensor of more elements, or of longer rows,
// run on the CPU instead, so that every test and every small shape remains.

#ifndef TESTS_TESTING_KERNEL_HARNESS_H_
#define TESTS_TESTING_KERNEL_HARNESS_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/abi/kernel_abi.h"
#include "tests/testing/test_tensor.h"

namespace fuseboard::testing {

// The table of a library, mapped for the rest of the process. Errors: exits with what dlopen says.
const FbKernel& OpenKernel(const char* operation);

// Instantiates a TEST_P suite whose parameter is an FbDeviceType.
#if defined(FB_HAVE_CUDA)
#define FB_INSTANTIATE_PER_DEVICE(suite)                                \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, ::testing::Values(int{FB_CPU})); \
  INSTANTIATE_TEST_SUITE_P(Gpu, suite, ::testing::Values(int{FB_CUDA}))
#else
#define FB_INSTANTIATE_PER_DEVICE(suite) \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, ::testing::Values(int{FB_CPU}))
#endif

// A call over tensors in host memory. `params` outlives it.
struct KernelCall {
  FbPhase phase = FB_FORWARD;
  std::vector<TestTensor> inputs;
  std::vector<TestTensor> outputs;
  const void* params = nullptr;
};

// Why the library refuses the call; "" if it does not. Nothing is run.
std::string RejectReason(const FbKernel& kernel, const KernelCall& call, int device_type = FB_CPU);

// Runs the call with all the checks above and fills call->outputs.
void Run(const FbKernel& kernel, int device_type, KernelCall* call);

// Runs the call with one output in the very memory of one input; the outputs, that one as it is
// read back. Without the checks above, which an ordinary run makes.
std::vector<TestTensor> RunInPlace(const FbKernel& kernel, int device_type, const KernelCall& call,
                                   size_t input, size_t output);

// The one tolerance table, which the libraries' manifests repeat. An element may differ from the
// reference by `relative` of it, plus `relative` of `scale`, the size of what was added up to it.
struct Tolerance {
  double relative;
};
Tolerance ToleranceOf(int32_t dtype);

// Expects got(r, c) to be within the tolerance of want(r, c); NaN and infinities must be equal. The
// tolerance is that of got's dtype, or of `dtype` if something was rounded to a coarser one.
void ExpectClose(const TestTensor& got, const std::function<double(int64_t, int64_t)>& want,
                 double scale = 0.0, int32_t dtype = -1);

// The call of `tensors` as a library gets it: for tests that need one that is not quite right.
struct RawCall {
  std::vector<FbTensor> inputs;
  std::vector<FbTensor> outputs;
  FbCall call;
};
void FillRawCall(const KernelCall& call, int device_type, RawCall* raw);

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_KERNEL_HARNESS_H_
