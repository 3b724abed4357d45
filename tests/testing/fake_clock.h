// A clock that moves only when told to. Thread-safe.

#ifndef TESTS_TESTING_FAKE_CLOCK_H_
#define TESTS_TESTING_FAKE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/common/clock.h"

namespace fuseboard::testing {

class FakeClock : public Clock {
 public:
  // 2026-01-02T03:04:05Z, so that texts in tests are readable.
  FakeClock() : now_(absl::FromUnixSeconds(1767323045)) {}

  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  absl::Duration Monotonic() const override {
    absl::MutexLock lock(&mutex_);
    return monotonic_;
  }

  // Both scales.
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
    monotonic_ += duration;
  }
  // Somebody sets the wall clock.
  void SetWallClock(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    now_ = now;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  absl::Duration monotonic_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_FAKE_CLOCK_H_
