// The three matrix products of a linear layer with a vocabulary, whatever number of classes that
// has.
//
// On CUDA the last classes of a vocabulary that is no multiple of 16 bytes are products of their
// own: with one class too many, cuBLAS leaves its fast kernels, for all of them.

#ifndef KERNELS_TORCH_HEAD_PRODUCTS_H_
#define KERNELS_TORCH_HEAD_PRODUCTS_H_

#include <ATen/core/Tensor.h>

namespace fuseboard::torch_binding {

// logits [rows, vocab] = hidden [rows, in] @ weight [vocab, in].T + bias [vocab], or undefined. The
// logits' rows may be further apart than they are long, as everywhere here.
void LogitsInto(const at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight,
                const at::Tensor& bias);

// dhidden [rows, in] = dlogits [rows, vocab] @ weight.
void HiddenGradientInto(const at::Tensor& dhidden, const at::Tensor& dlogits,
                        const at::Tensor& weight);

// dweight [vocab, in] = dlogits.T @ hidden, or += that. dweight is of their dtype, or on CUDA fp32.
void WeightGradientInto(const at::Tensor& dweight, const at::Tensor& dlogits,
                        const at::Tensor& hidden, bool add);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_HEAD_PRODUCTS_H_
