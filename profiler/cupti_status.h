// CUPTI's result codes as Status. The only place that knows which is which.

#ifndef PROFILER_CUPTI_STATUS_H_
#define PROFILER_CUPTI_STATUS_H_

#include <cupti.h>

#include <string_view>

#include "profiler/status.h"

namespace fuseboard::profiler {

// `call` is the function that returned `result`; `holder` the name of the other client, if known.
//
// Unavailable: another client holds CUPTI. FailedPrecondition: CUPTI cannot be used in this process
// (no driver: most calls return 999; no permission; hardware or virtualisation without support).
// Internal: anything else.
Status CuptiStatus(CUptiResult result, std::string_view call, std::string_view holder = "");

}  // namespace fuseboard::profiler

#endif  // PROFILER_CUPTI_STATUS_H_
