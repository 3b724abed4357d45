#include "tests/kernels/cross_entropy/cross_entropy_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace fuseboard::cross_entropy {
namespace {

using ::fuseboard::testing::KernelCall;
using ::fuseboard::testing::Layout;
using ::fuseboard::testing::TestTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double WeightOf(const Case& c, int64_t column) {
  return c.class_weight.absent() ? 1.0 : c.class_weight.At(0, column);
}

// 0 * infinity is NaN, also in the frameworks' own loss; a term that is switched off is no term.
double SmoothedLoss(const Case& c, const std::vector<double>& z, double lse) {
  const double smoothing = static_cast<float>(c.params.label_smoothing);
  if (smoothing == 0) return 0;
  double sum = 0;
  for (int64_t i = 0; i < c.shape.vocab; ++i) sum += WeightOf(c, i) * (lse - z[i]);
  return smoothing / static_cast<double>(c.shape.vocab) * sum;
}

double LogSumExp(const std::vector<double>& z) {
  double max = -kInfinity;
  for (const double v : z) max = v > max ? v : max;
  double sum = 0;
  for (const double v : z) sum += std::exp(v - max);
  return max + std::log(sum);
}

int64_t FirstMax(const Case& c, int64_t row) {
  const double sign = c.params.logit_scale < 0 ? -1.0 : 1.0;
  int64_t best = 0;
  double most = -kInfinity;
  for (int64_t i = 0; i < c.shape.vocab; ++i) {
    if (sign * c.logits.At(row, i) > most) {
      most = sign * c.logits.At(row, i);
      best = i;
    }
  }
  return best;
}

void SolveGradient(const Case& c, int64_t row, const std::vector<double>& z, bool in_range,
                   int64_t target, RowAnswer* answer) {
  const int64_t vocab = c.shape.vocab;
  const double upstream = c.scale.absent() ? 1.0 : c.scale.At(0, row);
  const double scale = upstream * static_cast<float>(c.params.logit_scale);
  const double smoothing = static_cast<float>(c.params.label_smoothing);
  const double cap = static_cast<float>(c.params.softcap);
  double weight_sum = 0;
  for (int64_t i = 0; i < vocab; ++i) weight_sum += WeightOf(c, i);
  const double share = smoothing / static_cast<double>(vocab);
  const double hit = (1 - smoothing) * (in_range ? WeightOf(c, target) : NAN);
  double of_p = hit + share * weight_sum;
  if (c.params.z_loss_in_loss != 0) {
    of_p += 2 * static_cast<float>(c.params.z_loss_scale) * answer->lse;
  }
  answer->gradient.resize(vocab);
  answer->term_size.resize(vocab);
  for (int64_t i = 0; i < vocab; ++i) {
    const double slope = cap == 0 ? 1.0 : 1.0 - (z[i] / cap) * (z[i] / cap);
    const double p = of_p * std::exp(z[i] - answer->lse);
    const double smooth = share * WeightOf(c, i);
    const double on_target = i == target ? hit : 0.0;
    answer->gradient[i] = scale * slope * (p - smooth - on_target);
    // Near +-1 the slope is a difference too: exact to 2e-7, as in the native expression.
    const double slope_size = cap == 0 ? 1.0 : slope + 0.1;
    answer->term_size[i] =
        std::fabs(scale) * slope_size * (std::fabs(p) + std::fabs(smooth) + std::fabs(on_target));
  }
}

bool Near(double got, double want, double allowed) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::fabs(got - want) <= allowed;
}

void ExpectSameElements(const TestTensor& a, const TestTensor& b, const char* what) {
  int64_t different = 0;
  for (int64_t r = 0; r < a.rows(); ++r) {
    for (int64_t i = 0; i < a.cols(); ++i) {
      const double x = a.At(r, i);
      const double y = b.At(r, i);
      different += x == y || (std::isnan(x) && std::isnan(y)) ? 0 : 1;
    }
  }
  EXPECT_EQ(different, 0) << what << " differs between in place and out of place";
}

}  // namespace

