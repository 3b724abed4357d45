#include "profiler/abi/cupti_abi.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include "profiler/cupti_library.h"
#include "profiler/dynamic_cupti.h"
#include "profiler/status.h"

#define FB_CUPTI_EXPORT extern "C" __attribute__((visibility("default")))

namespace fuseboard::profiler {
namespace {

CuptiLibrary& Library() {
  // Never destroyed: a window may be open when the process ends.
  static auto* const library = new CuptiLibrary(&DynamicCupti::Instance());
  return *library;
}

void CopyReason(const Status& status, char* reason, size_t reason_bytes) {
  if (reason == nullptr || reason_bytes == 0) return;
  const std::string_view message = status.message();
  const size_t length = std::min(message.size(), reason_bytes - 1);
  std::memcpy(reason, message.data(), length);
  reason[length] = '\0';
}

// Runs `call` and answers as every function of the interface does.
template <typename Call>
int32_t Answer(char* reason, size_t reason_bytes, Call&& call) {
  Status status;
  try {
    status = call(Library());
  } catch (const std::exception& e) {  // Out of memory; nothing else here throws.
    status = InternalError(e.what());
  }
  CopyReason(status, reason, reason_bytes);
  return CodeOf(status);
}

}  // namespace
}  // namespace fuseboard::profiler

using fuseboard::profiler::Answer;
using fuseboard::profiler::CuptiLibrary;

FB_CUPTI_EXPORT uint32_t fb_cupti_abi_version(void) { return FB_CUPTI_ABI_VERSION; }

FB_CUPTI_EXPORT int32_t fb_cupti_check(char* reason, size_t reason_bytes) {
  return Answer(reason, reason_bytes, [](CuptiLibrary& library) { return library.Check(); });
}

FB_CUPTI_EXPORT int32_t fb_cupti_start_window(char* reason, size_t reason_bytes) {
  return Answer(reason, reason_bytes, [](CuptiLibrary& library) { return library.StartWindow(); });
}

FB_CUPTI_EXPORT int32_t fb_cupti_mark(const char* phase, char* reason, size_t reason_bytes) {
  return Answer(reason, reason_bytes,
                [phase](CuptiLibrary& library) { return library.Mark(phase); });
}

FB_CUPTI_EXPORT int32_t fb_cupti_stop_window(const char** report, char* reason,
                                             size_t reason_bytes) {
  return Answer(reason, reason_bytes,
                [report](CuptiLibrary& library) { return library.StopWindow(report); });
}

FB_CUPTI_EXPORT int32_t fb_cupti_abandon_window(int32_t leave_enabled, char* reason,
                                                size_t reason_bytes) {
  return Answer(reason, reason_bytes, [leave_enabled](CuptiLibrary& library) {
    return library.AbandonWindow(leave_enabled != 0);
  });
}
