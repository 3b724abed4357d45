#include "kernels/torch/group_norm_composite.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <array>

#include "kernels/torch/checks.h"

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

int64_t ElementsOf(const Tensor& x) { return c10::multiply_integers(x.sizes().slice(2)); }

// [examples, groups, channels of a group, elements], in the dtype of sums.
Tensor WideGroups(const Tensor& tensor, const Tensor& x, int64_t groups) {
  return tensor.to(AccumulationType(x.scalar_type()))
      .reshape({x.size(0), groups, x.size(1) / groups, ElementsOf(x)});
}

// [groups, channels of a group, 1], which fits every element of WideGroups.
Tensor PerChannel(const Tensor& parameter, const Tensor& wide) {
  return parameter.to(wide.scalar_type()).reshape({wide.size(1), wide.size(2), 1});
}

constexpr std::array<int64_t, 2> kOfGroup = {2, 3};
constexpr std::array<int64_t, 2> kExamplesAndElements = {0, 3};

Tensor MeanOfGroups(const Tensor& wide) { return wide.mean(kOfGroup, /*keepdim=*/true); }

// [examples, groups] as it fits every element of WideGroups.
Tensor PerGroup(const Tensor& statistic) { return statistic.unsqueeze(-1).unsqueeze(-1); }

Tensor NotNeeded(const Tensor& x) { return at::empty({0}, x.options()); }

// Over examples and elements.
Tensor SumOfChannels(const Tensor& wide, const Tensor& parameter) {
  return wide.sum(kExamplesAndElements).reshape({-1}).to(parameter.scalar_type());
}

}  // namespace

GroupNormResult GroupNormComposite(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                                   const OptionalTensor& bias, double eps) {
  const Tensor wide = WideGroups(x, x, groups);
  const Tensor mean = MeanOfGroups(wide);
  const Tensor centred = wide.sub(mean);
  const Tensor rstd = MeanOfGroups(centred.square()).add(eps).rsqrt();
  Tensor y = centred.mul(rstd);
  if (weight.has_value()) y = y.mul(PerChannel(*weight, y));
  if (bias.has_value()) y = y.add(PerChannel(*bias, y));
  const std::array<int64_t, 2> per_group = {x.size(0), groups};
  return {y.to(x.scalar_type()).reshape(x.sizes()).contiguous(), mean.reshape(per_group),
          rstd.reshape(per_group)};
}

GroupNormGradients GroupNormBackwardComposite(const Tensor& dy, const Tensor& x, int64_t groups,
                                              const OptionalTensor& weight,
                                              const OptionalTensor& bias, const Tensor& mean,
                                              const Tensor& rstd, const GroupNormNeeds& needs) {
  const Tensor r = PerGroup(rstd);
  const Tensor normed = WideGroups(x, x, groups).sub(PerGroup(mean)).mul(r);
  const Tensor grad = WideGroups(dy, x, groups);
  GroupNormGradients result = {NotNeeded(x), NotNeeded(x), NotNeeded(x)};
  if (needs.dx) {
    const Tensor g = weight.has_value() ? grad.mul(PerChannel(*weight, grad)) : grad;
    std::get<0>(result) = g.sub(MeanOfGroups(g))
                              .sub(normed.mul(MeanOfGroups(g.mul(normed))))
                              .mul(r)
                              .to(x.scalar_type())
                              .reshape(x.sizes())
                              .contiguous();
  }
  if (needs.dweight) std::get<1>(result) = SumOfChannels(grad.mul(normed), *weight);
  if (needs.dbias) std::get<2>(result) = SumOfChannels(grad, *bias);
  return result;
}

}  // namespace fuseboard::torch_binding
