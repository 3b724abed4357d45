#include "profiler/cupti_library.h"

#include <utility>

#include "profiler/report_json.h"

namespace fuseboard::profiler {
namespace {

constexpr size_t kMaxPhaseBytes = 63;

}  // namespace

FbCuptiCode CodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return FB_CUPTI_OK;
    case StatusCode::kUnavailable:
      return FB_CUPTI_BUSY;
    case StatusCode::kFailedPrecondition:
      return FB_CUPTI_UNAVAILABLE;
    case StatusCode::kDataLoss:
      return FB_CUPTI_INCOMPLETE;
    case StatusCode::kNotFound:
      return FB_CUPTI_EMPTY;
    case StatusCode::kInvalidArgument:
      return FB_CUPTI_BAD_STATE;
    default:
      return FB_CUPTI_INTERNAL;
  }
}

Status CuptiLibrary::StartWindow() {
  Status started = session_.Start();
  if (started.ok()) {
    std::scoped_lock lock(mutex_);
    report_.clear();
  }
  return started;
}

Status CuptiLibrary::Mark(const char* phase) {
  std::string name = phase != nullptr ? phase : "";
  if (name.size() > kMaxPhaseBytes) name.resize(kMaxPhaseBytes);
  return session_.Mark(std::move(name));
}

Status CuptiLibrary::StopWindow(const char** report) {
  *report = nullptr;
  StatusOr<FinishedWindow> finished = session_.Stop();
  if (!finished.ok()) return finished.status();
  std::scoped_lock lock(mutex_);
  report_ = ReportJson(finished->report);
  *report = report_.c_str();
  return finished->completeness;
}

}  // namespace fuseboard::profiler
