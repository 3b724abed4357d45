// Cross entropy of rows in ATen operators: what runs when no kernel library does.
//
// Works on a few rows at a time, so that its fp32 temporaries stay near 64 MiB whatever the size of
// the logits: a fused loss that is switched off must not need more memory than it did.

#ifndef KERNELS_TORCH_CROSS_ENTROPY_COMPOSITE_H_
#define KERNELS_TORCH_CROSS_ENTROPY_COMPOSITE_H_

#include "kernels/torch/cross_entropy_rows.h"

namespace fuseboard::torch_binding {

// Writes every defined output of `rows`. With `lse_is_known`, rows.lse is read instead of written.
void CrossEntropyComposite(const CrossEntropyRows& rows, const CrossEntropyOptions& options,
                           bool lse_is_known);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_CROSS_ENTROPY_COMPOSITE_H_
