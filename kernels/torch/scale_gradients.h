// Multiplies gradients that a forward made by the upstream gradient that the backward learns.

#ifndef KERNELS_TORCH_SCALE_GRADIENTS_H_
#define KERNELS_TORCH_SCALE_GRADIENTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace fuseboard::torch_binding {

// Whether a tracer watches: then ScaleGradients is an operator without side effects, which reads
// and writes every tensor even if `factor` is 1.
bool IsTraced(const at::Tensor& tensor);

// `tensor` times `factor`, 0-dim, in fp32 with one rounding.
at::Tensor Scaled(const at::Tensor& tensor, const at::Tensor& factor);

// Multiplies each tensor by `factor`, 0-dim, in fp32 with one rounding; a factor of 1 changes no
// bit. On CUDA `factor` is never looked at on the host. With `in_place` the tensors' own memory is
// written where it can be; otherwise `tensors` are replaced.
//
// On CUDA, in place: one launch per tensor of the `rescale` entry of the library `kernel`, of a
// large tensor after a fill of 4 bytes, which writes nothing if the factor is 1; without such an
// entry, ATen's multiplication.
void ScaleGradients(std::vector<at::Tensor>& tensors, const at::Tensor& factor, bool in_place,
                    int64_t kernel);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_SCALE_GRADIENTS_H_
