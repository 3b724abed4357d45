// What is true of every row loss (kernels/common/row_loss_call.h), as checks that the tests of an
// operation run with its own function in double.

#ifndef TESTS_KERNELS_COMMON_ROW_LOSS_SUITE_H_
#define TESTS_KERNELS_COMMON_ROW_LOSS_SUITE_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/kernel_harness.h"

namespace fuseboard::row_loss {

// One element in double, and the size of what was added up to it, by which its error is judged.
struct Terms {
  double loss;
  double gradient;
  double loss_size;
  double gradient_size;
};

// An operation with its parameters.
struct Operation {
  const char* name;
  const void* params;
  bool of_probabilities[2];  // Whether input and target are, or else logarithms of some.
  std::function<Terms(double x, double y)> function;
};

struct Case {
  int64_t rows = 3;
  int64_t cols = 8;
  int32_t dtype = FB_F32;
  testing::Layout in_layout = {};
  testing::Layout out_layout = {};
  int64_t ignored_step = 0;  // Every so manieth row is ignored; 0: there is no label.
  int32_t label_dtype = FB_I64;

  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], dtype " +
           std::to_string(dtype) + ", row stride " + std::to_string(in_layout.row_stride) +
           ", offset " + std::to_string(in_layout.offset);
  }
  bool IsIgnored(int64_t row) const { return ignored_step != 0 && row % ignored_step == 0; }
};

inline constexpr int64_t kIgnoredLabel = -100;

// A row's softmax of normal variates, or its logarithm.
inline testing::TestTensor Distribution(const Case& c, uint32_t seed, bool of_probabilities) {
  testing::TestTensor tensor(c.dtype, {c.rows, c.cols}, c.in_layout);
  tensor.FillNormal(seed, 2.0);
  const int64_t rows = c.in_layout.row_stride == 0 ? std::min<int64_t>(c.rows, 1) : c.rows;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0.0;
    for (int64_t i = 0; i < c.cols; ++i) sum += std::exp(tensor.At(r, i));
    for (int64_t i = 0; i < c.cols; ++i) {
      const double log_probability = tensor.At(r, i) - std::log(sum);
      tensor.Set(r, i, of_probabilities ? std::exp(log_probability) : log_probability);
    }
  }
  return tensor;
}

class Suite {
 public:
  Suite(Operation operation, int device_type)
      : operation_(std::move(operation)), device_type_(device_type) {}

  testing::TestTensor Label(const Case& c) const {
    if (c.ignored_step == 0) return {};
    return testing::TestTensor(c.label_dtype, {c.rows}).Fill([&](auto, auto r) {
      return c.IsIgnored(r) ? static_cast<double>(kIgnoredLabel) : 7.0;
    });
  }

  // A forward whose outputs are absent.
  testing::KernelCall ForwardCall(const Case& c) const {
    return {FB_FORWARD,
            {Distribution(c, 1, operation_.of_probabilities[0]),
             Distribution(c, 2, operation_.of_probabilities[1]), testing::TestTensor(), Label(c)},
            {{}, {}, {}},
            operation_.params};
  }

  testing::KernelCall BackwardCall(const Case& c) const {
    const testing::KernelCall forward = ForwardCall(c);
    return {FB_BACKWARD,
            {testing::TestTensor(FB_F32, {c.rows, c.cols}, c.in_layout).FillNormal(3),
             forward.inputs[0], forward.inputs[1], forward.inputs[3]},
            {testing::TestTensor(c.dtype, {c.rows, c.cols}, c.out_layout)},
            operation_.params};
  }

  void Run(testing::KernelCall* call) const {
    testing::Run(testing::OpenKernel(operation_.name), device_type_, call);
  }

  Terms TermsOf(const Case& c, const testing::KernelCall& call, int64_t row, int64_t col) const {
    if (c.IsIgnored(row)) return {0.0, 0.0, 0.0, 0.0};
    const size_t first = call.phase == FB_FORWARD ? 0 : 1;
    return operation_.function(call.inputs[first].At(row, col),
                               call.inputs[first + 1].At(row, col));
  }

  // Of each row alone, with the gradient under a scale, and of each element.
  void ExpectForward(const Case& c) const {
    SCOPED_TRACE(c.Name());
    const testing::KernelCall call = ForwardCall(c);
    ExpectLossAlone(c, call);
    ExpectLossAndGradient(c, call);
    ExpectElements(c, call);
  }

