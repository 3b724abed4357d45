#include "profiler/activity_decoder.h"

namespace fuseboard::profiler {
namespace {

ActivityRecord FromKernel(const CUpti_ActivityKernel10& kernel) {
  return {.kind = ActivityKind::kKernel,
          .start_ns = kernel.start,
          .end_ns = kernel.end,
          .device_id = kernel.deviceId,
          .from_graph = kernel.graphNodeId != 0,
          .bytes = 0,
          .name = kernel.name};
}

ActivityRecord FromCopy(const CUpti_ActivityMemcpy6& copy) {
  return {.kind = ActivityKind::kCopy,
          .start_ns = copy.start,
          .end_ns = copy.end,
          .device_id = copy.deviceId,
          .from_graph = copy.graphNodeId != 0,
          .bytes = copy.bytes,
          .name = nullptr};
}

ActivityRecord FromMemset(const CUpti_ActivityMemset4& memset) {
  return {.kind = ActivityKind::kMemset,
          .start_ns = memset.start,
          .end_ns = memset.end,
          .device_id = memset.deviceId,
          .from_graph = memset.graphNodeId != 0,
          .bytes = memset.bytes,
          .name = nullptr};
}

}  // namespace

std::optional<ActivityRecord> DecodeActivity(const CUpti_Activity& activity) {
  switch (activity.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return FromKernel(reinterpret_cast<const CUpti_ActivityKernel10&>(activity));
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return FromCopy(reinterpret_cast<const CUpti_ActivityMemcpy6&>(activity));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return FromMemset(reinterpret_cast<const CUpti_ActivityMemset4&>(activity));
    default:
      return std::nullopt;
  }
}

}  // namespace fuseboard::profiler
