// Reads CUPTI's activity records, whose layout belongs to CUPTI 13.

#ifndef PROFILER_ACTIVITY_DECODER_H_
#define PROFILER_ACTIVITY_DECODER_H_

#include <cupti.h>

#include <optional>

#include "profiler/activity_record.h"

namespace fuseboard::profiler {

// The major version whose record layouts this file was compiled with. Within one, fields are only
// appended; another major version must not be decoded.
inline constexpr uint32_t kCuptiMajor = CUPTI_API_VERSION / 10000;

// Returns what `activity` says, or nothing if it is of a kind that is not counted. The name points
// into CUPTI's memory.
std::optional<ActivityRecord> DecodeActivity(const CUpti_Activity& activity);

}  // namespace fuseboard::profiler

#endif  // PROFILER_ACTIVITY_DECODER_H_
