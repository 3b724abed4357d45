// CUPTI as the profiler uses it: the seam at which tests put recorded records.
//
// CUPTI's activity state (callbacks, enabled kinds) is one per process and carries no client
// handle, so at most one CuptiApi may have a sink at a time. Calls come from one thread at a time;
// the sink is called from any thread, CUPTI's own worker included.

#ifndef PROFILER_CUPTI_API_H_
#define PROFILER_CUPTI_API_H_

#include <cstdint>

#include "profiler/activity_record.h"
#include "profiler/status.h"

namespace fuseboard::profiler {

// Takes records. Thread-safe.
class RecordSink {
 public:
  virtual ~RecordSink() = default;
  virtual void Add(const ActivityRecord& record) = 0;
  // `count` records were lost: CUPTI dropped them, or a buffer could not be read to its end.
  virtual void AddDropped(uint64_t count) = 0;
};

// Errors common to all: Unavailable if another client holds CUPTI; FailedPrecondition if CUPTI
// cannot be used in this process (no library, no driver, no permission); Internal otherwise.
class CuptiApi {
 public:
  virtual ~CuptiApi() = default;

  // Takes the process's one subscription: the only way to learn of another client.
  virtual Status Subscribe() = 0;
  // Gives it back. REQUIRES: a successful Subscribe.
  virtual Status Unsubscribe() = 0;

  // Sends records to `sink` until DetachSink. REQUIRES: `sink` outlives that call.
  virtual Status AttachSink(RecordSink* sink) = 0;
  // Later records are thrown away. Returns when no call of the sink is running.
  virtual void DetachSink() = 0;

  virtual Status Enable(ActivityKind kind) = 0;
  virtual Status Disable(ActivityKind kind) = 0;

  // Hands every buffer to the sink before it returns. REQUIRES: the device is synchronised; not
  // called from a CUPTI callback.
  virtual Status Flush() = 0;
  // Records that CUPTI dropped since the last call.
  virtual StatusOr<uint64_t> TakeDropped() = 0;
  // Now, on the clock of the records.
  virtual StatusOr<uint64_t> NowNs() = 0;
};

}  // namespace fuseboard::profiler

#endif  // PROFILER_CUPTI_API_H_
