// Rotary position embedding on the CPU, compiled once per instruction set. The factors of a
// position are converted once and used for all heads.

#include "kernels/rope/rope_cpu.h"

#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/common/rotary_cpu.h"
#include "kernels/rope/rope_call.h"

namespace fuseboard::rope::FB_CPU_ISA {
namespace {

using namespace fuseboard::FB_CPU_ISA;  // NOLINT(google-build-using-namespace): cpu_float.h.

constexpr int64_t kGrainElements = 32768;  // Work below this does not pay for another thread.

// The heads of q or k at one position.
template <typename T>
void RotateHeads(const Rotation& r, const PairFactors& factors, const Heads& in, const Heads& out,
                 int64_t batch, int64_t position, int32_t begin, int32_t n) {
  const auto at = [&](const Heads& heads) {
    return static_cast<T*>(heads.base) + batch * heads.batch_stride +
           position * heads.position_stride;
  };
  for (int64_t head = 0; head < in.count; ++head) {
    const T* x = at(in) + head * in.head_stride;
    T* y = at(out) + head * out.head_stride;
    RotatePairs(r, factors, x, begin, n, y);
    if (begin > 0 || r.dim == 2 * r.pairs) continue;
    __builtin_memcpy(y + 2 * r.pairs, x + 2 * r.pairs, sizeof(T) * (r.dim - 2 * r.pairs));
  }
}

template <typename T>
void RotatePosition(const Call& call, int64_t batch, int64_t position) {
  const Rotation& r = call.rotation;
  PairFactors factors;
  for (int32_t begin = 0; begin < r.pairs; begin += kPairBlock) {
    const int32_t n = r.pairs - begin < kPairBlock ? r.pairs - begin : kPairBlock;
    LoadPairFactors(r, batch, position, begin, n, &factors);
    for (int i = 0; i < 2; ++i) {
      RotateHeads<T>(r, factors, call.in[i], call.out[i], batch, position, begin, n);
    }
  }
}

int32_t Launch(const FbCall& raw, FbPhase phase) {
  const Call call = CallOf(raw, phase);
  const int64_t heads = call.in[0].count + call.in[1].count;
  if (heads == 0) return 0;
  const int64_t elements = heads * call.rotation.dim;
  const int64_t positions = call.rotation.positions;
  DispatchFloat(call.dtype, [&](auto tag) {
    using T = decltype(tag)::type;
    ParallelFor(raw, call.rotation.batch * positions, kGrainElements / elements + 1,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    RotatePosition<T>(call, i / positions, i % positions);
                  }
                });
  });
  return 0;
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) { return Launch(*call, FB_FORWARD); }

int32_t BackwardCpu(const FbCall* call, void* /*workspace*/) { return Launch(*call, FB_BACKWARD); }

}  // namespace fuseboard::rope::FB_CPU_ISA
