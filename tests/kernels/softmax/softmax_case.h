// One softmax problem: its calls with filled tensors, and what they should give, in double.

#ifndef TESTS_KERNELS_SOFTMAX_SOFTMAX_CASE_H_
#define TESTS_KERNELS_SOFTMAX_SOFTMAX_CASE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/abi/softmax.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::softmax {

struct Case {
  int64_t rows = 3;
  int64_t cols = 8;
  int32_t dtype = FB_F32;
  testing::Layout in_layout = {};
  testing::Layout out_layout = {};

  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], dtype " +
           std::to_string(dtype) + ", row stride " + std::to_string(in_layout.row_stride) +
           ", offset " + std::to_string(in_layout.offset);
  }
  testing::TestTensor In(uint32_t seed, double scale) const {
    return testing::TestTensor(dtype, {rows, cols}, in_layout).FillNormal(seed, scale);
  }
  testing::TestTensor Out() const { return testing::TestTensor(dtype, {rows, cols}, out_layout); }
};

inline testing::KernelCall ForwardCall(const Case& c) {
  return {FB_FORWARD, {c.In(1, 3.0)}, {c.Out()}, nullptr};
}

// The softmax of a row of `x`.
inline std::vector<double> SoftmaxOf(const testing::TestTensor& x, int64_t row) {
  std::vector<double> y(static_cast<size_t>(x.cols()));
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < x.cols(); ++i) max = std::max(max, x.At(row, i));
  double sum = 0.0;
  for (int64_t i = 0; i < x.cols(); ++i) sum += y[i] = std::exp(x.At(row, i) - max);
  for (double& value : y) value /= sum;
  return y;
}

// y is a softmax, rounded, so that its rows add up to about 1.
inline testing::KernelCall BackwardCall(const Case& c) {
  testing::KernelCall call = {FB_BACKWARD, {c.In(2, 1.0), c.In(1, 3.0)}, {c.Out()}, nullptr};
  testing::TestTensor& y = call.inputs[1];
  // Rows that share memory are one row.
  const int64_t rows = c.in_layout.row_stride == 0 ? std::min<int64_t>(c.rows, 1) : c.rows;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> softmax = SoftmaxOf(y, r);
    for (int64_t i = 0; i < c.cols; ++i) y.Set(r, i, softmax[i]);
  }
  return call;
}

// sum(dy * y) of a row.
inline double DotOf(const testing::TestTensor& dy, const testing::TestTensor& y, int64_t row) {
  double dot = 0.0;
  for (int64_t i = 0; i < y.cols(); ++i) dot += dy.At(row, i) * y.At(row, i);
  return dot;
}

}  // namespace fuseboard::softmax

#endif  // TESTS_KERNELS_SOFTMAX_SOFTMAX_CASE_H_
