// How rope is cut for a device. Host-only and constexpr, so it is tested without a GPU.
//
// A block takes `token_lanes` neighbouring positions of one batch entry. `slots` threads share a
// head of a position, `head_lanes` groups of them share the heads of q and k together: each thread
// loads its factors once and goes through its heads, C::kUnroll at a time.

#ifndef KERNELS_ROPE_ROPE_POLICY_H_
#define KERNELS_ROPE_ROPE_POLICY_H_

#include <stdint.h>

namespace fuseboard::rope {

// What a kernel is compiled for. A type, as nvcc 13.0 cannot name a kernel with a class as
// argument.
template <int kThreads_, int kUnroll_, int kBlocksPerSm_>
struct Cut {
  static constexpr int kThreads = kThreads_;  // Of a block, at most.
  static constexpr int kUnroll = kUnroll_;    // Heads of a thread, loaded before the first is used.
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // Resident, that registers are fitted to.
};

// Two floats at a time, q and k in blocks of their own. H200, Llama 3 8B's heads in bf16, share of
// the copy rate: 97 % with heads inside positions, 94 % outside; 128 threads 95 to 96 and 94 %, 256
// 97 and 93 %, 4 heads at a time 96 and 94 %, 2 heads 90 and 88 %.
using PackedCut = Cut<64, 5, 12>;

// Floats. Half rotation: the factors (32 registers), four heads as loaded (32) and one in floats
// (32) fit in 128 registers; 512 threads with 128 bytes each under way are 64 KiB per
// multiprocessor, twice what 4 TB/s and 800 ns ask of each of 132. 95 %.
using AcrossCut = Cut<256, 4, 2>;
// Interleaved: four heads spill 8 bytes.
using WithinCut = Cut<256, 3, 2>;

struct Policy {
  int slots;        // blockDim.x
  int head_lanes;   // blockDim.z where positions lie closer than heads, else blockDim.y
  int token_lanes;  // The other one.

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr int kMaxOuterThreads = 64;  // Of blockDim.z, on every device.

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `slots`: pairs of runs of a head. `heads`: of q and k together, at least 1.
template <typename C>
constexpr Policy SelectPolicy(int64_t slots, int64_t heads, int64_t positions) {
  const int64_t x = slots < C::kThreads ? slots : C::kThreads;
  const int64_t room = C::kThreads / x < kMaxOuterThreads ? C::kThreads / x : kMaxOuterThreads;
  // As few turns as the block has room for, then no more groups than those turns need.
  const int64_t turns = CeilDiv(heads, room * C::kUnroll);
  const int64_t head_lanes = CeilDiv(heads, turns * C::kUnroll);
  int64_t tokens = C::kThreads / (x * head_lanes);
  if (tokens > kMaxOuterThreads) tokens = kMaxOuterThreads;
  if (tokens > positions) tokens = positions < 1 ? 1 : positions;
  return {.slots = static_cast<int>(x),
          .head_lanes = static_cast<int>(head_lanes),
          .token_lanes = static_cast<int>(tokens)};
}

// A tile is what a block does at a time: token_lanes positions of one batch entry.
struct Tiles {
  int64_t per_batch;
  int64_t count;
};

constexpr Tiles TilesOf(const Policy& policy, int64_t batch, int64_t positions) {
  const int64_t per_batch = CeilDiv(positions, policy.token_lanes);
  return {per_batch, per_batch * batch};
}

}  // namespace fuseboard::rope

#endif  // KERNELS_ROPE_ROPE_POLICY_H_