  void ExpectBackward(const Case& c) const {
    SCOPED_TRACE(c.Name());
    testing::KernelCall call = BackwardCall(c);
    Run(&call);
    ExpectGradient(c, call, call.outputs[0],
                   [&](auto r, auto i) { return call.inputs[0].At(r, i); });
  }

  void ExpectLossAlone(const Case& c, testing::KernelCall call) const {
    call.outputs[0] = testing::TestTensor(FB_F32, {c.rows});
    Run(&call);
    ExpectLoss(c, call);
  }

  void ExpectLossAndGradient(const Case& c, testing::KernelCall call) const {
    call.inputs[2] = testing::TestTensor(FB_F32, {c.rows}).FillNormal(4);
    call.outputs[0] = testing::TestTensor(FB_F32, {c.rows});
    call.outputs[2] = testing::TestTensor(c.dtype, {c.rows, c.cols}, c.out_layout);
    Run(&call);
    ExpectLoss(c, call);
    ExpectGradient(c, call, call.outputs[2], [&](auto r, auto) { return call.inputs[2].At(0, r); });
    // Each of them alone has the same bits.
    testing::KernelCall gradient_alone = call;
    gradient_alone.outputs[0] = {};
    Run(&gradient_alone);
    EXPECT_TRUE(gradient_alone.outputs[2].HasBitsOf(call.outputs[2]));
    testing::KernelCall loss_alone = call;
    loss_alone.outputs[2] = {};
    Run(&loss_alone);
    EXPECT_TRUE(loss_alone.outputs[0].HasBitsOf(call.outputs[0]));
  }

  void ExpectElements(const Case& c, testing::KernelCall call) const {
    testing::Layout layout = c.out_layout;
    call.outputs[1] = testing::TestTensor(FB_F32, {c.rows, c.cols}, layout);
    Run(&call);
    ExpectAll(c, call.outputs[1], [&](auto r, auto i) {
      const Terms terms = TermsOf(c, call, r, i);
      return Bound{terms.loss, kLossError * (std::fabs(terms.loss) + terms.loss_size)};
    });
  }

  // Rows of which none is ignored, alone and among ignored ones that hold NaN: the same bits.
  void ExpectIgnoredRowsToBeUnread(const Case& c) const {
    SCOPED_TRACE(c.Name());
    testing::KernelCall call = ForwardCall(c);
    call.outputs[0] = testing::TestTensor(FB_F32, {c.rows});
    call.outputs[2] = testing::TestTensor(c.dtype, {c.rows, c.cols}, c.out_layout);
    testing::KernelCall poisoned = call;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.cols && c.IsIgnored(r); ++i) {
        poisoned.inputs[0].Set(r, i, std::nan(""));
        poisoned.inputs[1].Set(r, i, std::nan(""));
      }
    }
    Run(&call);
    Run(&poisoned);
    EXPECT_TRUE(call.outputs[0].HasBitsOf(poisoned.outputs[0]));
    EXPECT_TRUE(call.outputs[2].HasBitsOf(poisoned.outputs[2]));
    for (int64_t r = 0; r < c.rows; ++r) {
      if (c.IsIgnored(r)) {
        EXPECT_EQ(poisoned.outputs[0].At(0, r), 0.0);
      }
    }
  }

 private:
  // f32 of a few roundings; of 16-bit inputs too, whose losses are f32.
  static constexpr double kLossError = 1e-5;

  struct Bound {
    double want;
    double slack;
  };

  void ExpectLoss(const Case& c, const testing::KernelCall& call) const {
    for (int64_t r = 0; r < c.rows; ++r) {
      double want = 0.0;
      double size = 0.0;
      for (int64_t i = 0; i < c.cols; ++i) {
        const Terms terms = TermsOf(c, call, r, i);
        want += terms.loss;
        size += terms.loss_size;
      }
      EXPECT_NEAR(call.outputs[0].At(0, r), want, kLossError * (std::fabs(want) + size))
          << "row " << r;
    }
  }

  void ExpectGradient(const Case& c, const testing::KernelCall& call,
                      const testing::TestTensor& gradient,
                      const std::function<double(int64_t, int64_t)>& upstream) const {
    const double relative = testing::ToleranceOf(c.dtype).relative;
    const double floor = c.dtype == FB_F16 ? 0x1p-24 : 0x1p-126;
    ExpectAll(c, gradient, [&](auto r, auto i) {
      const Terms terms = TermsOf(c, call, r, i);
      const double scale = upstream(r, i);
      const double want = terms.gradient * scale;
      const double slack =
          relative * std::fabs(want) + kLossError * terms.gradient_size * std::fabs(scale) + floor;
      return Bound{want, c.IsIgnored(r) ? 0.0 : slack};
    });
  }

  static void ExpectAll(const Case& c, const testing::TestTensor& got,
                        const std::function<Bound(int64_t, int64_t)>& bound) {
    int64_t wrong = 0;
    std::string first;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.cols; ++i) {
        const Bound b = bound(r, i);
        const double g = got.At(r, i);
        const bool close = std::isfinite(b.want)
                               ? std::fabs(g - b.want) <= b.slack
                               : (std::isnan(b.want) ? std::isnan(g) : g == b.want);
        if (close || wrong++ > 0) continue;
        std::ostringstream
            text;  // std::to_string has six digits after the point, whatever the size.
        text << "[" << r << ", " << i << "]: want " << b.want << " within " << b.slack << ", got "
             << g;
        first = text.str();
      }
    }
    EXPECT_EQ(wrong, 0) << first;
  }

  Operation operation_;
  int device_type_;
};

