#include "profiler/cupti_status.h"

#include <string>

namespace fuseboard::profiler {
namespace {

std::string_view Hint(CUptiResult result) {
  switch (result) {
    case CUPTI_ERROR_NOT_INITIALIZED:
    case CUPTI_ERROR_UNKNOWN:
      return ": no CUDA driver, or CUPTI cannot reach it";
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return ": this user may not profile (NVreg_RestrictProfilingToAdminUsers)";
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_NOT_SUPPORTED:
      return ": not supported on this device";
    default:
      return "";
  }
}

}  // namespace

Status CuptiStatus(CUptiResult result, std::string_view call, std::string_view holder) {
  if (result == CUPTI_SUCCESS) return OkStatus();
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    return {StatusCode::kUnavailable,
            StrCat("another profiler holds CUPTI", holder.empty() ? "" : ": ", holder)};
  }
  const std::string_view hint = Hint(result);
  const std::string message =
      StrCat(call, " returned CUPTI error ", static_cast<int>(result), hint);
  return hint.empty() ? InternalError(message) : FailedPreconditionError(message);
}

}  // namespace fuseboard::profiler
