// A problem of the cross_entropy tests: its tensors and options, the calls made of them, and the
// right answer in double, straight from the formulas of kernels/abi/cross_entropy.h.

#ifndef TESTS_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CASE_H_
#define TESTS_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/abi/cross_entropy.h"
#include "kernels/abi/kernel_abi.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::cross_entropy {

// Places of the forward outputs.
enum ForwardOutput { kLoss, kZLoss, kLse, kArgmax, kDlogits };

struct Shape {
  int64_t rows;
  int64_t vocab;
  int32_t dtype = FB_F32;
};

struct Case {
  // Normal logits times 3, targets spread over the classes, no options.
  Case(Shape shape, uint32_t seed, testing::Layout logits_layout = {});

  Shape shape;
  FbCrossEntropyParams params;
  testing::TestTensor logits;
  testing::TestTensor target;
  testing::TestTensor class_weight;  // Absent until set, like scale.
  testing::TestTensor scale;
  testing::Layout dlogits_layout;
  bool wants_gradient = true;
  bool wants_argmax = true;
  int32_t statistic = FB_F32;  // The dtype of lse and entropy.

  Case& WithClassWeights(uint32_t seed);
  Case& WithScale(uint32_t seed, int64_t stride = 1);

  [[nodiscard]] testing::KernelCall Forward() const;
  [[nodiscard]] testing::KernelCall Backward(const testing::TestTensor& lse) const;
};

struct RowAnswer {
  double loss = 0;
  double z_loss = 0;
  double lse = 0;
  int64_t argmax = 0;
  double z_size = 0;              // Largest |z|.
  std::vector<double> gradient;   // Empty unless asked for.
  std::vector<double> term_size;  // What was added up to each, in absolute values.
};
RowAnswer Solve(const Case& c, int64_t row);
std::vector<double> ZOfRow(const Case& c, int64_t row);

// Half a unit in the last place of the dtype of a gradient and fp32's own errors, and the smallest
// fp16 step.
double GradientTolerance(int32_t dtype);
double GradientStep(int32_t dtype);

// Expects the outputs of c.Forward() to be right.
void ExpectForward(const Case& c, const std::vector<testing::TestTensor>& outputs);
void ExpectGradient(const Case& c, const testing::TestTensor& dlogits);

// Runs forward on the device with all of the harness' checks, and expects the right answers; then,
// if there is a gradient: in place, expecting the same bits, and backward. Returns the outputs.
std::vector<testing::TestTensor> RunAndCheck(const Case& c, int device_type);

const FbKernel& Kernel();

}  // namespace fuseboard::cross_entropy

#endif  // TESTS_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CASE_H_
