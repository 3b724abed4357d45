#include "kernels/torch/linear_head.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/torch/autocast_off.h"
#include "kernels/torch/checks.h"
#include "kernels/torch/device.h"
#include "kernels/torch/scale_gradients.h"

namespace fuseboard::torch_binding {
void CheckLinearHead(const char* operation, const LinearHead& head, const char* prefix) {
  const at::Tensor& hidden = head.hidden;
  const at::Tensor& weight = head.weight;
  const std::string hidden_name = std::string(prefix) + "hidden";
  const std::string weight_name = std::string(prefix) + "weight";
  const std::string bias_name = std::string(prefix) + "bias";
  const auto same_type = [&](const std::string& name, const at::Tensor& tensor) {
    TORCH_CHECK(tensor.scalar_type() == hidden.scalar_type(), operation, ": ", hidden_name,
                " has dtype ", hidden.scalar_type(), " but ", name, " has dtype ",
                tensor.scalar_type());
    CheckSameDevice(operation, hidden_name.c_str(), hidden, name.c_str(), tensor);
  };
  CheckFloating(operation, hidden_name.c_str(), hidden);
  CheckDim(operation, hidden_name.c_str(), hidden, 2);
  CheckDim(operation, weight_name.c_str(), weight, 2);
  CheckSize(operation, (weight_name + ".size(1)").c_str(), weight.sym_size(1),
            (hidden_name + ".size(1)").c_str(), hidden.sym_size(1));
  same_type(weight_name, weight);
  if (head.bias.defined()) {
    CheckDim(operation, bias_name.c_str(), head.bias, 1);
    CheckSize(operation, (bias_name + ".size(0)").c_str(), head.bias.sym_size(0),
              (weight_name + ".size(0)").c_str(), weight.sym_size(0));
    same_type(bias_name, head.bias);
  }
  TORCH_CHECK(head.dweight_dtype >= kWeightGradientByShape &&
                  head.dweight_dtype <= kWeightGradientInFloat32,
              operation, ": dweight_dtype is ", head.dweight_dtype,
              ", want 0 (by shape), 1 (the weight's) or 2 (fp32)");
  TORCH_CHECK(head.chunk_bytes >= 0, operation, ": chunk_bytes is ", head.chunk_bytes,
              ", want 0 (the default) or more");
}

LinearHeadResult ToResult(const LinearHeadGradients& gradients, const at::Tensor& hidden) {
  const auto or_none = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor : Empty({0}, hidden.scalar_type(), hidden.device());
  };
  return {or_none(gradients.dhidden), or_none(gradients.dweight), or_none(gradients.dbias)};
}

LinearHeadResult MetaResult(const LinearHead& head) {
  const auto like = [&](bool needed, const at::Tensor& tensor) {
    return needed ? at::empty_symint(tensor.sym_sizes(), tensor.options())
                  : at::empty({0}, head.hidden.options());
  };
  return {like(head.need_dhidden, head.hidden), like(head.need_dweight, head.weight),
          like(head.need_dbias, head.bias)};
}

bool DefersGradients(const LinearHead& head, int64_t row_bytes_per_class) {
  return head.needs_gradient() &&
         PlanChunks(head.hidden.size(0), head.weight.size(0), row_bytes_per_class, head.chunk_bytes)
                 .chunks == 1;
}

LinearHeadGradients HeadGradientsOf(const LinearHead& head, const DeferredHead& kept,
                                    const DeferredScale& scale) {
  const AutocastOff autocast_off;
  const at::Tensor& dlogits = kept.dlogits;
  LinearHeadGradients gradients;
  if (head.need_dhidden) {
    std::vector<at::Tensor> rows = {at::mm(dlogits, head.weight)};
    ScaleGradients(rows, scale.upstream, /*in_place=*/true, scale.kernel);
    if (kept.index.defined()) {
      gradients.dhidden = at::zeros(head.hidden.sizes(), head.hidden.options());
      gradients.dhidden.index_copy_(0, kept.index, rows[0]);
    } else {
      gradients.dhidden = std::move(rows[0]);
    }
  }
  if (head.need_dweight) {
    // Rather than dweight, which is larger, and would be rounded twice.
    const at::Tensor& hidden = kept.hidden.defined() ? kept.hidden : head.hidden;
    gradients.dweight = at::mm(dlogits.t(), Scaled(hidden, scale.upstream));
  }
  if (head.need_dbias) {
    const at::ScalarType wide = AccumulationType(dlogits.scalar_type());
    gradients.dbias = at::sum(dlogits, {0}, /*keepdim=*/false, wide)
                          .mul_(scale.upstream)
                          .to(head.bias.scalar_type());
  }
  return gradients;
}

bool KeepsLastChunk(const LinearHead& head) {
  const auto element_bytes = static_cast<int64_t>(head.hidden.element_size());
  const ChunkPlan plan =
      PlanChunks(head.hidden.size(0), head.weight.size(0), element_bytes, head.chunk_bytes);
  return !head.need_dweight ||
         !AccumulatesInFloat32(head.weight.scalar_type(), head.dweight_dtype, plan.chunks);
}

