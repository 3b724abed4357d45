// One rms_norm problem: its calls with filled tensors, and what they should give, in double.

#ifndef TESTS_KERNELS_RMS_NORM_RMS_NORM_CASE_H_
#define TESTS_KERNELS_RMS_NORM_RMS_NORM_CASE_H_

#include <cmath>
#include <string>
#include <vector>

#include "kernels/abi/rms_norm.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::rms_norm {

inline constexpr int32_t kNoWeight = -1;

struct Case {
  int64_t rows = 4;
  int64_t hidden = 8;
  int32_t x_dtype = FB_F32;
  int32_t weight_dtype = FB_F32;  // Or kNoWeight.
  int32_t casting = FB_CASTING_LLAMA;
  double eps = 1e-6;
  double offset = 0.0;
  testing::Layout x_layout = {};
  testing::Layout y_layout = {};  // Of y, dy and dx.
  int64_t weight_offset = 0;      // Elements from a 256-byte boundary.

  std::string Name() const {
    return "rows " + std::to_string(rows) + ", hidden " + std::to_string(hidden) + ", x dtype " +
           std::to_string(x_dtype) + ", weight dtype " + std::to_string(weight_dtype) +
           ", casting " + std::to_string(casting);
  }
  int32_t y_dtype() const {
    const bool promotes = casting == FB_CASTING_LLAMA && weight_dtype != kNoWeight;
    return promotes && weight_dtype != x_dtype ? int32_t{FB_F32} : x_dtype;
  }
  FbRmsNormParams params() const { return {sizeof(FbRmsNormParams), casting, eps, offset}; }

  testing::TestTensor X() const {
    return testing::TestTensor(x_dtype, {rows, hidden}, x_layout).FillNormal(1);
  }
  testing::TestTensor Weight() const {
    if (weight_dtype == kNoWeight) return {};
    return testing::TestTensor(weight_dtype, {hidden}, {.offset = weight_offset})
        .FillNormal(2, 0.5, 1.0);
  }
};

inline testing::KernelCall ForwardCall(const Case& c, const FbRmsNormParams* params) {
  return {FB_FORWARD,
          {c.X(), c.Weight()},
          {testing::TestTensor(c.y_dtype(), {c.rows, c.hidden}, c.y_layout),
           testing::TestTensor(FB_F32, {c.rows})},
          params};
}

// The values that a call's inputs lead to. `x` and `weight` are held by reference.
class Reference {
 public:
  Reference(const Case& c, const testing::TestTensor& x, const testing::TestTensor& weight)
      : case_(c), x_(x), weight_(weight) {
    for (int64_t r = 0; r < c.rows; ++r) {
      double sum = 0.0;
      for (int64_t i = 0; i < c.hidden; ++i) sum += x.At(r, i) * x.At(r, i);
      rstd_.push_back(1.0 / std::sqrt(sum / static_cast<double>(c.hidden) + c.eps));
    }
  }

  double Rstd(int64_t row) const { return rstd_[row]; }
  double Scale(int64_t col) const {
    return weight_.absent() ? 1.0 : case_.offset + weight_.At(0, col);
  }
  // x * rstd, rounded where the model rounds it.
  double Normed(int64_t row, int64_t col) const {
    const double exact = x_.At(row, col) * rstd_[row];
    const bool round = case_.casting == FB_CASTING_LLAMA;
    return round ? testing::RoundToDType(case_.x_dtype, exact) : exact;
  }
  double Y(int64_t row, int64_t col) const { return Normed(row, col) * Scale(col); }

  // The gradients for an upstream gradient, [rows][hidden] and [hidden].
  struct Gradients {
    std::vector<std::vector<double>> dx;
    std::vector<double> dweight;
  };
  Gradients Backward(const testing::TestTensor& dy) const {
    const int64_t hidden = case_.hidden;
    Gradients result = {{}, std::vector<double>(hidden)};
    for (int64_t r = 0; r < case_.rows; ++r) {
      std::vector<double> g(hidden);
      double mean = 0.0;
      for (int64_t i = 0; i < hidden; ++i) {
        const double upstream = dy.At(r, i);
        g[i] = upstream * Scale(i);
        mean += g[i] * x_.At(r, i) * rstd_[r] / static_cast<double>(hidden);
        result.dweight[i] += upstream * Normed(r, i);
      }
      for (int64_t i = 0; i < hidden; ++i) {
        g[i] = rstd_[r] * (g[i] - x_.At(r, i) * rstd_[r] * mean);
      }
      result.dx.push_back(std::move(g));
    }
    return result;
  }

 private:
  Case case_;
  const testing::TestTensor& x_;
  const testing::TestTensor& weight_;
  std::vector<double> rstd_;
};

// `dy_layout` may be expanded, which dx (c.y_layout) may not.
inline testing::KernelCall BackwardCall(const Case& c, const FbRmsNormParams* params,
                                        const testing::Layout& dy_layout) {
  testing::KernelCall call = {
      FB_BACKWARD,
      {testing::TestTensor(c.y_dtype(), {c.rows, c.hidden}, dy_layout).FillNormal(3), c.X(),
       c.Weight(), testing::TestTensor(FB_F32, {c.rows})},
      {testing::TestTensor(c.x_dtype, {c.rows, c.hidden}, c.y_layout),
       c.weight_dtype == kNoWeight ? testing::TestTensor()
                                   : testing::TestTensor(c.weight_dtype, {c.hidden})},
      params};
  const Reference reference(c, call.inputs[1], call.inputs[2]);
  call.inputs[3].Fill([&](int64_t, int64_t row) { return reference.Rstd(row); });
  return call;
}

}  // namespace fuseboard::rms_norm

#endif  // TESTS_KERNELS_RMS_NORM_RMS_NORM_CASE_H_