// Both phases on shapes of a thread to a row, several rows to a block, one, and several tiles, with
// widths that 16 bytes do not divide; no rows, and no columns.
inline void ExpectAllShapes(const Suite& suite) {
  struct Shape {
    int64_t rows;
    int64_t cols;
  };
  constexpr Shape kShapes[] = {{1, 1},    {5, 3},     {33, 16},   {7, 67},     {9, 256}, {3, 1025},
                               {2, 5120}, {2, 32768}, {1, 50257}, {1, 131073}, {0, 16},  {5, 0}};
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const Shape& shape : kShapes) {
      const Case c = {.rows = shape.rows, .cols = shape.cols, .dtype = dtype};
      suite.ExpectForward(c);
      suite.ExpectBackward(c);
    }
  }
}

// Rows apart, overlapping or one, aligned alike or not, and bases anywhere.
inline void ExpectAllLayouts(const Suite& suite) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t stride : {128, 72, 67, 32, 0}) {
      for (const int64_t out_stride : {67, 72}) {
        const Case c = {.rows = 9,
                        .cols = 67,
                        .dtype = dtype,
                        .in_layout = {.row_stride = stride},
                        .out_layout = {.row_stride = out_stride}};
        suite.ExpectForward(c);
        suite.ExpectBackward(c);
      }
    }
    for (const int64_t in_offset : {0, 1, 3}) {
      for (const int64_t out_offset : {0, 1, 3}) {
        const Case c = {.rows = 3,
                        .cols = 130,
                        .dtype = dtype,
                        .in_layout = {.offset = in_offset},
                        .out_layout = {.offset = out_offset}};
        suite.ExpectForward(c);
        suite.ExpectBackward(c);
      }
    }
  }
}

inline void ExpectLabelsToBeObeyed(const Suite& suite) {
  for (const int32_t label_dtype : {FB_I64, FB_I32}) {
    for (const int64_t cols : {1, 67, 40000}) {
      for (const int64_t step : {1, 2, 3}) {
        const Case c = {.rows = 5,
                        .cols = cols,
                        .dtype = FB_BF16,
                        .ignored_step = step,
                        .label_dtype = label_dtype};
        // Wide rows, which take the time, once.
        if (cols == 40000 && (label_dtype != FB_I64 || step != 2)) continue;
        suite.ExpectForward(c);
        suite.ExpectBackward(c);
        suite.ExpectIgnoredRowsToBeUnread(c);
      }
    }
  }
}

inline void ExpectManyRows(const Suite& suite) {
  const Case c = {.rows = 131073, .cols = 3, .dtype = FB_BF16, .in_layout = {.row_stride = 4}};
  suite.ExpectLossAndGradient(c, suite.ForwardCall(c));
}

}  // namespace fuseboard::row_loss

#endif  // TESTS_KERNELS_COMMON_ROW_LOSS_SUITE_H_
