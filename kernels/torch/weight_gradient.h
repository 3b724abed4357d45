// dW = sum over chunks of dlogits^T @ hidden, without a second tensor of the weight's size unless
// fp32 accumulation asks for one, and without the first before a chunk asks for it.

#ifndef KERNELS_TORCH_WEIGHT_GRADIENT_H_
#define KERNELS_TORCH_WEIGHT_GRADIENT_H_

#include <ATen/core/Tensor.h>

namespace fuseboard::torch_binding {

// Values of the operator's dweight_dtype.
enum WeightGradientDtype : int64_t {
  kWeightGradientByShape = 0,
  kWeightGradientInWeightDtype = 1,
  kWeightGradientInFloat32 = 2
};

// `chunks`: how many chunks the shapes make, ignored rows included. By shape means: in the weight's
// dtype up to kMaxChunksInWeightDtype chunks, beyond in fp32, where one more rounding per chunk
// would show. False for weights that are fp32 themselves, and of a single chunk, which is summed
// within one GEMM.
bool AccumulatesInFloat32(at::ScalarType weight_dtype, int64_t dweight_dtype, int64_t chunks);

class WeightGradient {
 public:
  WeightGradient(const at::Tensor& weight, bool in_float32);

  // dlogits [rows, vocab], hidden [rows, in].
  void Add(const at::Tensor& dlogits, const at::Tensor& hidden);

  // The sum in the weight's dtype, zeros if nothing was added. Ends this object's use.
  at::Tensor Finish();

 private:
  void Allocate();
  void AddInFloat32OnCpu(const at::Tensor& dlogits, const at::Tensor& hidden);

  at::Tensor weight_;
  at::ScalarType sum_dtype_;
  at::Tensor sum_;  // Undefined until there is something to add up.
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_WEIGHT_GRADIENT_H_
