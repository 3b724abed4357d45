// Order of versions "MAJOR.MINOR.PATCH[-PRERELEASE][+BUILD]" as semver.org 2.0.0 states it. Build
// metadata does not count.

#ifndef SERVER_REGISTRY_SEMANTIC_VERSION_H_
#define SERVER_REGISTRY_SEMANTIC_VERSION_H_

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fuseboard {

struct SemanticVersion {
  std::array<uint64_t, 3> numbers{};
  std::vector<std::string> prerelease;  // Empty: a release.

  bool operator==(const SemanticVersion& other) const = default;
  std::weak_ordering operator<=>(const SemanticVersion& other) const;
};

// Nothing if `text` is not a semantic version.
std::optional<SemanticVersion> ParseSemanticVersion(absl::string_view text);

}  // namespace fuseboard

#endif  // SERVER_REGISTRY_SEMANTIC_VERSION_H_
