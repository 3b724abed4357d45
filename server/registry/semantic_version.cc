#include "server/registry/semantic_version.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fuseboard {
namespace {

bool IsNumeric(absl::string_view text) {
  return !text.empty() && std::ranges::all_of(text, absl::ascii_isdigit);
}

bool IsIdentifier(absl::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
}

// Numbers by value and before words; words by their bytes.
std::weak_ordering CompareIdentifiers(const std::string& a, const std::string& b) {
  const bool a_numeric = IsNumeric(a);
  if (a_numeric != IsNumeric(b)) {
    return a_numeric ? std::weak_ordering::less : std::weak_ordering::greater;
  }
  // Without leading zeros the longer number is the larger one, however long it is.
  if (a_numeric && a.size() != b.size()) return a.size() <=> b.size();
  return a <=> b;
}

}  // namespace

std::weak_ordering SemanticVersion::operator<=>(const SemanticVersion& other) const {
  if (numbers != other.numbers) return numbers <=> other.numbers;
  if (prerelease.empty() || other.prerelease.empty()) {
    return other.prerelease.size() <=> prerelease.size();
  }
  return std::lexicographical_compare_three_way(prerelease.begin(), prerelease.end(),
                                                other.prerelease.begin(), other.prerelease.end(),
                                                CompareIdentifiers);
}

std::optional<SemanticVersion> ParseSemanticVersion(absl::string_view text) {
  SemanticVersion version;
  const std::vector<absl::string_view> build = absl::StrSplit(text, absl::MaxSplits('+', 1));
  if (build.size() == 2) {
    for (const absl::string_view part : absl::StrSplit(build[1], '.')) {
      if (!IsIdentifier(part)) return std::nullopt;
    }
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(build[0], absl::MaxSplits('-', 1));
  const std::vector<absl::string_view> numbers = absl::StrSplit(parts[0], '.');
  if (numbers.size() != version.numbers.size()) return std::nullopt;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bool leading_zero = numbers[i].size() > 1 && numbers[i][0] == '0';
    if (!IsNumeric(numbers[i]) || leading_zero ||
        !absl::SimpleAtoi(numbers[i], &version.numbers[i])) {
      return std::nullopt;
    }
  }
  if (parts.size() == 1) return version;
  for (const absl::string_view part : absl::StrSplit(parts[1], '.')) {
    const bool leading_zero = IsNumeric(part) && part.size() > 1 && part[0] == '0';
    if (!IsIdentifier(part) || leading_zero) return std::nullopt;
    version.prerelease.emplace_back(part);
  }
  return version;
}

}  // namespace fuseboard