const FbKernel& Kernel() {
  static const FbKernel& kernel = testing::OpenKernel("cross_entropy");
  return kernel;
}

Case::Case(Shape s, uint32_t seed, Layout logits_layout)
    : shape(s),
      params{sizeof(FbCrossEntropyParams), 0, -100, 0.0, 0.0, 0.0, 1.0},
      logits(s.dtype, {s.rows, s.vocab}, std::move(logits_layout)),
      target(FB_I64, {s.rows}) {
  logits.FillNormal(seed, 3.0);
  target.Fill(
      [&](int64_t, int64_t row) { return static_cast<double>((row * 7919 + seed) % s.vocab); });
}

Case& Case::WithClassWeights(uint32_t seed) {
  class_weight = TestTensor(FB_F32, {shape.vocab});
  class_weight.Fill([seed](int64_t, int64_t i) {
    return 0.25 + 0.125 * static_cast<double>((i * 5 + seed) % 11);
  });
  return *this;
}

Case& Case::WithScale(uint32_t seed, int64_t stride) {
  scale = TestTensor(FB_F32, {shape.rows}, {.row_stride = stride});
  scale.FillNormal(seed, 1.0, 0.5);
  return *this;
}

KernelCall Case::Forward() const {
  KernelCall call;
  call.phase = FB_FORWARD;
  call.inputs = {logits, target, class_weight, scale};
  const TestTensor per_row(FB_F32, {shape.rows});
  call.outputs = {per_row, per_row, TestTensor(statistic, {shape.rows}), TestTensor(),
                  TestTensor()};
  if (wants_argmax) call.outputs[kArgmax] = TestTensor(FB_I64, {shape.rows});
  if (wants_gradient) {
    call.outputs[kDlogits] = TestTensor(shape.dtype, {shape.rows, shape.vocab}, dlogits_layout);
  }
  call.params = &params;
  return call;
}

KernelCall Case::Backward(const TestTensor& lse) const {
  KernelCall call;
  call.phase = FB_BACKWARD;
  TestTensor upstream = scale;
  if (upstream.absent()) {
    upstream = TestTensor(FB_F32, {shape.rows}, {.row_stride = 0});
    upstream.Fill([](int64_t, int64_t) { return 1.0; });
  }
  call.inputs = {logits, target, class_weight, upstream, lse};
  call.outputs = {TestTensor(shape.dtype, {shape.rows, shape.vocab}, dlogits_layout)};
  call.params = &params;
  return call;
}

std::vector<double> ZOfRow(const Case& c, int64_t row) {
  const double scale = static_cast<float>(c.params.logit_scale);
  const double cap = static_cast<float>(c.params.softcap);
  std::vector<double> z(c.shape.vocab);
  for (int64_t i = 0; i < c.shape.vocab; ++i) {
    z[i] = scale * c.logits.At(row, i);
    if (cap != 0) z[i] = cap * std::tanh(z[i] / cap);
  }
  return z;
}

double GradientTolerance(int32_t dtype) {
  return dtype == FB_F32 ? 4e-6 : dtype == FB_F16 ? 5.2e-4 : 3.95e-3;
}

double GradientStep(int32_t dtype) { return dtype == FB_F16 ? 3.1e-8 : 1e-37; }

RowAnswer Solve(const Case& c, int64_t row) {
  RowAnswer answer;
  answer.argmax = FirstMax(c, row);
  const auto target = static_cast<int64_t>(c.target.At(0, row));
  if (target == c.params.ignore_index) {
    answer.gradient.assign(c.shape.vocab, 0.0);
    answer.term_size.assign(c.shape.vocab, 0.0);
    return answer;
  }
  const bool in_range = target >= 0 && target < c.shape.vocab;
  const std::vector<double> z = ZOfRow(c, row);
  for (const double v : z) answer.z_size = std::max(answer.z_size, std::fabs(v));
  if (!std::isfinite(answer.z_size)) answer.z_size = 1;
  answer.lse = LogSumExp(z);
  answer.z_loss =
      in_range ? static_cast<float>(c.params.z_loss_scale) * answer.lse * answer.lse : NAN;
  const double hit = 1 - static_cast<double>(static_cast<float>(c.params.label_smoothing));
  answer.loss = in_range ? hit * WeightOf(c, target) * (answer.lse - z[target]) : NAN;
  answer.loss += SmoothedLoss(c, z, answer.lse);
  if (c.params.z_loss_in_loss != 0) answer.loss += answer.z_loss;
  if (c.wants_gradient) SolveGradient(c, row, z, in_range, target, &answer);
  return answer;
}

