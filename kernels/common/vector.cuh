// Runs of consecutive elements between memory and float registers. A kernel is written once over
// kLanes: 16 / sizeof(T) lanes (a pack) where bases and strides allow it, 1 lane where they do not.

#ifndef KERNELS_COMMON_VECTOR_CUH_
#define KERNELS_COMMON_VECTOR_CUH_

#include <type_traits>

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/float_types.h"
#include "kernels/common/ptx.cuh"

namespace fuseboard {

// Elements of T in 16 bytes, the widest access of every device up to sm_90.
template <typename T>
inline constexpr int kPackLanes = 16 / static_cast<int>(sizeof(T));

// Whether rows of this tensor can be read and written in runs of `bytes`, a power of two. With one
// row (or none) the row stride is never used.
inline bool IsAlignedRows(const FbTensor& tensor, int element_bytes, int bytes) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  const bool strides = tensor.shape[0] <= 1 || tensor.stride[0] * element_bytes % bytes == 0;
  return address % bytes == 0 && strides;
}

// The bits of kLanes elements of T, as loaded: half the registers of floats for 16-bit types.
template <typename T, int kLanes>
struct Lanes {
  static constexpr int kBytes = kLanes * static_cast<int>(sizeof(T));
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes % 16 == 0);
  uint32_t word[kWords];
};

// ---- Bits in memory. `address` is aligned to the run, at most to 16 bytes. ----
//
// NOTE: no hint to pass by L1. H200, 8192 x 14336 bf16: swiglu with ld.global.nc.L1::no_allocate
// 0.172 ms forward and 0.288 backward, with plain loads 0.165 and 0.275.

template <typename T, int kLanes>
__device__ __forceinline__ Lanes<T, kLanes> LoadLanes(const T* address) {
  using L = Lanes<T, kLanes>;
  L out;
  if constexpr (L::kBytes == 2) {
    out.word[0] = *reinterpret_cast<const uint16_t*>(address);
  } else if constexpr (L::kBytes == 4) {
    out.word[0] = *reinterpret_cast<const uint32_t*>(address);
  } else if constexpr (L::kBytes == 8) {
    const auto v = *reinterpret_cast<const uint2*>(address);
    out.word[0] = v.x, out.word[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < L::kWords; i += 4) {
      const auto v = *(reinterpret_cast<const uint4*>(address) + i / 4);
      out.word[i] = v.x, out.word[i + 1] = v.y, out.word[i + 2] = v.z, out.word[i + 3] = v.w;
    }
  }
  return out;
}

template <typename T, int kLanes>
__device__ __forceinline__ void StoreLanes(T* address, const Lanes<T, kLanes>& in) {
  using L = Lanes<T, kLanes>;
  if constexpr (L::kBytes == 2) {
    *reinterpret_cast<uint16_t*>(address) = static_cast<uint16_t>(in.word[0]);
  } else if constexpr (L::kBytes == 4) {
    *reinterpret_cast<uint32_t*>(address) = in.word[0];
  } else if constexpr (L::kBytes == 8) {
    *reinterpret_cast<uint2*>(address) = make_uint2(in.word[0], in.word[1]);
  } else {
#pragma unroll
    for (int i = 0; i < L::kWords; i += 4) {
      *(reinterpret_cast<uint4*>(address) + i / 4) =
          make_uint4(in.word[i], in.word[i + 1], in.word[i + 2], in.word[i + 3]);
    }
  }
}

// A pack from where none needs to begin, by the two aligned ones that hold it. `left`: elements
// from there to the end of the tensor, at least a pack of them; near the end, where the second one
// may end beyond the tensor, they are taken one by one.
template <typename T>
__device__ __forceinline__ Lanes<T, kPackLanes<T>> LoadUnalignedPack(const T* from, int left) {
  constexpr int kLanes = kPackLanes<T>;
  Lanes<T, kLanes> out;
  if (left < 2 * kLanes) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t bits = LoadLanes<T, 1>(from + i).word[0];
      if constexpr (sizeof(T) == 4) {
        out.word[i] = bits;
      } else {
        out.word[i / 2] = i % 2 == 0 ? bits : out.word[i / 2] | bits << 16;
      }
    }
    return out;
  }
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto past = static_cast<uint32_t>(address % 16);
  const auto* const packs = reinterpret_cast<const uint4*>(address - past);
  const uint4 low = packs[0];
  const uint4 high = packs[1];
  uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) word[i] = (past & 8) != 0 ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) word[i] = (past & 4) != 0 ? word[i + 1] : word[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.word[i] = sizeof(T) == 4 ? word[i] : __funnelshift_r(word[i], word[i + 1], past % 4 * 8);
  }
  return out;
}

// 1, or two of it.
template <typename T>
inline constexpr uint32_t kOneWord = std::is_same_v<T, float>  ? 0x3f800000u
                                     : std::is_same_v<T, Half> ? 0x3c003c00u
                                                               : 0x3f803f80u;

