// The linear layer below a loss of [rows, vocab] logits, chunk after chunk: its logits, and what
// becomes of their gradient. What fused_linear_cross_entropy and the other linear losses share.
//
//   for each chunk of supervised rows:
//     logits  = hidden @ weight.T + bias      one buffer, reused, in the dtype of the GEMM
//     ...     the loss turns them into dlogits, in place
//     dhidden = dlogits @ weight              straight into place
//     dweight += dlogits.T @ hidden
//     dbias   += column sums                  in fp32
//
// Nothing of [rows, vocab] exists. Gradients of ignored rows are exact zeros. Two runs are
// bit-equal.

#ifndef KERNELS_TORCH_LINEAR_HEAD_H_
#define KERNELS_TORCH_LINEAR_HEAD_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels/torch/fused_linear_cross_entropy_chunks.h"
#include "kernels/torch/supervised_rows.h"
#include "kernels/torch/weight_gradient.h"

namespace fuseboard::torch_binding {

struct LinearHead {
  at::Tensor hidden;  // [rows, in]
  at::Tensor weight;  // [vocab, in], dtype of hidden
  at::Tensor bias;    // [vocab], dtype of hidden, or undefined
  int64_t dweight_dtype = kWeightGradientByShape;
  int64_t chunk_bytes = 0;
  bool need_dhidden = false;
  bool need_dweight = false;
  bool need_dbias = false;
  // Keep the gradient of the logits, and leave it to HeadGradientsOf to make those. Of one chunk.
  bool defer = false;

  [[nodiscard]] bool needs_gradient() const { return need_dhidden || need_dweight || need_dbias; }
};

struct LinearHeadGradients {
  at::Tensor dhidden;  // Each undefined if not needed.
  at::Tensor dweight;
  at::Tensor dbias;
};

// What a forward keeps of its only chunk for HeadGradientsOf.
struct DeferredHead {
  at::Tensor dlogits;  // [supervised rows, vocab]
  at::Tensor hidden;   // Those rows of hidden; undefined: it is hidden itself.
  at::Tensor index;    // The numbers of those rows; undefined: all.
};

// Whether the gradients of a loss that is known but for its upstream gradient are left to the
// backward: where all rows are one chunk. The products are the same, and the upstream gradient
// multiplies hidden instead of dweight. By shapes alone. `row_bytes_per_class` as of ChunkedHead.
bool DefersGradients(const LinearHead& head, int64_t row_bytes_per_class);

// What such a backward knows beside the head, of which hidden, weight, bias and what it needs are
// read.
struct DeferredScale {
  at::Tensor upstream;  // 0-dim.
  int64_t kernel;       // Of the library whose `rescale` entry is used, or kNoKernel.
};

// Their gradients. A factor of 1 changes no bit.
LinearHeadGradients HeadGradientsOf(const LinearHead& head, const DeferredHead& kept,
                                    const DeferredScale& scale);

// Whether the last chunk of a forward is kept for the backward, which then takes it first: not
// where dweight is added up in fp32, whose larger chunks are others. By shapes alone.
bool KeepsLastChunk(const LinearHead& head);

// dhidden, dweight, dbias as the operators return them: [0] if not needed.
using LinearHeadResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
LinearHeadResult ToResult(const LinearHeadGradients& gradients, const at::Tensor& hidden);
LinearHeadResult MetaResult(const LinearHead& head);

// Errors: c10::Error naming `operation`, the field behind `prefix` ("hidden", "student_hidden") and
// both values.
void CheckLinearHead(const char* operation, const LinearHead& head, const char* prefix = "");

// hidden @ weight.T + bias in the first rows of `buffer`, of which it is a view.
at::Tensor LinearLogits(const at::Tensor& buffer, const at::Tensor& hidden,
                        const at::Tensor& weight, const at::Tensor& bias);

// The last chunk of a pass without gradients, for a pass over the same rows that makes them: it
// takes that chunk first, and need not make its logits again.
struct LastChunk {
  int64_t begin;        // The supervised row that it begins with.
  at::Tensor logits{};  // What TakeLogits gave, to be overwritten; undefined: to be made again.
};

class ChunkedHead {
 public:
  // `row_bytes_per_class`: what one logit of a chunk's budget counts as; more than an element where
  // a loss keeps a second buffer. REQUIRES: hidden's device is current; both outlive this.
  ChunkedHead(const LinearHead& head, const SupervisedRows& rows, int64_t row_bytes_per_class,
              std::optional<LastChunk> last = std::nullopt);

  const ChunkPlan& plan() const { return plan_; }

  // Calls fn(logits, begin, count) for each chunk, which counts supervised rows. `fn` turns the
  // logits into their gradient in place if any gradient is needed, and returns null if a kernel
  // library did the work, else why not. Returns the first reason.
  template <typename Fn>
  const char* ForEach(Fn fn) {
    const char* first_reason = nullptr;
    const auto one = [&](int64_t begin, int64_t count, const at::Tensor& known_logits) {
      const at::Tensor hidden = rows_.Take(head_.hidden, begin, count);
      const at::Tensor logits = known_logits.defined()
                                    ? ChunkOf(known_logits, count)
                                    : LinearLogits(buffer_, hidden, head_.weight, head_.bias);
      const char* reason = fn(logits, begin, count);
      if (first_reason == nullptr) first_reason = reason;
      Accumulate(logits, hidden, begin);
    };
    if (last_.begin < rows_.count()) one(last_.begin, rows_.count() - last_.begin, last_.logits);
    for (int64_t begin = 0; begin < last_.begin; begin += plan_.rows) {
      one(begin, std::min(plan_.rows, last_.begin - begin), {});
    }
    return first_reason;
  }

  // What a deferring head made. Ends this object's use.
  DeferredHead TakeDeferred();

  // The last chunk's logits, if `fn` left them as they were.
  at::Tensor TakeLogits() { return std::move(buffer_); }

  // Ends this object's use.
  LinearHeadGradients Finish();

 private:
  [[nodiscard]] at::Tensor ChunkOf(const at::Tensor& buffer, int64_t count) const {
    return buffer.narrow(0, 0, count).narrow(1, 0, head_.weight.size(0));
  }
  void Accumulate(const at::Tensor& dlogits, const at::Tensor& hidden, int64_t begin);

  const LinearHead& head_;
  const SupervisedRows& rows_;
  LastChunk last_;
  ChunkPlan plan_;
  at::Tensor buffer_;
  at::Tensor dhidden_;
  std::optional<WeightGradient> dweight_;
  at::Tensor dbias_;
  DeferredHead deferred_;
};

// Values of supervised rows as values of all rows; 0 for the others.
at::Tensor Spread(const at::Tensor& values, const SupervisedRows& rows, int64_t num_rows);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_LINEAR_HEAD_H_
