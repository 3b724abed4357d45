#include "kernels/torch/fused_linear_cross_entropy.h"

#include <utility>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/cross_entropy_rows.h"
#include "kernels/torch/device.h"
#include "kernels/torch/row_totals.h"
#include "kernels/torch/supervised_rows.h"

namespace fuseboard::torch_binding {
namespace {

at::Tensor WideClassWeight(const LinearLossInputs& inputs, at::ScalarType dtype) {
  return inputs.class_weight.defined() ? inputs.class_weight.to(dtype).contiguous() : at::Tensor();
}

int64_t ElementBytes(const LinearHead& head) {
  return static_cast<int64_t>(head.hidden.element_size());
}

}  // namespace

LinearLossOutputs LinearLossForward(const LinearLossInputs& inputs) {
  const AutocastOff autocast_off;
  const CrossEntropyOptions& options = inputs.options;
  const c10::Device device = inputs.head.hidden.device();
  const at::ScalarType dtype = AccumulationType(inputs.head.hidden.scalar_type());
  const at::ScalarType statistic = StatisticType(inputs.head.hidden.scalar_type());
  SupervisedRows rows(inputs.target, options.ignore_index);
  const at::Tensor class_weight = WideClassWeight(inputs, dtype);
  at::Tensor inverse;
  if (options.reduction == kReduceMean) {
    inverse = InverseDivisor(inputs.target, class_weight, inputs.divisor, options.ignore_index,
                             dtype, inputs.kernel);
  }
  rows.Wait();

  const int64_t count = rows.count();
  const bool recompute = !HasGradientInForward(inputs.head.hidden.scalar_type(), options.reduction);
  const CrossEntropyRows all{
      .target = rows.Take(inputs.target, 0, count),
      .class_weight = class_weight,
      .scale = inverse.defined() ? inverse.expand({count}) : at::Tensor(),
      .lse = recompute ? Empty({count}, statistic, device) : at::Tensor(),
      .entropy = inputs.need_entropy ? Empty({count}, statistic, device) : at::Tensor(),
      .loss = Empty({count}, dtype, device),
      .z_loss = options.z_loss_scale > 0 ? Empty({count}, dtype, device) : at::Tensor()};
  ChunkedHead head(inputs.head, rows, ElementBytes(inputs.head));
  const char* reason =
      head.ForEach([&](const at::Tensor& logits, int64_t begin, int64_t chunk_rows) {
        CrossEntropyRows chunk = Slice(all, begin, chunk_rows);
        chunk.logits = logits;
        if (inputs.head.needs_gradient() && !recompute) chunk.dlogits = logits;
        const char* why = CrossEntropyForward(chunk, options, inputs.kernel);
        if (!inputs.head.needs_gradient() || !recompute) return why;
        // In a pass of its own: the values have the same bits then without a gradient.
        CrossEntropyRows gradient = {.logits = logits,
                                     .target = chunk.target,
                                     .class_weight = chunk.class_weight,
                                     .lse = chunk.lse,
                                     .dlogits = logits};
        const char* why_gradient = CrossEntropyBackward(gradient, options, inputs.kernel);
        return why != nullptr ? why : why_gradient;
      });
  Counters::Instance().Add(inputs.operation, reason);

  const int64_t num_rows = inputs.head.hidden.size(0);
  const auto spread = [&](const at::Tensor& values) {
    return options.reduction == kReduceNone && values.defined() ? Spread(values, rows, num_rows)
                                                                : values;
  };
  RowTotals totals =
      Reduce(spread(all.loss), spread(all.z_loss), inverse, options.reduction, inputs.kernel);
  const bool defer = inputs.head.defer;
  return {.loss = std::move(totals.loss),
          .z_loss = std::move(totals.z_loss),
          .lse = recompute ? Spread(all.lse, rows, num_rows) : at::Tensor(),
          .entropy = inputs.need_entropy ? Spread(all.entropy, rows, num_rows) : at::Tensor(),
          .inverse_divisor = inverse,
          .logits = inputs.keep_logits ? head.TakeLogits() : at::Tensor(),
          .gradients = defer ? LinearHeadGradients{} : head.Finish(),
          .deferred = defer ? head.TakeDeferred() : DeferredHead{}};
}

LinearHeadGradients LinearLossBackward(const LinearLossInputs& inputs,
                                       const LinearLossRows& known) {
  const AutocastOff autocast_off;
  const at::ScalarType dtype = AccumulationType(inputs.head.hidden.scalar_type());
  SupervisedRows rows(inputs.target, inputs.options.ignore_index);
  rows.Wait();
  const int64_t count = rows.count();
  const auto take = [&](const at::Tensor& values) {
    return values.defined() ? rows.Take(values, 0, count) : values;
  };
  const CrossEntropyRows all{.target = take(inputs.target),
                             .class_weight = WideClassWeight(inputs, dtype),
                             .scale = take(known.scale),
                             .lse = take(known.lse),
                             .entropy = take(known.entropy),
                             .dentropy = take(known.dentropy)};
  std::optional<LastChunk> last;
  if (known.last_first && count > 0) {
    const ChunkPlan plan = PlanChunks(count, inputs.head.weight.size(0), ElementBytes(inputs.head),
                                      inputs.head.chunk_bytes);
    last = LastChunk{.begin = (plan.chunks - 1) * plan.rows, .logits = known.logits};
  }
  ChunkedHead head(inputs.head, rows, ElementBytes(inputs.head), last);
  const char* reason =
      head.ForEach([&](const at::Tensor& logits, int64_t begin, int64_t chunk_rows) {
        CrossEntropyRows chunk = Slice(all, begin, chunk_rows);
        chunk.logits = logits;
        chunk.dlogits = logits;
        return CrossEntropyBackward(chunk, inputs.options, inputs.kernel);
      });
  Counters::Instance().Add(inputs.operation, reason);
  return head.Finish();
}

}  // namespace fuseboard::torch_binding
