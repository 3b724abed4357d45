// Time, injected: nothing in the daemon's core asks the system for it directly, so that expiry and
// liveness are tested without waiting. Thread-safe.
//
// Two scales, because they answer different questions: records carry wall-clock time, which people
// set and which jumps; whether somebody fell silent is asked of the monotonic scale, which does
// not.

#ifndef SERVER_COMMON_CLOCK_H_
#define SERVER_COMMON_CLOCK_H_

#include "absl/time/time.h"

namespace fuseboard {

class Clock {
 public:
  virtual ~Clock() = default;

  // Wall-clock time.
  virtual absl::Time Now() const = 0;

  // Time since an arbitrary fixed point; never goes back.
  virtual absl::Duration Monotonic() const = 0;
};

// The machine's clocks.
class SystemClock : public Clock {
 public:
  absl::Time Now() const override;
  absl::Duration Monotonic() const override;
};

}  // namespace fuseboard

#endif  // SERVER_COMMON_CLOCK_H_
