#include "profiler/report_json.h"

#include <vector>

#include "profiler/status.h"

namespace fuseboard::profiler {
namespace {

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += (c >= 0x20 && c < 0x7f) ? c : '?';
  }
  out += '"';
  return out;
}

// The members that the whole window and each phase share.
std::string SharedMembers(const Totals& totals) {
  return StrCat("\"launches\":", totals.launches, ",\"device_ns\":", totals.device_ns,
                ",\"busy_ns\":", totals.busy_ns, ",\"copies\":", totals.copies,
                ",\"memsets\":", totals.memsets);
}

std::string ToJson(const KernelTotals& kernel) {
  return StrCat("{\"name\":", Quoted(kernel.name), ",\"count\":", kernel.count,
                ",\"device_ns\":", kernel.device_ns, "}");
}

std::string ToJson(const PhaseTotals& phase) {
  return StrCat("{\"name\":", Quoted(phase.name), ",", SharedMembers(phase.totals), "}");
}

template <typename T>
std::string ToJson(const std::vector<T>& items) {
  std::string out = "[";
  for (const T& item : items) {
    if (out.size() > 1) out += ',';
    out += ToJson(item);
  }
  return out + "]";
}

}  // namespace

std::string ReportJson(const WindowReport& report) {
  return StrCat(
      "{", SharedMembers(report.totals), ",\"graph_launches\":", report.totals.graph_launches,
      ",\"copied_bytes\":", report.totals.copied_bytes,
      ",\"dropped_records\":", report.dropped_records,
      ",\"unfinished_records\":", report.unfinished_records,
      ",\"kernels\":", ToJson(report.kernels), ",\"phases\":", ToJson(report.phases), "}");
}

}  // namespace fuseboard::profiler
