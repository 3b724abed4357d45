#include "server/control/mutation_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/common/error_reason.h"
#include "server/common/status_macros.h"
#include "server/control/control_service.h"
#include "server/resolver/request_check.h"
#include "server/resolver/switch_state.h"

namespace fuseboard {
namespace {

// Characters, not bytes: every byte of UTF-8 that does not continue one begins one.
int CharacterCount(absl::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

absl::Status CheckLine(absl::string_view field, absl::string_view text, int max_characters) {
  if (absl::StripAsciiWhitespace(text).empty()) {
    return BadRequest(field, absl::StrCat("\"", absl::CHexEscape(text), "\", want a text"));
  }
  if (const int count = CharacterCount(text); count > max_characters) {
    return BadRequest(field, absl::StrCat(count, " characters, want at most ", max_characters));
  }
  if (std::ranges::any_of(text, absl::ascii_iscntrl)) {
    return BadRequest(field,
                      absl::StrCat("\"", absl::CHexEscape(text), "\", want no control characters"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMutation(const v1::Mutation& mutation) {
  FB_RETURN_IF_ERROR(CheckLine("mutation.reason", mutation.reason(), kMaxReasonCharacters));
  FB_RETURN_IF_ERROR(CheckLine("mutation.author", mutation.author(), kMaxAuthorCharacters));
  if (mutation.expected_revision() < 0) {
    return BadRequest("mutation.expected_revision",
                      absl::StrCat(mutation.expected_revision(), ", want at least 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckScope(const v1::Scope& scope) {
  switch (scope.kind()) {
    case v1::SCOPE_KIND_JOB:
      if (IsJobName(scope.name())) return absl::OkStatus();
      return BadRequest("scope.name",
                        absl::StrCat("\"", absl::CHexEscape(scope.name()),
                                     "\", want a job: 1 to 128 characters of [A-Za-z0-9._:/-]"));
    case v1::SCOPE_KIND_NODE:
    case v1::SCOPE_KIND_FLEET:
      if (scope.name().empty()) return absl::OkStatus();
      return BadRequest("scope.name", absl::StrCat("\"", absl::CHexEscape(scope.name()),
                                                   "\", want none with this scope"));
    case v1::SCOPE_KIND_GROUP:
      return WithReason(absl::UnimplementedError("scope.kind: SCOPE_KIND_GROUP is reserved, want "
                                                 "job, node or fleet"),
                        kReserved, {{"field", "scope.kind"}});
    default:
      return BadRequest("scope.kind", absl::StrCat(scope.kind(), ", want job, node or fleet"));
  }
}

absl::Status CheckTtl(double ttl_seconds) {
  if (std::isfinite(ttl_seconds) && ttl_seconds >= 0 && ttl_seconds <= kMaxTtlSeconds) {
    return absl::OkStatus();
  }
  return BadRequest("ttl_seconds", absl::StrCat(ttl_seconds, ", want 0 to ",
                                                static_cast<int64_t>(kMaxTtlSeconds)));
}

absl::Status CheckOperation(absl::string_view operation, const Snapshot& snapshot) {
  const std::vector<std::string> known = KnownOperations(snapshot);
  if (std::ranges::find(known, operation) != known.end()) return absl::OkStatus();
  return WithReason(absl::NotFoundError(
                        absl::StrCat("unknown kernel \"", absl::CHexEscape(operation.substr(0, 64)),
                                     "\", this node knows ", absl::StrJoin(known, ", "))),
                    kUnknownKernel, {{"kernel", operation}, {"known", absl::StrJoin(known, ",")}});
}

}  // namespace fuseboard
