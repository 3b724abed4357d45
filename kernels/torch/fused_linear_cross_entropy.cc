#include "kernels/torch/fused_linear_cross_entropy.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/counters.h"
#include "kernels/torch/cross_entropy_rows.h"
#include "kernels/torch/cross_entropy_targets.h"
#include "kernels/torch/device.h"
#include "kernels/torch/fused_linear_cross_entropy_chunks.h"
#include "kernels/torch/supervised_rows.h"
#include "kernels/torch/weight_gradient.h"

namespace fuseboard::torch_binding {
namespace {

// Chunk after chunk: its logits, and what becomes of their gradient.
class ChunkedHead {
 public:
  ChunkedHead(const LinearLossInputs& inputs, const SupervisedRows& rows)
      : inputs_(inputs), rows_(rows) {
    const at::Tensor& hidden = inputs.hidden;
    const int64_t vocab = inputs.weight.size(0);
    const auto element_bytes = static_cast<int64_t>(hidden.element_size());
    plan_ = PlanChunks(rows.count(), vocab, element_bytes, inputs.chunk_bytes);
    buffer_ = Empty({plan_.rows, plan_.row_step}, hidden.scalar_type(), hidden.device());
    if (inputs.need_dhidden) {
      dhidden_ = rows.all() ? Empty(hidden.sizes(), hidden.scalar_type(), hidden.device())
                            : at::zeros(hidden.sizes(), hidden.options());
    }
    if (inputs.need_dweight) {
      // Of all rows, ignored or not, so that ranks decide alike.
      const int64_t chunks =
          PlanChunks(hidden.size(0), vocab, element_bytes, inputs.chunk_bytes).chunks;
      dweight_.emplace(inputs.weight, inputs.dweight_dtype, chunks);
    }
    if (inputs.need_dbias) {
      dbias_ = at::zeros({vocab}, hidden.options().dtype(AccumulationType(hidden.scalar_type())));
    }
  }

  // Calls fn(logits, begin, count) for each chunk, which counts supervised rows. `fn` turns the
  // logits into their gradient in place if any gradient is needed, and returns as
  // CrossEntropyForward does.
  template <typename Fn>
  void ForEach(Fn fn) {
    const char* first_reason = nullptr;
    for (int64_t begin = 0; begin < rows_.count(); begin += plan_.rows) {
      const int64_t count = std::min(plan_.rows, rows_.count() - begin);
      const at::Tensor hidden = rows_.Take(inputs_.hidden, begin, count);
      const at::Tensor logits = Logits(hidden);
      const char* reason = fn(logits, begin, count);
      if (first_reason == nullptr) first_reason = reason;
      Accumulate(logits, hidden, begin);
    }
    Counters::Instance().Add(Operation::kFusedLinearCrossEntropy, first_reason);
  }

  LinearLossGradients Finish() {
    buffer_.reset();  // Before fp32 accumulation makes its rounded copy.
    return {.dhidden = dhidden_,
            .dweight = dweight_.has_value() ? dweight_->Finish() : at::Tensor(),
            .dbias = dbias_.defined() ? dbias_.to(inputs_.bias.scalar_type()) : at::Tensor()};
  }

 private:
  at::Tensor Logits(const at::Tensor& hidden) {
    at::Tensor logits = buffer_.narrow(0, 0, hidden.size(0)).narrow(1, 0, inputs_.weight.size(0));
    if (inputs_.bias.defined()) {
      at::addmm_out(logits, inputs_.bias, hidden, inputs_.weight.t());
    } else {
      at::mm_out(logits, hidden, inputs_.weight.t());
    }
    return logits;
  }

  void Accumulate(const at::Tensor& dlogits, const at::Tensor& hidden, int64_t begin) {
    if (dhidden_.defined() && rows_.all()) {
      at::Tensor out = dhidden_.narrow(0, begin, dlogits.size(0));
      at::mm_out(out, dlogits, inputs_.weight);
    } else if (dhidden_.defined()) {
      rows_.Put(dhidden_, begin, at::mm(dlogits, inputs_.weight));
    }
    if (dweight_.has_value()) dweight_->Add(dlogits, hidden);
    if (dbias_.defined()) {
      dbias_.add_(at::sum(dlogits, {0}, /*keepdim=*/false, dbias_.scalar_type()));
    }
  }

