#include "kernels/torch/rope_composite.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "kernels/torch/checks.h"

namespace fuseboard::torch_binding {
namespace {

// The columns of each section from its own stream, side by side.
at::Tensor JoinSections(const at::Tensor& table, const RotaryOptions& options) {
  const int64_t pairs = options.rotary_dim / 2;
  const bool per_pair = table.size(-1) == pairs;
  const int64_t columns_per_pair = !per_pair && options.interleaved ? 2 : 1;
  const int64_t halves = !per_pair && !options.interleaved ? 2 : 1;
  std::vector<at::Tensor> parts;
  for (int64_t half = 0; half < halves; ++half) {
    int64_t begin = half * pairs;
    for (size_t i = 0; i < options.sections.size(); ++i) {
      const int64_t size = options.sections[i] * columns_per_pair;
      parts.push_back(table.select(0, static_cast<int64_t>(i)).narrow(-1, begin, size));
      begin += size;
    }
  }
  return at::cat(parts, -1);
}

at::Tensor PerElement(const at::Tensor& table, const RotaryOptions& options) {
  at::Tensor wide = options.sections.empty() ? table : JoinSections(table, options);
  if (wide.size(-1) != options.rotary_dim) {
    wide = options.interleaved ? wide.repeat_interleave(2, -1) : at::cat({wide, wide}, -1);
  }
  return wide.unsqueeze(-3);
}

}  // namespace

RotaryFactors::RotaryFactors(const at::Tensor& cos, const at::Tensor& sin,
                             const RotaryOptions& options)
    : cos_(PerElement(cos, options)),
      sin_(PerElement(sin, options)),
      rotary_dim_(options.rotary_dim),
      interleaved_(options.interleaved),
      round_products_(options.round_products) {}

// (a, b) of each pair to (-b, a), or to (b, -a).
at::Tensor RotaryFactors::OtherOfPair(const at::Tensor& x, bool inverse) const {
  const int64_t pairs = rotary_dim_ / 2;
  const at::Tensor a = interleaved_ ? x.slice(-1, 0, rotary_dim_, 2) : x.narrow(-1, 0, pairs);
  const at::Tensor b = interleaved_ ? x.slice(-1, 1, rotary_dim_, 2) : x.narrow(-1, pairs, pairs);
  const at::Tensor first = inverse ? b : b.neg();
  const at::Tensor second = inverse ? a.neg() : a;
  return interleaved_ ? at::stack({first, second}, -1).flatten(-2) : at::cat({first, second}, -1);
}

void RotaryFactors::Rotate(const at::Tensor& heads, bool inverse, const at::Tensor& out) const {
  const at::ScalarType promoted = at::promoteTypes(heads.scalar_type(), cos_.scalar_type());
  const at::ScalarType type = round_products_ ? promoted : AccumulationType(promoted);
  const at::Tensor x = heads.narrow(-1, 0, rotary_dim_).to(type);
  const at::Tensor cos = cos_.to(type);
  const at::Tensor sin = sin_.to(type);
  const at::Tensor turned =
      inverse ? OtherOfPair(x.mul(sin), true) : OtherOfPair(x, false).mul(sin);
  out.narrow(-1, 0, rotary_dim_).copy_(x.mul(cos).add_(turned));
  const int64_t rest = heads.size(-1) - rotary_dim_;
  if (rest > 0) out.narrow(-1, rotary_dim_, rest).copy_(heads.narrow(-1, rotary_dim_, rest));
}

}  // namespace fuseboard::torch_binding
