#include "kernels/torch/weight_gradient.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "kernels/torch/device.h"
#include "kernels/torch/fused_linear_cross_entropy_chunks.h"

namespace fuseboard::torch_binding {

bool AccumulatesInFloat32(at::ScalarType weight_dtype, int64_t dweight_dtype, int64_t chunks) {
  if (weight_dtype != at::kBFloat16 && weight_dtype != at::kHalf) return false;  // No gain.
  if (chunks <= 1) return false;  // A GEMM adds up in fp32 and rounds once.
  return dweight_dtype == kWeightGradientInFloat32 ||
         (dweight_dtype == kWeightGradientByShape && chunks > kMaxChunksInWeightDtype);
}

WeightGradient::WeightGradient(const at::Tensor& weight, bool in_float32)
    : weight_(weight), sum_dtype_(in_float32 ? at::kFloat : weight.scalar_type()) {}

void WeightGradient::Allocate() { sum_ = Empty(weight_.sizes(), sum_dtype_, weight_.device()); }

void WeightGradient::Add(const at::Tensor& dlogits, const at::Tensor& hidden) {
  const bool first = !sum_.defined();
  if (first) Allocate();
  const at::Tensor transposed = dlogits.t();
  if (sum_dtype_ == weight_.scalar_type()) {
    if (first) {
      at::mm_out(sum_, transposed, hidden);
    } else {
      sum_.addmm_(transposed, hidden);
    }
  } else if (sum_.is_cpu()) {
    if (first) sum_.zero_();
    AddInFloat32OnCpu(dlogits, hidden);
  } else if (first) {
    at::mm_out(sum_, transposed, hidden, at::kFloat);
  } else {
    at::addmm_out(sum_, sum_, transposed, hidden, at::kFloat);
  }
}

// ATen's CPU GEMM has no mixed dtypes, so the operands are widened, a slice of the vocabulary at a
// time.
void WeightGradient::AddInFloat32OnCpu(const at::Tensor& dlogits, const at::Tensor& hidden) {
  constexpr int64_t kSliceElements = int64_t{4} << 20;  // 16 MiB as fp32
  const at::Tensor wide_hidden = hidden.to(at::kFloat);
  const int64_t vocab = dlogits.size(1);
  const int64_t step = std::max<int64_t>(1, kSliceElements / std::max<int64_t>(1, dlogits.size(0)));
  for (int64_t begin = 0; begin < vocab; begin += step) {
    const int64_t count = std::min(step, vocab - begin);
    sum_.narrow(0, begin, count)
        .addmm_(dlogits.narrow(1, begin, count).to(at::kFloat).t(), wide_hidden);
  }
}

at::Tensor WeightGradient::Finish() {
  if (!sum_.defined()) {
    Allocate();
    sum_.zero_();
  }
  return sum_.to(weight_.scalar_type());
}

}  // namespace fuseboard::torch_binding
