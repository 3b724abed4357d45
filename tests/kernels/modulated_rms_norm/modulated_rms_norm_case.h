// One modulated_rms_norm problem: its calls with filled tensors, and what they should give, in
// double.

#ifndef TESTS_KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CASE_H_
#define TESTS_KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CASE_H_

#include <string>
#include <vector>

#include "tests/kernels/rms_norm/rms_norm_case.h"

namespace fuseboard::modulated_rms_norm {

struct Case {
  rms_norm::Case norm;
  int64_t groups = 2;
  int32_t scale_dtype = FB_F32;
  int32_t shift_dtype = FB_F32;
  testing::Layout scale_layout = {};

  std::string Name() const {
    return norm.Name() + ", groups " + std::to_string(groups) + ", scale dtype " +
           std::to_string(scale_dtype) + ", shift dtype " + std::to_string(shift_dtype);
  }
  int32_t y_dtype() const {
    const auto promote = [](int32_t a, int32_t b) { return a == b ? a : int32_t{FB_F32}; };
    return promote(promote(norm.y_dtype(), scale_dtype), shift_dtype);
  }
  int64_t GroupOf(int64_t row) const { return row / (norm.rows / groups); }
  testing::TestTensor Scale() const {
    return testing::TestTensor(scale_dtype, {groups, norm.hidden}, scale_layout).FillNormal(4, 0.5);
  }
  testing::TestTensor Shift() const {
    return testing::TestTensor(shift_dtype, {groups, norm.hidden}, scale_layout).FillNormal(5);
  }
};

inline testing::KernelCall ForwardCall(const Case& c, const FbRmsNormParams* params) {
  return {FB_FORWARD,
          {c.norm.X(), c.norm.Weight(), c.Scale(), c.Shift()},
          {testing::TestTensor(c.y_dtype(), {c.norm.rows, c.norm.hidden}, c.norm.y_layout),
           testing::TestTensor(FB_F32, {c.norm.rows})},
          params};
}

// Which gradients are asked for.
struct Wanted {
  bool dx = true;
  bool dweight = true;
  bool dscale = true;
  bool dshift = true;
};

inline testing::KernelCall BackwardCall(const Case& c, const FbRmsNormParams* params,
                                        const testing::Layout& dy_layout,
                                        const Wanted& wanted = {}) {
  using testing::TestTensor;
  const std::vector<int64_t> rows = {c.norm.rows, c.norm.hidden};
  const std::vector<int64_t> groups = {c.groups, c.norm.hidden};
  const bool has_dweight = wanted.dweight && c.norm.weight_dtype != rms_norm::kNoWeight;
  testing::KernelCall call = {
      FB_BACKWARD,
      {TestTensor(c.y_dtype(), rows, dy_layout).FillNormal(3), c.norm.X(), c.norm.Weight(),
       c.Scale(), TestTensor(FB_F32, {c.norm.rows})},
      {wanted.dx ? TestTensor(c.norm.x_dtype, rows, c.norm.y_layout) : TestTensor(),
       has_dweight ? TestTensor(c.norm.weight_dtype, {c.norm.hidden}) : TestTensor(),
       wanted.dscale ? TestTensor(c.scale_dtype, groups) : TestTensor(),
       wanted.dshift ? TestTensor(c.shift_dtype, groups) : TestTensor()},
      params};
  const rms_norm::Reference reference(c.norm, call.inputs[1], call.inputs[2]);
  call.inputs[4].Fill([&](int64_t, int64_t row) { return reference.Rstd(row); });
  return call;
}

using Rows = std::vector<std::vector<double>>;

struct Gradients {
  Rows dx;
  std::vector<double> dweight;
  Rows dscale;
  Rows dshift;
};

// Of a call of BackwardCall. The weight may be absent; then it is one.
inline Gradients WantedGradients(const Case& c, const testing::KernelCall& call) {
  const auto& dy = call.inputs[0];
  const auto& x = call.inputs[1];
  const auto& scale = call.inputs[3];
  const rms_norm::Reference norm(c.norm, x, call.inputs[2]);
  const auto hidden = static_cast<size_t>(c.norm.hidden);
  const auto groups = static_cast<size_t>(c.groups);
  Gradients want = {{},
                    std::vector<double>(hidden),
                    Rows(groups, std::vector<double>(hidden)),
                    Rows(groups, std::vector<double>(hidden))};
  for (int64_t r = 0; r < c.norm.rows; ++r) {
    const int64_t group = c.GroupOf(r);
    std::vector<double> g(hidden);
    double mean = 0.0;
    for (int64_t i = 0; i < c.norm.hidden; ++i) {
      const double dnormed = dy.At(r, i) * (1.0 + scale.At(group, i));
      g[i] = dnormed * norm.Scale(i);
      mean += g[i] * x.At(r, i) * norm.Rstd(r) / static_cast<double>(hidden);
      want.dweight[i] += dnormed * norm.Normed(r, i);
      want.dscale[group][i] += dy.At(r, i) * norm.Y(r, i);
      want.dshift[group][i] += dy.At(r, i);
    }
    for (int64_t i = 0; i < c.norm.hidden; ++i) {
      g[i] = norm.Rstd(r) * (g[i] - x.At(r, i) * norm.Rstd(r) * mean);
    }
    want.dx.push_back(std::move(g));
  }
  return want;
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // TESTS_KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_CASE_H_
