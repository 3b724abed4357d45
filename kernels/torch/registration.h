// How an operation declares its operators in its own file:
//
//   TORCH_LIBRARY_FRAGMENT(fuseboard, m) { Define(m, {kSchema, kForwardSchema, kBackwardSchema}); }
//   TORCH_LIBRARY_IMPL(fuseboard, Autograd, m) {
//     m.impl("x", Autograd);
//     RefuseSecondDerivatives(m, {"x_forward", "x_backward"});
//   }
//
// The first schema is the differentiable operator, the contract with Python; the others are the
// pair below it, which torch.compile traces. A schema's name is the operation's stem.

#ifndef KERNELS_TORCH_REGISTRATION_H_
#define KERNELS_TORCH_REGISTRATION_H_

#include <torch/library.h>

#include <initializer_list>

namespace fuseboard::torch_binding {

void Define(torch::Library& library, std::initializer_list<const char*> schemas);

// A second derivative reaches these operators, and raises with the operator's name.
void RefuseSecondDerivatives(torch::Library& library, std::initializer_list<const char*> names);

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_REGISTRATION_H_
