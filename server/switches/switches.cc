#include "server/switches/switches.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

constexpr absl::string_view kOverridePrefix = "override/";
constexpr absl::string_view kKillPrefix = "kill/";
constexpr absl::string_view kInputsPrefix = "node/";

std::string ScopeKey(const v1::Scope& scope) {
  switch (scope.kind()) {
    case v1::SCOPE_KIND_JOB:
      return absl::StrCat("job/", scope.name());
    case v1::SCOPE_KIND_GROUP:
      return absl::StrCat("group/", scope.name());
    case v1::SCOPE_KIND_FLEET:
      return "fleet";
    default:
      return "node";
  }
}

template <typename Record>
absl::StatusOr<Record> Decode(const StoreEntry& entry) {
  Record record;
  if (!record.ParseFromString(entry.value)) {
    return absl::DataLossError(
        absl::StrCat("store: the value of ", entry.key, " is no ", Record::descriptor()->name()));
  }
  // Known only once it was written.
  record.set_revision(entry.revision);
  return record;
}

std::string UntilText(int64_t expires_at_us) {
  if (expires_at_us == 0) return "";
  return absl::StrCat(" until ",
                      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixMicros(expires_at_us),
                                       absl::UTCTimeZone()));
}

template <typename Record>
std::string AuditOfExpiry(const Record& record, const std::string& before, absl::Time now) {
  v1::AuditRecord audit;
  audit.set_at_us(absl::ToUnixMicros(now));
  audit.set_action("Expire");
  audit.set_operation(record.operation());
  *audit.mutable_scope() = record.scope();
  audit.set_author("fuseboardd");
  audit.set_reason("it has expired");
  audit.set_before(before);
  return audit.SerializeAsString();
}

// Deletes one expired record. Someone else may have deleted or renewed it meanwhile: then there is
// nothing to do, and the next look at the store decides anew.
template <typename Record>
absl::StatusOr<int> Expire(ConfigStore& store, const std::string& key, const Record& record,
                           const std::string& before, absl::Time now) {
  FB_ASSIGN_OR_RETURN(const StoreListing listing, store.List(key));
  const bool unchanged =
      std::any_of(listing.entries.begin(), listing.entries.end(), [&](const StoreEntry& entry) {
        return entry.key == key && entry.revision == record.revision();
      });
  if (!unchanged) return 0;
  const absl::StatusOr<int64_t> revision =
      store.Delete(key, {listing.revision, AuditOfExpiry(record, before, now)});
  if (absl::IsAborted(revision.status()) || absl::IsNotFound(revision.status())) return 0;
  FB_RETURN_IF_ERROR(revision.status());
  return 1;
}

}  // namespace

std::string OverrideKey(absl::string_view operation, const v1::Scope& scope) {
  return absl::StrCat(kOverridePrefix, operation, "/", ScopeKey(scope));
}

std::string KillKey(absl::string_view operation, const v1::Scope& scope) {
  return absl::StrCat(kKillPrefix, operation, "/", ScopeKey(scope));
}

std::string NodeInputsKey(absl::string_view node) {
  return absl::StrCat(kInputsPrefix, node, "/inputs");
}

absl::StatusOr<Switches> LoadSwitches(ConfigStore& store, absl::string_view node) {
  FB_ASSIGN_OR_RETURN(const StoreListing listing, store.List(""));
  Switches switches;
  switches.revision = listing.revision;
  const std::string inputs_key = NodeInputsKey(node);
  for (const StoreEntry& entry : listing.entries) {
    if (absl::StartsWith(entry.key, kOverridePrefix)) {
      FB_ASSIGN_OR_RETURN(v1::Override record, Decode<v1::Override>(entry));
      switches.overrides.push_back(std::move(record));
    } else if (absl::StartsWith(entry.key, kKillPrefix)) {
      FB_ASSIGN_OR_RETURN(v1::Kill record, Decode<v1::Kill>(entry));
      switches.kills.push_back(std::move(record));
    } else if (entry.key == inputs_key) {
      switches.node_inputs = entry.value;
    }
  }
  return switches;
}

bool IsExpired(int64_t expires_at_us, absl::Time now) {
  return expires_at_us != 0 && absl::FromUnixMicros(expires_at_us) <= now;
}

absl::Time NextExpiry(const Switches& switches, absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  const auto consider = [&](int64_t expires_at_us) {
    if (expires_at_us == 0 || IsExpired(expires_at_us, now)) return;
    next = std::min(next, absl::FromUnixMicros(expires_at_us));
  };
  for (const v1::Override& record : switches.overrides) consider(record.expires_at_us());
  for (const v1::Kill& kill : switches.kills) consider(kill.expires_at_us());
  return next;
}

absl::StatusOr<int> SweepExpired(ConfigStore& store, const Switches& switches, absl::Time now) {
  int swept = 0;
  for (const v1::Override& record : switches.overrides) {
    if (!IsExpired(record.expires_at_us(), now)) continue;
    FB_ASSIGN_OR_RETURN(const int count,
                        Expire(store, OverrideKey(record.operation(), record.scope()), record,
                               OverrideText(record), now));
    swept += count;
  }
  for (const v1::Kill& kill : switches.kills) {
    if (!IsExpired(kill.expires_at_us(), now)) continue;
    FB_ASSIGN_OR_RETURN(const int count, Expire(store, KillKey(kill.operation(), kill.scope()),
                                                kill, KillText(kill), now));
    swept += count;
  }
  return swept;
}

std::string ScopeText(const v1::Scope& scope) {
  switch (scope.kind()) {
    case v1::SCOPE_KIND_JOB:
      return absl::StrCat("job ", scope.name());
    case v1::SCOPE_KIND_GROUP:
      return absl::StrCat("group ", scope.name());
    case v1::SCOPE_KIND_FLEET:
      return "fleet";
    default:
      return "node";
  }
}

std::string OverrideText(const v1::Override& override_record) {
  return absl::StrCat(override_record.enabled() ? "on" : "off", " at ",
                      ScopeText(override_record.scope()),
                      UntilText(override_record.expires_at_us()), ", by ", override_record.author(),
                      ": ", override_record.reason());
}

std::string KillText(const v1::Kill& kill) {
  return absl::StrCat("killed at ", ScopeText(kill.scope()), UntilText(kill.expires_at_us()),
                      ", by ", kill.author(), ": ", kill.reason());
}

}  // namespace fuseboard
