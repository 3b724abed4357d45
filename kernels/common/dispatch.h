// Turns a runtime dtype into a compile-time type, without a macro. Host code, CPU and CUDA alike.

#ifndef KERNELS_COMMON_DISPATCH_H_
#define KERNELS_COMMON_DISPATCH_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/float_types.h"

namespace fuseboard {

template <typename T>
struct TypeTag {
  using type = T;
};

constexpr bool IsFloatDType(int32_t dtype) {
  return dtype == FB_F32 || dtype == FB_F16 || dtype == FB_BF16;
}

// The dtype of a storage type.
template <typename T>
inline constexpr int32_t kDTypeOf = FB_F32;
template <>
inline constexpr int32_t kDTypeOf<Half> = FB_F16;
template <>
inline constexpr int32_t kDTypeOf<BFloat16> = FB_BF16;

// Calls fn(TypeTag<T>{}) for the T that `dtype` names and returns what it returns. This switch is
// the only list of float dtypes: a new one here is a new one in every kernel.
// REQUIRES: IsFloatDType(dtype), which reject_reason has established before any launch.
template <typename Fn>
decltype(auto) DispatchFloat(int32_t dtype, Fn&& fn) {
  switch (dtype) {
    case FB_F16:
      return fn(TypeTag<Half>{});
    case FB_BF16:
      return fn(TypeTag<BFloat16>{});
    default:
      return fn(TypeTag<float>{});
  }
}

// As above over two dtypes: fn(TypeTag<A>{}, TypeTag<B>{}).
template <typename Fn>
decltype(auto) DispatchFloat2(int32_t a, int32_t b, Fn&& fn) {
  return DispatchFloat(a, [&](auto tag_a) -> decltype(auto) {
    return DispatchFloat(b, [&](auto tag_b) -> decltype(auto) { return fn(tag_a, tag_b); });
  });
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_DISPATCH_H_
