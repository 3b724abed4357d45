#include "kernels/torch/head_products.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace fuseboard::torch_binding {
namespace {

using at::Tensor;

// How many classes go together; the rest, of less than 16 bytes, apart. All, if there is no rest.
int64_t EvenClasses(const Tensor& logits) {
  const int64_t vocab = logits.size(1);
  if (!logits.is_cuda()) return vocab;
  const int64_t lanes = 16 / static_cast<int64_t>(logits.element_size());
  return vocab < lanes ? vocab : vocab / lanes * lanes;
}

void AddProduct(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  Tensor target = out;
  if (out.scalar_type() == a.scalar_type()) {
    add ? at::addmm_out(target, target, a, b) : at::mm_out(target, a, b);
  } else {
    add ? at::addmm_out(target, target, a, b, out.scalar_type())
        : at::mm_out(target, a, b, out.scalar_type());
  }
}

}  // namespace

void LogitsInto(const Tensor& logits, const Tensor& hidden, const Tensor& weight,
                const Tensor& bias) {
  const auto some = [&](int64_t begin, int64_t count) {
    Tensor out = logits.narrow(1, begin, count);
    const Tensor head = weight.narrow(0, begin, count).t();
    if (bias.defined()) {
      at::addmm_out(out, bias.narrow(0, begin, count), hidden, head);
    } else {
      at::mm_out(out, hidden, head);
    }
  };
  const int64_t vocab = logits.size(1);
  const int64_t even = EvenClasses(logits);
  some(0, even);
  if (even < vocab) some(even, vocab - even);
}

void HiddenGradientInto(const Tensor& dhidden, const Tensor& dlogits, const Tensor& weight) {
  const int64_t vocab = dlogits.size(1);
  const int64_t even = EvenClasses(dlogits);
  const auto some = [&](int64_t begin, int64_t count, bool add) {
    AddProduct(dhidden, dlogits.narrow(1, begin, count), weight.narrow(0, begin, count), add);
  };
  // The few first, so that what is rounded twice is small.
  if (even < vocab) some(even, vocab - even, /*add=*/false);
  some(0, even, /*add=*/even < vocab);
}

void WeightGradientInto(const Tensor& dweight, const Tensor& dlogits, const Tensor& hidden,
                        bool add) {
  const int64_t vocab = dlogits.size(1);
  const int64_t even = EvenClasses(dlogits);
  const auto some = [&](int64_t begin, int64_t count) {
    AddProduct(dweight.narrow(0, begin, count), dlogits.narrow(1, begin, count).t(), hidden, add);
  };
  some(0, even);
  if (even < vocab) some(even, vocab - even);
}

}  // namespace fuseboard::torch_binding
