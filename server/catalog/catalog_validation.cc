// What makes a catalogue valid. Everything is checked before any of it is used.

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/catalog/catalog.h"
#include "server/common/sha256.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

constexpr absl::string_view kFingerprintPrefix = "fb1:";

// One stem everywhere: also a file name, a metric label and part of a key of the store.
bool IsOperation(absl::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

bool IsFingerprint(absl::string_view text) {
  return text.substr(0, kFingerprintPrefix.size()) == kFingerprintPrefix &&
         IsSha256(text.substr(kFingerprintPrefix.size()));
}

absl::Status Invalid(absl::string_view where, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("catalogue entry ", where, ": ", message));
}

absl::Status CheckAttribute(absl::string_view id, const v1::AttributeCondition& condition) {
  if (condition.name().empty()) return Invalid(id, "an attribute condition has no name");
  for (const v1::AttributeValue& value : condition.any_of()) {
    if (value.value_case() == v1::AttributeValue::VALUE_NOT_SET) {
      return Invalid(id, absl::StrCat("attribute ", condition.name(), " has an empty value"));
    }
  }
  if (std::isnan(condition.min()) || std::isnan(condition.max()) ||
      (condition.has_min() && condition.has_max() && condition.min() > condition.max())) {
    return Invalid(id, absl::StrCat("attribute ", condition.name(), " has the range ",
                                    condition.min(), " to ", condition.max()));
  }
  return absl::OkStatus();
}

absl::Status CheckCondition(absl::string_view id, const v1::Condition& condition) {
  switch (condition.condition_case()) {
    case v1::Condition::kAttribute:
      return CheckAttribute(id, condition.attribute());
    case v1::Condition::kChild:
      if (condition.child().name().empty()) return Invalid(id, "a child condition has no name");
      if (condition.child().any_of().empty()) {
        return Invalid(id, absl::StrCat("child ", condition.child().name(), " allows no class"));
      }
      return absl::OkStatus();
    case v1::Condition::kParameter:
      if (condition.parameter().name().empty()) {
        return Invalid(id, "a parameter condition has no name");
      }
      if (!condition.parameter().present() &&
          (condition.parameter().has_ndim() || !condition.parameter().dtypes().empty())) {
        return Invalid(id, absl::StrCat("parameter ", condition.parameter().name(),
                                        " must be absent and has ndim or dtypes"));
      }
      return absl::OkStatus();
    case v1::Condition::CONDITION_NOT_SET:
      return Invalid(id, "a condition is empty, want attribute, child or parameter");
  }
  return Invalid(id, "a condition is unknown");
}

absl::Status CheckFallback(const v1::CatalogEntry& entry) {
  switch (entry.fallback()) {
    case v1::DECISION_KIND_UNSPECIFIED:  // Means native.
    case v1::DECISION_KIND_NATIVE:
      return absl::OkStatus();
    case v1::DECISION_KIND_COMPOSITE:
      if (entry.role() == "lm_head") return absl::OkStatus();
      return Invalid(entry.id(), absl::StrCat("fallback is DECISION_KIND_COMPOSITE with role \"",
                                              entry.role(), "\", want role \"lm_head\""));
    default:
      return Invalid(entry.id(),
                     absl::StrCat("fallback is ", v1::DecisionKind_Name(entry.fallback()),
                                  ", want DECISION_KIND_NATIVE or DECISION_KIND_COMPOSITE"));
  }
}

absl::Status CheckEntry(const v1::CatalogEntry& entry) {
  const std::string& id = entry.id();
  if (id.empty()) return Invalid("without id", "want an id");
  if (!IsOperation(entry.operation())) {
    return Invalid(
        id, absl::StrCat("operation is \"", entry.operation(), "\", want 1 to 64 of [a-z0-9_]"));
  }
  if (entry.role() != "module" && entry.role() != "lm_head") {
    return Invalid(id,
                   absl::StrCat("role is \"", entry.role(), "\", want \"module\" or \"lm_head\""));
  }
  if (entry.adapter().empty()) return Invalid(id, "adapter is empty");
  if (entry.fingerprints().empty()) return Invalid(id, "there is no fingerprint");
  absl::flat_hash_set<absl::string_view> seen;
  for (const v1::Fingerprint& fingerprint : entry.fingerprints()) {
    if (!IsFingerprint(fingerprint.value())) {
      return Invalid(id, absl::StrCat("fingerprint is \"", fingerprint.value(),
                                      "\", want \"fb1:\" and 64 lower-case hex digits"));
    }
    if (!seen.insert(fingerprint.value()).second) {
      return Invalid(id, absl::StrCat("fingerprint ", fingerprint.value(), " is there twice"));
    }
  }
  for (const v1::Condition& condition : entry.conditions()) {
    FB_RETURN_IF_ERROR(CheckCondition(id, condition));
  }
  return CheckFallback(entry);
}

absl::Status CheckModel(const v1::CatalogModel& model,
                        const absl::flat_hash_set<absl::string_view>& ids) {
  if (model.model_type().empty()) {
    return absl::InvalidArgumentError("catalogue: a model has no model_type");
  }
  for (const std::string& id : model.entries()) {
    if (!ids.contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("catalogue model ", model.model_type(), ": there is no entry \"", id, "\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateCatalog(const v1::CatalogFile& file) {
  absl::flat_hash_set<absl::string_view> ids;
  for (const v1::CatalogEntry& entry : file.entries()) {
    FB_RETURN_IF_ERROR(CheckEntry(entry));
    if (!ids.insert(entry.id()).second) return Invalid(entry.id(), "the id is there twice");
  }
  absl::flat_hash_set<absl::string_view> models;
  for (const v1::CatalogModel& model : file.models()) {
    FB_RETURN_IF_ERROR(CheckModel(model, ids));
    if (!models.insert(model.model_type()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("catalogue model ", model.model_type(), " is there twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseboard
