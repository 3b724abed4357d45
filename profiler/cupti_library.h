// What stands behind the C functions of profiler/abi/cupti_abi.h, over any CuptiApi, so that tests
// call exactly what Python calls.

#ifndef PROFILER_CUPTI_LIBRARY_H_
#define PROFILER_CUPTI_LIBRARY_H_

#include <mutex>
#include <string>

#include "profiler/abi/cupti_abi.h"
#include "profiler/cupti_api.h"
#include "profiler/status.h"
#include "profiler/window_session.h"

namespace fuseboard::profiler {

// The code that the C interface gives for `status`, which a WindowSession returned.
FbCuptiCode CodeOf(const Status& status);

// A session with the text of its last report. Thread-safe.
class CuptiLibrary {
 public:
  // REQUIRES: `api` outlives this.
  explicit CuptiLibrary(CuptiApi* api) : session_(api) {}

  Status Check() { return session_.Check(); }
  Status StartWindow();
  Status Mark(const char* phase);
  // Sets *report as fb_cupti_stop_window does. DataLoss comes with a report.
  Status StopWindow(const char** report);
  Status AbandonWindow(bool leave_enabled) { return session_.Abandon(leave_enabled); }

 private:
  WindowSession session_;
  std::mutex mutex_;  // Guards report_.
  std::string report_;
};

}  // namespace fuseboard::profiler

#endif  // PROFILER_CUPTI_LIBRARY_H_
