// One thing the GPU did, as the profiler counts it: a plain value without CUPTI's types, so that
// aggregation and the session run on recorded records in tests.

#ifndef PROFILER_ACTIVITY_RECORD_H_
#define PROFILER_ACTIVITY_RECORD_H_

#include <cstdint>

namespace fuseboard::profiler {

enum class ActivityKind { kKernel, kCopy, kMemset };

struct ActivityRecord {
  ActivityKind kind = ActivityKind::kKernel;
  // Device and CUPTI clock, nanoseconds. Both 0: the record was handed out unfinished.
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  uint32_t device_id = 0;
  // Launched by a CUDA graph (graph node id present).
  bool from_graph = false;
  // Copies only.
  uint64_t bytes = 0;
  // Kernels only: as the driver names it (mangled). Valid only during the call that passes it.
  const char* name = nullptr;
};

}  // namespace fuseboard::profiler

#endif  // PROFILER_ACTIVITY_RECORD_H_