// The larger of two 16-bit floats, pair by pair; a number before NaN.
template <typename T>
__device__ __forceinline__ uint32_t MaxWord(uint32_t a, uint32_t b) {
  uint32_t most;
  if constexpr (std::is_same_v<T, Half>) {
    asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  } else {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  }
  return most;
}

// ---- Arithmetic of two 16-bit floats in a word ----
//
// Each operation is rounded to T once. That is also what f32 gives when each of its results is
// rounded to T: a product of two is exact in f32, and where their sum is not, the smaller one is
// too small to matter.

template <typename T>
__device__ __forceinline__ uint32_t MultiplyWords(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, Half>) {
    return MultiplyHalfWords(a, b);
  } else {
    return MultiplyBFloat16Words(a, b);
  }
}

template <typename T>
__device__ __forceinline__ uint32_t AddWords(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, Half>) {
    return AddHalfWords(a, b);
  } else {
    return AddBFloat16Words(a, b);
  }
}

// ---- Bits to floats and back ----

template <typename T>
__device__ __forceinline__ float2 WordToFloats(uint32_t word) {
  if constexpr (std::is_same_v<T, Half>) {
    return HalfWordToFloats(word);
  } else {
    return BFloat16WordToFloats(word);
  }
}

template <typename T>
__device__ __forceinline__ uint32_t FloatsToWord(float low, float high) {
  if constexpr (std::is_same_v<T, Half>) {
    return FloatsToHalfWord(low, high);
  } else {
    return FloatsToBFloat16Word(low, high);
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ void Unpack(const Lanes<T, kLanes>& in, float (&out)[kLanes]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = __uint_as_float(in.word[i]);
  } else if constexpr (kLanes == 1) {
    out[0] = WordToFloats<T>(in.word[0]).x;
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; i += 2) {
      const float2 v = WordToFloats<T>(in.word[i / 2]);
      out[i] = v.x, out[i + 1] = v.y;
    }
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ Lanes<T, kLanes> PackFloats(const float (&in)[kLanes]) {
  Lanes<T, kLanes> out;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out.word[i] = __float_as_uint(in[i]);
  } else if constexpr (kLanes == 1) {
    out.word[0] = FloatsToWord<T>(in[0], 0.0f);
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; i += 2) out.word[i / 2] = FloatsToWord<T>(in[i], in[i + 1]);
  }
  return out;
}

// The pack as bits that the compiler takes for new ones: it would keep the floats that it unpacked
// before, in twice the registers. `zero` is 0, which the compiler does not know.
template <typename T, int kLanes>
__device__ __forceinline__ Lanes<T, kLanes> Renewed(Lanes<T, kLanes> pack, uint32_t zero) {
  if constexpr (!std::is_same_v<T, float>) {
#pragma unroll
    for (uint32_t& word : pack.word) word ^= zero;
  }
  return pack;
}

// Memory to floats, and floats to memory with one rounding.
template <typename T, int kLanes>
__device__ __forceinline__ void LoadFloats(const T* address, float (&out)[kLanes]) {
  Unpack<T, kLanes>(LoadLanes<T, kLanes>(address), out);
}

template <typename T, int kLanes>
__device__ __forceinline__ void StoreFloats(T* address, const float (&in)[kLanes]) {
  StoreLanes<T, kLanes>(address, PackFloats<T, kLanes>(in));
}

// Rounds to T and back.
template <typename T, int kLanes>
__device__ __forceinline__ void RoundFloats(float (&values)[kLanes]) {
  if constexpr (!std::is_same_v<T, float>) Unpack<T, kLanes>(PackFloats<T, kLanes>(values), values);
}

// LoadFloats where the dtype is only known at run time: for small tensors such as a weight, whose
// dtype is not worth a template parameter. The branch is uniform.
template <int kLanes>
__device__ __forceinline__ void LoadFloatsOf(int32_t dtype, const void* base, int64_t index,
                                             float (&out)[kLanes]) {
  if (dtype == FB_F32) {
    LoadFloats<float, kLanes>(static_cast<const float*>(base) + index, out);
  } else if (dtype == FB_BF16) {
    LoadFloats<BFloat16, kLanes>(static_cast<const BFloat16*>(base) + index, out);
  } else {
    LoadFloats<Half, kLanes>(static_cast<const Half*>(base) + index, out);
  }
}

// StoreFloats likewise.
template <int kLanes>
__device__ __forceinline__ void StoreFloatsOf(int32_t dtype, void* base, int64_t index,
                                              const float (&in)[kLanes]) {
  if (dtype == FB_F32) {
    StoreFloats<float, kLanes>(static_cast<float*>(base) + index, in);
  } else if (dtype == FB_BF16) {
    StoreFloats<BFloat16, kLanes>(static_cast<BFloat16*>(base) + index, in);
  } else {
    StoreFloats<Half, kLanes>(static_cast<Half*>(base) + index, in);
  }
}

// One value to memory of a dtype known at run time.
__device__ __forceinline__ void StoreFloatOf(int32_t dtype, void* base, int64_t index,
                                             float value) {
  const float values[1] = {value};
  StoreFloatsOf<1>(dtype, base, index, values);
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_VECTOR_CUH_
