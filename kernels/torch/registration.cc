#include "kernels/torch/registration.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <vector>

namespace fuseboard::torch_binding {

void Define(torch::Library& library, std::initializer_list<const char*> schemas) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  for (const char* schema : schemas) library.def(schema, tags);
}

void RefuseSecondDerivatives(torch::Library& library, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace fuseboard::torch_binding