  const LinearLossInputs& inputs_;
  const SupervisedRows& rows_;
  ChunkPlan plan_;
  at::Tensor buffer_;
  at::Tensor dhidden_;
  std::optional<WeightGradient> dweight_;
  at::Tensor dbias_;
};

bool NeedsGradient(const LinearLossInputs& inputs) {
  return inputs.need_dhidden || inputs.need_dweight || inputs.need_dbias;
}

at::Tensor WideClassWeight(const LinearLossInputs& inputs, at::ScalarType dtype) {
  return inputs.class_weight.defined() ? inputs.class_weight.to(dtype).contiguous() : at::Tensor();
}

// Values of supervised rows as values of all rows.
at::Tensor Spread(const at::Tensor& values, const SupervisedRows& rows, int64_t num_rows) {
  if (rows.all()) return values;
  at::Tensor full = at::zeros({num_rows}, values.options());
  if (rows.count() > 0) rows.Put(full, 0, values);
  return full;
}

}  // namespace

LinearLossOutputs LinearLossForward(const LinearLossInputs& inputs) {
  const AutocastOff autocast_off;
  const CrossEntropyOptions& options = inputs.options;
  const c10::Device device = inputs.hidden.device();
  const at::ScalarType dtype = AccumulationType(inputs.hidden.scalar_type());
  SupervisedRows rows(inputs.target, options.ignore_index);
  const at::Tensor class_weight = WideClassWeight(inputs, dtype);
  at::Tensor inverse;
  if (options.reduction == kReduceMean) {
    inverse =
        InverseDivisor(inputs.target, class_weight, inputs.divisor, options.ignore_index, dtype);
  }
  rows.Wait();

  const int64_t count = rows.count();
  const bool recompute = !HasGradientInForward(inputs.hidden.scalar_type(), options.reduction);
  const CrossEntropyRows all{
      .target = rows.Take(inputs.target, 0, count),
      .class_weight = class_weight,
      .scale = inverse.defined() ? inverse.expand({count}) : at::Tensor(),
      .lse = recompute ? Empty({count}, dtype, device) : at::Tensor(),
      .loss = Empty({count}, dtype, device),
      .z_loss = options.z_loss_scale > 0 ? Empty({count}, dtype, device) : at::Tensor()};
  ChunkedHead head(inputs, rows);
  head.ForEach([&](const at::Tensor& logits, int64_t begin, int64_t chunk_rows) {
    CrossEntropyRows chunk = Slice(all, begin, chunk_rows);
    chunk.logits = logits;
    if (NeedsGradient(inputs)) chunk.dlogits = logits;
    return CrossEntropyForward(chunk, options, inputs.kernel);
  });

  const int64_t num_rows = inputs.hidden.size(0);
  const auto reduce = [&](const at::Tensor& values) {
    return options.reduction == kReduceNone ? Spread(values, rows, num_rows)
                                            : Reduce(values, inverse, options.reduction);
  };
  LinearLossOutputs outputs{.loss = reduce(all.loss),
                            .z_loss = {},
                            .lse = recompute ? Spread(all.lse, rows, num_rows) : at::Tensor(),
                            .inverse_divisor = inverse,
                            .gradients = head.Finish()};
  outputs.z_loss = all.z_loss.defined() ? reduce(all.z_loss)
                                        : at::zeros(outputs.loss.sizes(), outputs.loss.options());
  return outputs;
}

LinearLossGradients LinearLossBackward(const LinearLossInputs& inputs, const at::Tensor& row_scale,
                                       const at::Tensor& lse) {
  const AutocastOff autocast_off;
  const at::ScalarType dtype = AccumulationType(inputs.hidden.scalar_type());
  SupervisedRows rows(inputs.target, inputs.options.ignore_index);
  rows.Wait();
  const int64_t count = rows.count();
  const CrossEntropyRows all{.target = rows.Take(inputs.target, 0, count),
                             .class_weight = WideClassWeight(inputs, dtype),
                             .scale = rows.Take(row_scale, 0, count),
                             .lse = rows.Take(lse, 0, count)};
  ChunkedHead head(inputs, rows);
  head.ForEach([&](const at::Tensor& logits, int64_t begin, int64_t chunk_rows) {
    CrossEntropyRows chunk = Slice(all, begin, chunk_rows);
    chunk.logits = logits;
    chunk.dlogits = logits;
    return CrossEntropyBackward(chunk, inputs.options, inputs.kernel);
  });
  return head.Finish();
}

}  // namespace fuseboard::torch_binding
