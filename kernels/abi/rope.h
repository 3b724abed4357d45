// rope: rotary position embedding of q and k in one launch, out of place.
//
// Elements a and b of a head that make a pair are rotated by the angle of their position; the
// elements from rotary_dim on are copied:
//   a' = a * cos_a - b * sin_a
//   b' = b * cos_b + a * sin_b
// Pair i of the pairs = rotary_dim / 2 is made of the elements i and i + pairs (half rotation:
// Llama), or 2 i and 2 i + 1 if interleaved (GLM, Cohere; Llama 4's product of complex numbers).
//
// Forward   inputs  0 q [batch, heads, positions, dim]; 1 k [batch, k_heads, positions, dim],
//                   optional; 2 cos [streams, 1 or batch, positions, width]; 3 sin, shape of cos
//           outputs 0 q'; 1 k', absent where k is
// Backward  inputs  0 dq', optional; 1 dk', optional; 2 cos; 3 sin
//           outputs 0 dq, absent where dq' is; 1 dk, absent where dk' is
//           The transposed map; the rotation by the negative angle where cos_a = cos_b and
//           sin_a = sin_b:  da = da' * cos_a + db' * sin_b,  db = db' * cos_b - da' * sin_a
//
// width is rotary_dim: column e of the tables belongs to element e of the head; or rotary_dim / 2:
// column i belongs to both elements of pair i. streams is 1, or 3: pair i then takes its factors
// from stream 0 if i < sections[0], else from stream 1 if i < sections[0] + sections[1], else from
// stream 2 (the multimodal positions of Qwen2-VL).
//
// q, k: one dtype of f32, f16 and bf16; stride 1 in dim, any other strides (0 and transposed views
// included); outputs have the dtype of q and do not overlap themselves or an input. cos, sin: the
// dtype of q or f32, any strides. Arithmetic in f32, rounded once at the end; with round_products
// each of the two products is rounded to the dtype of q first, unless the tables are of a wider
// one: what `q * cos + rotate_half(q) * sin` does in a model's own code. Two runs are bit-equal.

#ifndef KERNELS_ABI_ROPE_H_
#define KERNELS_ABI_ROPE_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int32_t interleaved;     // 0 or 1.
  int32_t round_products;  // 0 or 1.
  int32_t reserved;        // 0.
  int64_t rotary_dim;      // Even, from 2 to dim.
  int64_t sections[3];     // Pairs of each stream; their sum is rotary_dim / 2. 1 stream: unread.
} FbRopeParams;

#endif  // KERNELS_ABI_ROPE_H_
