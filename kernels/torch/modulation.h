// The shapes of what modulates the rows of x [..., hidden]: one row per example or per row.
//
//   x [batch, seq, hidden]    [batch, hidden] or [batch, 1, hidden]: one row per example,
//                             [batch, seq, hidden]: one per row, [1, 1, hidden]: one for all
//
// In general: the shape of x with 1 in dimensions that share a row, which follow the others; or two
// dimensions, the first of x and the last. Not [hidden].

#ifndef KERNELS_TORCH_MODULATION_H_
#define KERNELS_TORCH_MODULATION_H_

#include <ATen/core/Tensor.h>

namespace fuseboard::torch_binding {

// Errors: c10::Error unless `modulation` is of such a shape, of a floating dtype, and where x is.
void CheckModulation(const char* operation, const char* name, const at::Tensor& modulation,
                     const at::Tensor& x);

// `modulation` as a view that broadcasts to the shape of x.
at::Tensor Spread(const at::Tensor& modulation, const at::Tensor& x);

// `values`, of the shape of x, summed over the rows that share one of `modulation`; of the shape of
// that, contiguous.
at::Tensor SumLike(const at::Tensor& values, const at::Tensor& modulation);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_MODULATION_H_
