// One qk_norm_rope problem: its calls with filled tensors, and what they should give, in double.

#ifndef TESTS_KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CASE_H_
#define TESTS_KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CASE_H_

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/abi/qk_norm_rope.h"
#include "tests/kernels/rope/rope_case.h"

namespace fuseboard::qk_norm_rope {

using rope::kNoHeads;

struct Case {
  rope::Case rope = {};
  int32_t weight_dtype = FB_F32;
  int32_t casting = FB_CASTING_LLAMA;
  double eps = 1e-6;
  double offset = 0.0;
  int32_t all_heads = 0;
  bool weights = true;
  int64_t weight_offset = 0;  // 1: unaligned.

  std::string Name() const {
    return rope.Name() + ", weight dtype " + std::to_string(weight_dtype) + ", casting " +
           std::to_string(casting) + ", all heads " + std::to_string(all_heads);
  }

  FbQkNormRopeParams params() const {
    FbQkNormRopeParams result = {};
    result.struct_size = sizeof(FbQkNormRopeParams);
    result.casting = casting;
    result.eps = eps;
    result.offset = offset;
    result.all_heads = all_heads;
    result.rope = rope.params();
    return result;
  }

  int32_t ResultDType() const {
    const bool wider = casting == FB_CASTING_LLAMA && weights && weight_dtype != rope.dtype;
    return wider ? int32_t{FB_F32} : rope.dtype;
  }

  // The rotation as separate operators would see it.
  rope::Case RotationOf() const {
    rope::Case result = rope;
    result.dtype = ResultDType();
    if (casting == FB_CASTING_NONE) result.round_products = 0;
    return result;
  }

  int64_t Features(int64_t heads) const { return (all_heads != 0 ? heads : 1) * rope.dim; }

  testing::TestTensor Weight(int64_t heads) const {
    if (!weights || heads == kNoHeads) return {};
    return {weight_dtype, {Features(heads)}, {.offset = weight_offset}};
  }
};

inline testing::KernelCall ForwardCall(const Case& c, const FbQkNormRopeParams* params) {
  const rope::Case& r = c.rope;
  testing::KernelCall call = {
      FB_FORWARD,
      {r.HeadsOf(r.heads, r.in), r.HeadsOf(r.k_heads, r.in), r.Table(3), r.Table(4),
       c.Weight(r.heads), c.Weight(r.k_heads)},
      {c.RotationOf().HeadsOf(r.heads, r.out), c.RotationOf().HeadsOf(r.k_heads, r.out)},
      params};
  for (const uint32_t i : {0, 1, 4, 5}) {
    const double mean = i < 4 ? 0.0 : 1.0 - c.offset;
    if (!call.inputs[i].absent()) call.inputs[i].FillNormal(i + 1, i < 4 ? 2.0 : 0.5, mean);
  }
  return call;
}

// The upstream gradients lie as `rope.in` says, q and k as `rope.out` does.
inline testing::KernelCall BackwardCall(const Case& c, const FbQkNormRopeParams* params) {
  const rope::Case& r = c.rope;
  const rope::Case results = c.RotationOf();
  testing::KernelCall call = {
      FB_BACKWARD,
      {results.HeadsOf(r.heads, r.in), results.HeadsOf(r.k_heads, r.in), r.HeadsOf(r.heads, r.out),
       r.HeadsOf(r.k_heads, r.out), r.Table(3), r.Table(4), c.Weight(r.heads), c.Weight(r.k_heads)},
      {r.HeadsOf(r.heads, r.out), r.HeadsOf(r.k_heads, r.out), c.Weight(r.heads),
       c.Weight(r.k_heads)},
      params};
  for (const uint32_t i : {0, 1, 2, 3, 6, 7}) {
    const double mean = i < 6 ? 0.0 : 1.0 - c.offset;
    const double scale = i < 2 ? 1.0 : (i < 6 ? 2.0 : 0.5);
    if (!call.inputs[i].absent()) call.inputs[i].FillNormal(i + 1, scale, mean);
  }
  return call;
}

// q or k of a call. Rows of the tensors are heads; `Norm` is of a row of the operation.
class Reference {
 public:
  Reference(const Case& c, const testing::KernelCall& call, int side)
      : case_(c),
        rotation_(c.RotationOf()),
        backward_(call.phase == FB_BACKWARD),
        side_(side),
        x_(call.inputs[(backward_ ? 2 : 0) + side]),
        weight_(call.inputs[(backward_ ? 6 : 4) + side]),
        rotated_{call.phase,
                 {{}, {}, call.inputs[backward_ ? 4 : 2], call.inputs[backward_ ? 5 : 3]},
                 {},
                 nullptr} {
    FillRstd();
    testing::TestTensor& in = rotated_.inputs[side];
    in = testing::TestTensor(FB_F64, x_.shape());
    if (backward_) {
      in.Fill([&](auto row, auto e) { return call.inputs[side].At(row, e); });
    } else {
      in.Fill([&](auto row, auto e) { return Scaled(Normed(row, e) * Scale(row, e)); });
    }
    FillResults();
    if (backward_) FillMeans();
  }

  // Forward: the result. Backward: the gradient of what was rotated.
  double Rotated(int64_t row, int64_t e) const { return results_[row * x_.cols() + e]; }

  double Dx(int64_t row, int64_t e) const {
    const double n = x_.At(row, e) * rstd_[row];
    return rstd_[row] * (Rotated(row, e) * Scale(row, e) - n * mean_[row]);
  }

  std::vector<double> DWeight() const {
    std::vector<double> sums(static_cast<size_t>(case_.Features(x_.shape()[1])));
    for (int64_t row = 0; row < x_.rows(); ++row) {
      for (int64_t e = 0; e < x_.cols(); ++e) {
        sums[Feature(row, e)] += Rotated(row, e) * Normed(row, e);
      }
    }
    return sums;
  }