void ExpectForward(const Case& c, const std::vector<TestTensor>& outputs) {
  for (int64_t row = 0; row < c.shape.rows; ++row) {
    const RowAnswer want = Solve(c, row);
    // 1e-6 of the value, and the rounding of z where z is not the logit itself.
    const double floor = 5e-7 + 3e-7 * want.z_size;
    const double loss = outputs[kLoss].At(0, row);
    EXPECT_TRUE(Near(loss, want.loss, 1e-6 * std::fabs(want.loss) + floor))
        << "loss of row " << row << ": want " << want.loss << ", got " << loss;
    const double lse = outputs[kLse].At(0, row);
    EXPECT_TRUE(Near(lse, want.lse, 1e-6 * std::fabs(want.lse) + floor))
        << "lse of row " << row << ": want " << want.lse << ", got " << lse;
    const double z_loss = outputs[kZLoss].At(0, row);
    const double z_loss_allowed = 4e-6 * (std::fabs(want.z_loss) + c.params.z_loss_scale);
    EXPECT_TRUE(Near(z_loss, want.z_loss, z_loss_allowed))
        << "z_loss of row " << row << ": want " << want.z_loss << ", got " << z_loss;
    if (c.wants_argmax) {
      EXPECT_EQ(outputs[kArgmax].At(0, row), static_cast<double>(want.argmax)) << "row " << row;
    }
  }
  if (c.wants_gradient) ExpectGradient(c, outputs[kDlogits]);
}

void ExpectGradient(const Case& c, const TestTensor& dlogits) {
  const double relative = GradientTolerance(c.shape.dtype);
  const double step = GradientStep(c.shape.dtype);
  for (int64_t row = 0; row < c.shape.rows; ++row) {
    const RowAnswer want = Solve(c, row);
    // An exponent is as exact as the z that it is the difference of.
    const double of_terms = 4e-6 + 4e-7 * want.z_size;
    int64_t wrong = 0;
    int64_t first = -1;
    for (int64_t i = 0; i < c.shape.vocab; ++i) {
      const double w = want.gradient[i];
      const double allowed = relative * std::fabs(w) + of_terms * want.term_size[i] + step;
      if (Near(dlogits.At(row, i), w, allowed)) continue;
      if (wrong++ == 0) first = i;
    }
    EXPECT_EQ(wrong, 0) << "gradient of row " << row << ", first at " << first << ": want "
                        << want.gradient[std::max<int64_t>(first, 0)] << ", got "
                        << dlogits.At(row, std::max<int64_t>(first, 0));
  }
}

std::vector<TestTensor> RunAndCheck(const Case& c, int device_type) {
  KernelCall forward = c.Forward();
  testing::Run(Kernel(), device_type, &forward);
  ExpectForward(c, forward.outputs);
  if (!c.wants_gradient) return forward.outputs;
  const std::vector<TestTensor> in_place =
      testing::RunInPlace(Kernel(), device_type, c.Forward(), /*input=*/0, /*output=*/kDlogits);
  ExpectSameElements(forward.outputs[kLoss], in_place[kLoss], "loss");
  ExpectSameElements(forward.outputs[kDlogits], in_place[kDlogits], "dlogits");
  KernelCall backward = c.Backward(forward.outputs[kLse]);
  testing::Run(Kernel(), device_type, &backward);
  ExpectGradient(c, backward.outputs[0]);
  return forward.outputs;
}

}  // namespace fuseboard::cross_entropy
