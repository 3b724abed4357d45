// How a block shares heads of one q or k: which groups of its threads take which heads of which
// positions. Host-only and constexpr.

#ifndef KERNELS_COMMON_ROTARY_CUT_H_
#define KERNELS_COMMON_ROTARY_CUT_H_

#include <stdint.h>

namespace fuseboard {

inline constexpr int kWarp = 32;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int NextPowerOfTwo(int64_t value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

constexpr int Tokens(int64_t room, int64_t positions) {
  return static_cast<int>(room < positions ? room : (positions < 1 ? 1 : positions));
}

// Groups of `room` that share `heads` heads, `unroll` each at a time: as few turns as it takes to
// leave the fewest places of the block empty.
constexpr int HeadLanes(int64_t heads, int64_t room, int unroll) {
  int best = 1;
  int64_t best_cost = 0;
  for (int64_t lanes = 1; lanes <= room; ++lanes) {
    const int64_t turns = CeilDiv(heads, lanes * unroll);
    // Places that a position takes up, by 1024.
    const int64_t cost = 1024 * turns * unroll * room / (room / lanes);
    if (best_cost == 0 || cost <= best_cost) best = static_cast<int>(lanes), best_cost = cost;
    if (turns == 1) break;
  }
  return best;
}

// `width` threads, a part of a warp, share a head.
struct HeadCut {
  int width;  // A power of two up to 32. 0: the head is too long.
  int head_lanes;
  int token_lanes;
  int64_t turns;  // Times that head_lanes * C::kUnroll heads are taken.
};

// `slots`: pairs of runs of a head. `heads`: at least 1.
template <typename C>
constexpr HeadCut CutHeads(int64_t slots, int64_t heads, int64_t positions) {
  if (slots > kWarp) return {};
  const int width = NextPowerOfTwo(slots);
  const int64_t room = C::kThreads / width;
  const int lanes = HeadLanes(heads, room, C::kUnroll);
  return {width, lanes, Tokens(room / lanes, positions),
          CeilDiv(heads, int64_t{lanes} * C::kUnroll)};
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROTARY_CUT_H_