 private:
  int64_t Head(int64_t row) const { return row / case_.rope.positions % x_.shape()[1]; }
  int64_t Feature(int64_t row, int64_t e) const {
    return case_.all_heads != 0 ? Head(row) * case_.rope.dim + e : e;
  }

  // Calls fn(row) for the heads that are normalised together with that of `row`.
  template <typename Fn>
  void ForRowOf(int64_t row, const Fn& fn) const {
    if (case_.all_heads == 0) return fn(row);
    const int64_t first = row - Head(row) * case_.rope.positions;
    for (int64_t h = 0; h < x_.shape()[1]; ++h) fn(first + h * case_.rope.positions);
  }

  void FillRstd() {
    std::vector<double> squares(static_cast<size_t>(x_.rows()));
    for (int64_t row = 0; row < x_.rows(); ++row) {
      for (int64_t e = 0; e < x_.cols(); ++e) squares[row] += x_.At(row, e) * x_.At(row, e);
    }
    const auto features = static_cast<double>(case_.Features(x_.shape()[1]));
    for (int64_t row = 0; row < x_.rows(); ++row) {
      double sum = 0.0;
      ForRowOf(row, [&](int64_t head) { sum += squares[head]; });
      rstd_.push_back(1.0 / std::sqrt(sum / features + case_.eps));
    }
  }

  void FillResults() {
    const rope::Reference rotation(rotation_, rotated_);
    results_.reserve(static_cast<size_t>(x_.rows() * x_.cols()));
    for (int64_t row = 0; row < x_.rows(); ++row) {
      for (int64_t e = 0; e < x_.cols(); ++e) {
        const double value = rotation(side_, row, e);
        results_.push_back(backward_ ? testing::RoundToDType(case_.ResultDType(), value) : value);
      }
    }
  }

  // The means of g * n, from the gradients rotated back.
  void FillMeans() {
    std::vector<double> sums(static_cast<size_t>(x_.rows()));
    for (int64_t row = 0; row < x_.rows(); ++row) {
      for (int64_t e = 0; e < x_.cols(); ++e) {
        sums[row] += Rotated(row, e) * Scale(row, e) * x_.At(row, e) * rstd_[row];
      }
    }
    mean_.resize(sums.size());
    for (int64_t row = 0; row < x_.rows(); ++row) {
      ForRowOf(row, [&](int64_t head) { mean_[row] += sums[head]; });
      mean_[row] /= static_cast<double>(case_.Features(x_.shape()[1]));
    }
  }

  double Normed(int64_t row, int64_t e) const {
    const double n = x_.At(row, e) * rstd_[row];
    return case_.casting == FB_CASTING_LLAMA ? testing::RoundToDType(case_.rope.dtype, n) : n;
  }
  double Scale(int64_t row, int64_t e) const {
    return weight_.absent() ? 1.0 : case_.offset + weight_.At(0, Feature(row, e));
  }
  double Scaled(double value) const {
    const bool rounds = case_.casting != FB_CASTING_NONE;
    return rounds ? testing::RoundToDType(case_.ResultDType(), value) : value;
  }

  const Case& case_;
  rope::Case rotation_;
  bool backward_;
  int side_;
  const testing::TestTensor& x_;
  const testing::TestTensor& weight_;
  testing::KernelCall rotated_;  // What is rotated, in double, with the call's tables.
  std::vector<double> rstd_;
  std::vector<double> mean_;
  std::vector<double> results_;  // Of Rotated, a row after the other.
};

// Each runs a phase on the device and compares all results.
inline testing::KernelCall ExpectForward(const Case& c, int device_type) {
  SCOPED_TRACE(c.Name());
  const FbQkNormRopeParams params = c.params();
  testing::KernelCall call = ForwardCall(c, &params);
  testing::Run(testing::OpenKernel("qk_norm_rope"), device_type, &call);
  for (const int side : {0, 1}) {
    if (call.outputs[side].absent()) continue;
    const Reference want(c, call, side);
    // A difference of two products: its error is relative to theirs.
    testing::ExpectClose(
        call.outputs[side], [&](auto r, auto e) { return want.Rotated(r, e); }, 2.0, c.rope.dtype);
  }
  return call;
}

// `change` is applied to the call before it runs.
inline testing::KernelCall ExpectBackward(
    const Case& c, int device_type,
    const std::function<void(testing::KernelCall*)>& change = [](auto*) {}) {
  SCOPED_TRACE(c.Name());
  const FbQkNormRopeParams params = c.params();
  testing::KernelCall call = BackwardCall(c, &params);
  change(&call);
  testing::Run(testing::OpenKernel("qk_norm_rope"), device_type, &call);
  for (const int side : {0, 1}) {
    if (call.inputs[side].absent()) continue;
    const Reference want(c, call, side);
    if (!call.outputs[side].absent()) {
      testing::ExpectClose(
          call.outputs[side], [&](auto r, auto e) { return want.Dx(r, e); }, 1.0);
    }
    if (call.outputs[2 + side].absent()) continue;
    // A sum of terms near 1: its error is relative to theirs.
    const std::vector<double> dweight = want.DWeight();
    const auto terms = static_cast<double>(call.inputs[2 + side].rows());
    testing::ExpectClose(
        call.outputs[2 + side], [&](auto, auto e) { return dweight[e]; }, 2.0 * std::sqrt(terms),
        c.rope.dtype);
  }
  return call;
}

inline void ExpectBothPhases(const Case& c, int device_type) {
  ExpectForward(c, device_type);
  ExpectBackward(c, device_type);
}

}  // namespace fuseboard::qk_norm_rope

#endif  // TESTS_KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CASE_H_
