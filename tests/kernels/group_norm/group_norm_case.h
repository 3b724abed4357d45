// A group_norm problem, its calls, and what they should give in double.

#ifndef TESTS_KERNELS_GROUP_NORM_GROUP_NORM_CASE_H_
#define TESTS_KERNELS_GROUP_NORM_GROUP_NORM_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/abi/group_norm.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::group_norm {

inline constexpr int32_t kAbsentDType = -1;
inline constexpr double kEps = 1e-5;

struct Case {
  int64_t examples = 2;
  int64_t channels = 4;
  int64_t elements = 8;
  int64_t groups = 2;
  int32_t dtype = FB_F32;
  int32_t weight_dtype = FB_F32;  // Or kAbsentDType.
  int32_t bias_dtype = FB_F32;    // Or kAbsentDType.
  double x_mean = 0.0;
  int64_t x_offset = 0;  // Elements from a 256-byte boundary; also of dy.
  int64_t y_offset = 0;  // Of y and dx.

  Case With(int32_t all_dtypes) const {
    Case c = *this;
    c.dtype = c.weight_dtype = c.bias_dtype = all_dtypes;
    return c;
  }
  std::string Name() const {
    return "[" + std::to_string(examples) + ", " + std::to_string(channels) + ", " +
           std::to_string(elements) + "] groups " + std::to_string(groups) + " dtype " +
           std::to_string(dtype) + " weight " + std::to_string(weight_dtype) + " bias " +
           std::to_string(bias_dtype);
  }
  FbGroupNormParams Params() const { return {sizeof(FbGroupNormParams), groups, kEps}; }
  testing::TestTensor Image(int64_t offset) const {
    return {dtype, {examples, channels, elements}, {.offset = offset}};
  }
  testing::TestTensor X() const { return Image(x_offset).FillNormal(1, 1.0, x_mean); }
  testing::TestTensor Parameter(int32_t parameter_dtype) const {
    if (parameter_dtype == kAbsentDType) return {};
    return testing::TestTensor(parameter_dtype, {channels});
  }
  testing::TestTensor Filled(int32_t parameter_dtype, uint32_t seed, double mean) const {
    testing::TestTensor parameter = Parameter(parameter_dtype);
    return parameter.absent() ? parameter : parameter.FillNormal(seed, 0.5, mean);
  }
  testing::TestTensor Weight() const { return Filled(weight_dtype, 2, 1.0); }
  testing::TestTensor Bias() const { return Filled(bias_dtype, 4, 0.0); }
  testing::TestTensor Statistic() const { return {FB_F32, {examples * groups}}; }
  int64_t GroupOf(int64_t row) const { return row / (channels / groups); }
};

// Of x as [examples * channels, elements], as TestTensor counts rows.
class Reference {
 public:
  Reference(const Case& c, const testing::TestTensor& x, const testing::TestTensor& weight)
      : case_(c), x_(x), weight_(weight) {
    const int64_t rows = c.channels / c.groups;
    const auto count = static_cast<double>(rows * c.elements);
    for (int64_t group = 0; group < c.examples * c.groups; ++group) {
      double sum = 0.0;
      double square = 0.0;
      const auto for_all = [&](auto fn) {
        for (int64_t row = group * rows; row < (group + 1) * rows; ++row) {
          for (int64_t i = 0; i < c.elements; ++i) fn(x.At(row, i));
        }
      };
      for_all([&](double value) { sum += value; });
      const double mean = sum / count;
      for_all([&](double value) { square += (value - mean) * (value - mean); });
      mean_.push_back(mean);
      rstd_.push_back(1.0 / std::sqrt(square / count + kEps));
    }
  }

  double Mean(int64_t group) const { return mean_[group]; }
  double Rstd(int64_t group) const { return rstd_[group]; }
  double MaxRstd() const {
    double max = 1.0;
    for (const double rstd : rstd_) max = std::max(max, rstd);
    return max;
  }
  double Normed(int64_t row, int64_t i) const {
    const int64_t group = case_.GroupOf(row);
    return (x_.At(row, i) - mean_[group]) * rstd_[group];
  }
  double Scale(int64_t row) const {
    return weight_.absent() ? 1.0 : weight_.At(0, row % case_.channels);
  }

  struct Gradients {
    std::vector<double> g_mean;        // Per group.
    std::vector<double> product_mean;  // Per group.
    std::vector<double> dweight;
    std::vector<double> dbias;
  };
  Gradients Backward(const testing::TestTensor& dy) const {
    Gradients out = {std::vector<double>(mean_.size()), std::vector<double>(mean_.size()),
                     std::vector<double>(case_.channels), std::vector<double>(case_.channels)};
    const int64_t group_channels = case_.channels / case_.groups;
    const auto count = static_cast<double>(group_channels * case_.elements);
    for (int64_t row = 0; row < case_.examples * case_.channels; ++row) {
      double sum = 0.0;
      double product = 0.0;
      for (int64_t i = 0; i < case_.elements; ++i) {
        sum += dy.At(row, i);
        product += dy.At(row, i) * Normed(row, i);
      }
      out.dbias[row % case_.channels] += sum;
      out.dweight[row % case_.channels] += product;
      out.g_mean[case_.GroupOf(row)] += Scale(row) * sum / count;
      out.product_mean[case_.GroupOf(row)] += Scale(row) * product / count;
    }
    return out;
  }
  double InputGradient(const Gradients& gradients, const testing::TestTensor& dy, int64_t row,
                       int64_t i) const {
    const int64_t group = case_.GroupOf(row);
    return rstd_[group] * (dy.At(row, i) * Scale(row) - gradients.g_mean[group] -
                           Normed(row, i) * gradients.product_mean[group]);
  }

 private:
  Case case_;
  const testing::TestTensor& x_;
  const testing::TestTensor& weight_;
  std::vector<double> mean_;
  std::vector<double> rstd_;
};

inline testing::KernelCall NewForward(const Case& c, const FbGroupNormParams* params) {
  return {FB_FORWARD,
          {c.X(), c.Weight(), c.Bias()},
          {c.Image(c.y_offset), c.Statistic(), c.Statistic()},
          params};
}

// With the statistics that the forward should have found.
inline testing::KernelCall NewBackward(const Case& c, const FbGroupNormParams* params) {
  testing::KernelCall call = {
      FB_BACKWARD,
      {c.Image(c.x_offset).FillNormal(3), c.X(), c.Weight(), c.Statistic(), c.Statistic()},
      {c.Image(c.y_offset), c.Parameter(c.weight_dtype), c.Parameter(c.bias_dtype)},
      params};
  const Reference reference(c, call.inputs[1], call.inputs[2]);
  call.inputs[3].Fill([&](int64_t, int64_t group) { return reference.Mean(group); });
  call.inputs[4].Fill([&](int64_t, int64_t group) { return reference.Rstd(group); });
  return call;
}

}  // namespace fuseboard::group_norm

#endif  // TESTS_KERNELS_GROUP_NORM_GROUP_NORM_CASE_H_
