// FbCall::parallel_for with a C++ callable. Work is split by the caller's pool, so a result that
// must not depend on the number of threads may depend on neither the range nor the thread it got.

#ifndef KERNELS_COMMON_PARALLEL_H_
#define KERNELS_COMMON_PARALLEL_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

// Calls fn(begin, end) for disjoint ranges that cover [0, size), each at least `grain` long where
// possible, and returns when all have ended. One call on this thread if the work is one grain.
template <typename Fn>
void ParallelFor(const FbCall& call, int64_t size, int64_t grain, const Fn& fn) {
  if (size <= 0) return;
  if (call.parallel_for == nullptr || call.num_threads <= 1 || size <= grain) {
    fn(int64_t{0}, size);
    return;
  }
  const FbRangeFn range = [](void* context, int64_t begin, int64_t end) {
    (*static_cast<const Fn*>(context))(begin, end);
  };
  call.parallel_for(call.pool, 0, size, grain, range, const_cast<Fn*>(&fn));
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_PARALLEL_H_