at::Tensor LinearLogits(const at::Tensor& buffer, const at::Tensor& hidden,
                        const at::Tensor& weight, const at::Tensor& bias) {
  at::Tensor logits = buffer.narrow(0, 0, hidden.size(0)).narrow(1, 0, weight.size(0));
  if (bias.defined()) {
    at::addmm_out(logits, bias, hidden, weight.t());
  } else {
    at::mm_out(logits, hidden, weight.t());
  }
  return logits;
}

ChunkedHead::ChunkedHead(const LinearHead& head, const SupervisedRows& rows,
                         int64_t row_bytes_per_class, std::optional<LastChunk> last)
    : head_(head), rows_(rows), last_(last.value_or(LastChunk{.begin = rows.count()})) {
  const at::Tensor& hidden = head.hidden;
  const at::Tensor& weight = head.weight;
  const int64_t vocab = weight.size(0);
  const auto plan = [&](int64_t num_rows, int64_t bytes) {
    return PlanChunks(num_rows, vocab, row_bytes_per_class, bytes);
  };
  int64_t bytes = head.chunk_bytes;
  if (head.need_dweight && !head.defer) {
    // Of all rows, ignored or not, so that ranks decide alike.
    bool in_float32 = AccumulatesInFloat32(weight.scalar_type(), head.dweight_dtype,
                                           plan(hidden.size(0), bytes).chunks);
    // The buffer is freed before the rounded copy of an fp32 sum is made, so one of the copy's size
    // does not raise the peak, and each chunk less is one reading and writing less of the sum.
    if (in_float32 && bytes == 0) {
      bytes = std::max(kDefaultChunkBytes, static_cast<int64_t>(weight.nbytes()));
      in_float32 = plan(hidden.size(0), bytes).chunks > 1;
    }
    dweight_.emplace(weight, in_float32);
  }
  plan_ = plan(last_.begin, bytes);
  // A kept chunk has room for each one before it, as its pass cut them alike.
  if (last_.logits.defined() && last_.logits.size(0) >= plan_.rows) {
    buffer_ = last_.logits;
  } else {
    const int64_t most = std::max(plan_.rows, rows.count() - last_.begin);
    buffer_ = Empty({most, plan_.row_step}, hidden.scalar_type(), hidden.device());
  }
  if (head.defer) return;
  if (head.need_dhidden) {
    dhidden_ = rows.all() ? Empty(hidden.sizes(), hidden.scalar_type(), hidden.device())
                          : at::zeros(hidden.sizes(), hidden.options());
  }
  if (head.need_dbias) {
    dbias_ = at::zeros({vocab}, hidden.options().dtype(AccumulationType(hidden.scalar_type())));
  }
}

void ChunkedHead::Accumulate(const at::Tensor& dlogits, const at::Tensor& hidden, int64_t begin) {
  if (head_.defer) {
    deferred_.dlogits = dlogits;
    const at::Tensor rows = rows_.WithoutIgnored(hidden, begin);
    const bool is_hidden = rows_.all() && rows.is_same(hidden);
    deferred_.hidden = is_hidden ? at::Tensor() : rows;
    return;
  }
  if (dhidden_.defined() && rows_.all()) {
    at::Tensor out = dhidden_.narrow(0, begin, dlogits.size(0));
    at::mm_out(out, dlogits, head_.weight);
  } else if (dhidden_.defined()) {
    rows_.Put(dhidden_, begin, at::mm(dlogits, head_.weight));
  }
  if (dweight_.has_value()) dweight_->Add(dlogits, rows_.WithoutIgnored(hidden, begin));
  if (dbias_.defined()) {
    dbias_.add_(at::sum(dlogits, {0}, /*keepdim=*/false, dbias_.scalar_type()));
  }
}

DeferredHead ChunkedHead::TakeDeferred() {
  if (!deferred_.dlogits.defined()) {  // No row counts.
    deferred_.dlogits = ChunkOf(buffer_, 0);
    deferred_.hidden = head_.hidden.narrow(0, 0, 0);
  }
  deferred_.index = rows_.index();
  return std::move(deferred_);
}

LinearHeadGradients ChunkedHead::Finish() {
  buffer_.reset();  // Before fp32 accumulation makes its rounded copy.
  last_.logits.reset();
  return {.dhidden = dhidden_,
          .dweight = dweight_.has_value() ? dweight_->Finish() : at::Tensor(),
          .dbias = dbias_.defined() ? dbias_.to(head_.bias.scalar_type()) : at::Tensor()};
}

at::Tensor Spread(const at::Tensor& values, const SupervisedRows& rows, int64_t num_rows) {
  if (rows.all()) return values;
  at::Tensor full = at::zeros({num_rows}, values.options());
  if (rows.count() > 0) rows.Put(full, 0, values);
  return full;
}

}  // namespace fuseboard::torch_binding
