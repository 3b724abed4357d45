// The text of a report, as profiler/abi/cupti_abi.h describes it.

#ifndef PROFILER_REPORT_JSON_H_
#define PROFILER_REPORT_JSON_H_

#include <string>

#include "profiler/record_aggregator.h"

namespace fuseboard::profiler {

// Valid UTF-8 JSON whatever bytes the names hold: what is not printable ASCII becomes "?".
std::string ReportJson(const WindowReport& report);

}  // namespace fuseboard::profiler

#endif  // PROFILER_REPORT_JSON_H_
