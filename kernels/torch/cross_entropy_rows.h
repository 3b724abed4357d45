// Cross entropy of rows of logits, by a kernel library or by ATen: the one piece that cross_entropy
// and every chunk of the linear losses share.

#ifndef KERNELS_TORCH_CROSS_ENTROPY_ROWS_H_
#define KERNELS_TORCH_CROSS_ENTROPY_ROWS_H_

#include <ATen/core/Tensor.h>

#include "kernels/torch/cross_entropy_options.h"

namespace fuseboard::torch_binding {

// What one call reads and writes. An undefined tensor is absent or not wanted. Row results have the
// accumulation type of logits and stride 1.
struct CrossEntropyRows {
  at::Tensor logits{};        // [rows, vocab]
  at::Tensor target{};        // [rows]
  at::Tensor class_weight{};  // [vocab], accumulation type, or undefined
  at::Tensor scale{};         // [rows], any stride, or undefined: 1. Multiplies dlogits.
  at::Tensor lse{};           // [rows]: written by a forward if defined, read by a backward
  at::Tensor entropy{};       // [rows], of softmax(z): likewise; a forward needs lse for it
  at::Tensor dentropy{};      // backward only, [rows]: its upstream gradient
  at::Tensor loss{};          // forward only
  at::Tensor z_loss{};        // forward only
  at::Tensor dlogits{};       // may be `logits` itself
};

// Rows [begin, begin + count) of every tensor that has rows.
CrossEntropyRows Slice(const CrossEntropyRows& rows, int64_t begin, int64_t count);

// Both return null if `kernel` did the work, else why the composite did it.
const char* CrossEntropyForward(const CrossEntropyRows& rows, const CrossEntropyOptions& options,
                                int64_t kernel);
const char* CrossEntropyBackward(const CrossEntropyRows& rows, const CrossEntropyOptions& options,
                                 int64_t kernel);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_CROSS_ENTROPY_ROWS_H_
