#include "server/fusectl/format.h"

#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace fuseboard::fusectl {
namespace {

// "DECISION_KIND_NATIVE" to "native".
std::string Word(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  if (name == "UNSPECIFIED") return "";
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", " "}});
}

}  // namespace

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 10) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f d", seconds / 86400);
}

std::string FormatTimeUs(int64_t us_since_epoch) {
  if (us_since_epoch == 0) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMicros(us_since_epoch),
                          absl::UTCTimeZone());
}

std::string FormatExpiry(int64_t expires_at_us, absl::Time now) {
  if (expires_at_us == 0) return "never";
  const absl::Duration left = absl::FromUnixMicros(expires_at_us) - now;
  if (left <= absl::ZeroDuration()) return "expired";
  return absl::StrCat("in ", FormatSeconds(absl::ToDoubleSeconds(left)));
}

std::string FormatScope(const v1::Scope& scope) {
  std::string text = Word(v1::ScopeKind_Name(scope.kind()), "SCOPE_KIND_");
  if (!scope.name().empty()) absl::StrAppend(&text, " ", scope.name());
  return text;
}

std::string FormatKind(v1::DecisionKind kind) {
  return Word(v1::DecisionKind_Name(kind), "DECISION_KIND_");
}

std::string FormatRule(v1::Rule rule) { return Word(v1::Rule_Name(rule), "RULE_"); }

std::string FormatMethod(v1::Method method) { return Word(v1::Method_Name(method), "METHOD_"); }

std::string FormatNumber(double value) {
  std::string text = absl::StrFormat("%.3f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

}  // namespace fuseboard::fusectl
