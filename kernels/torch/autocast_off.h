// While in scope, ATen operators run in the dtypes they are given. A composite has already chosen
// its dtypes, and a backward may run inside the user's autocast region.

#ifndef KERNELS_TORCH_AUTOCAST_OFF_H_
#define KERNELS_TORCH_AUTOCAST_OFF_H_

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fuseboard::torch_binding {

class AutocastOff {
 public:
  AutocastOff() : guard_(c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_AUTOCAST_OFF_H_
