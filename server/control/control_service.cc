#include "server/control/control_service.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "server/common/status_macros.h"
#include "server/control/effects.h"
#include "server/control/mutation_check.h"
#include "server/switches/switches.h"

namespace fuseboard {
namespace {

constexpr int kMaxAttempts = 16;
constexpr int kDefaultAuditLimit = 100;
constexpr int kMaxAuditLimit = 1000;

// The two kinds of records, so that Set and Delete are written once.
struct OverrideKind {
  using Record = v1::Override;
  static std::vector<Record>& Records(Switches& switches) { return switches.overrides; }
  static std::string Key(absl::string_view operation, const v1::Scope& scope) {
    return OverrideKey(operation, scope);
  }
  static std::string Text(const Record& record) { return OverrideText(record); }
};
struct KillKind {
  using Record = v1::Kill;
  static std::vector<Record>& Records(Switches& switches) { return switches.kills; }
  static std::string Key(absl::string_view operation, const v1::Scope& scope) {
    return KillKey(operation, scope);
  }
  static std::string Text(const Record& record) { return KillText(record); }
};

// Takes the record of `key` out of `switches`; nullopt if there is none in force.
template <typename Kind>
std::optional<typename Kind::Record> TakeRecord(const std::string& key, absl::Time now,
                                                Switches& switches) {
  auto& records = Kind::Records(switches);
  const auto it = std::find_if(records.begin(), records.end(), [&](const auto& record) {
    return Kind::Key(record.operation(), record.scope()) == key;
  });
  if (it == records.end()) return std::nullopt;
  typename Kind::Record record = std::move(*it);
  records.erase(it);
  if (IsExpired(record.expires_at_us(), now)) return std::nullopt;
  return record;
}

template <typename Request>
int64_t ExpiryOf(const Request& request, absl::Time now) {
  if (request.ttl_seconds() == 0) return 0;
  return absl::ToUnixMicros(now + absl::Seconds(request.ttl_seconds()));
}

template <typename Record, typename Request>
Record MakeRecord(const Request& request, absl::Time now) {
  Record record;
  record.set_operation(request.operation());
  *record.mutable_scope() = request.scope();
  record.set_reason(request.mutation().reason());
  record.set_author(request.mutation().author());
  record.set_created_at_us(absl::ToUnixMicros(now));
  record.set_expires_at_us(ExpiryOf(request, now));
  return record;
}

}  // namespace

// One mutation, whatever its kind.
struct ControlService::Change {
  std::string action;
  std::string operation;
  v1::Scope scope;
  std::string key;
  std::string value;  // Empty: delete.
  std::string after;  // For the audit record.
  // Reason of NotFound if there is nothing to delete.
  absl::string_view missing;
  // Makes the change in a copy of the switches and returns what was there, as text; empty: nothing.
  std::function<std::string(Switches&, absl::Time)> edit;
};

template <typename Kind, typename Record>
ControlService::Change ControlService::SetChange(absl::string_view action, const Record& record) {
  Change change;
  change.action = std::string(action);
  change.operation = record.operation();
  change.scope = record.scope();
  change.key = Kind::Key(record.operation(), record.scope());
  change.value = record.SerializeAsString();
  change.after = Kind::Text(record);
  change.edit = [key = change.key, record](Switches& switches, absl::Time now) {
    const auto was = TakeRecord<Kind>(key, now, switches);
    Kind::Records(switches).push_back(record);
    return was.has_value() ? Kind::Text(*was) : "";
  };
  return change;
}

template <typename Kind, typename Request>
ControlService::Change ControlService::DeleteChange(absl::string_view action,
                                                    const Request& request,
                                                    absl::string_view missing) {
  Change change;
  change.action = std::string(action);
  change.operation = request.operation();
  change.scope = request.scope();
  change.key = Kind::Key(request.operation(), request.scope());
  change.missing = missing;
  change.edit = [key = change.key](Switches& switches, absl::Time now) {
    const auto was = TakeRecord<Kind>(key, now, switches);
    return was.has_value() ? Kind::Text(*was) : "";
  };
  return change;
}

absl::StatusOr<v1::MutationResponse> ControlService::Apply(const v1::Mutation& mutation,
                                                           const Change& change) {
  for (int attempt = 1;; ++attempt) {
    const Snapshot before = config_.snapshots->Current();
    const int64_t expected = mutation.expected_revision();
    if (expected != 0 && expected != before.revision()) {
      return RevisionMismatch(expected, before.revision());
    }
    auto edited = std::make_shared<Switches>(*before.switches);
    const std::string was = change.edit(*edited, before.now);
    const bool deletes = change.value.empty();
    if (deletes && was.empty()) {
      return WithReason(absl::NotFoundError(absl::StrCat("nothing is set for ", change.operation,
                                                         " at ", ScopeText(change.scope))),
                        change.missing, {{"kernel", change.operation}});
    }
    Snapshot after = before;
    after.switches = std::move(edited);
    v1::MutationResponse response;
    for (v1::Effect& effect : ComputeEffects(config_.processes->LiveRequests(), before, after)) {
      *response.add_effects() = std::move(effect);
    }
    response.set_revision(before.revision());
    if (mutation.dry_run()) return response;

    v1::AuditRecord audit;
    audit.set_at_us(absl::ToUnixMicros(before.now));
    audit.set_action(change.action);
    audit.set_operation(change.operation);
    *audit.mutable_scope() = change.scope;
    audit.set_author(mutation.author());
    audit.set_reason(mutation.reason());
    audit.set_before(was);
    audit.set_after(change.after);
    const StoreCommit commit{before.revision(), audit.SerializeAsString()};
    const absl::StatusOr<int64_t> written =
        deletes ? config_.store->Delete(change.key, commit)
                : config_.store->Put(change.key, change.value, commit);
    // The store moved meanwhile. Only a caller who named a revision must hear of it.
    const bool retry = absl::IsAborted(written.status()) && expected == 0;
    if (retry && attempt < kMaxAttempts) continue;
    FB_RETURN_IF_ERROR(written.status());
    response.set_revision(*written);
    return response;
  }
}

absl::StatusOr<v1::MutationResponse> ControlService::SetOverride(
    const v1::SetOverrideRequest& request) {
  FB_RETURN_IF_ERROR(CheckMutation(request.mutation()));
  FB_RETURN_IF_ERROR(CheckScope(request.scope()));
  FB_RETURN_IF_ERROR(CheckTtl(request.ttl_seconds()));
  if (request.operation() == kAllOperations) {
    return BadRequest("operation", "\"*\", want one kernel (a kill may name all)");
  }
  FB_RETURN_IF_ERROR(CheckOperation(request.operation(), config_.snapshots->Current()));
  auto record = MakeRecord<v1::Override>(request, config_.clock->Now());
  record.set_enabled(request.enabled());
  return Apply(request.mutation(), SetChange<OverrideKind>("SetOverride", record));
}

absl::StatusOr<v1::MutationResponse> ControlService::SetKill(const v1::SetKillRequest& request) {
  FB_RETURN_IF_ERROR(CheckMutation(request.mutation()));
  FB_RETURN_IF_ERROR(CheckScope(request.scope()));
  FB_RETURN_IF_ERROR(CheckTtl(request.ttl_seconds()));
  if (request.operation() != kAllOperations) {
    FB_RETURN_IF_ERROR(CheckOperation(request.operation(), config_.snapshots->Current()));
  }
  const auto record = MakeRecord<v1::Kill>(request, config_.clock->Now());
  return Apply(request.mutation(), SetChange<KillKind>("SetKill", record));
}

absl::StatusOr<v1::MutationResponse> ControlService::DeleteOverride(
    const v1::DeleteOverrideRequest& request) {
  FB_RETURN_IF_ERROR(CheckMutation(request.mutation()));
  FB_RETURN_IF_ERROR(CheckScope(request.scope()));
  return Apply(request.mutation(),
               DeleteChange<OverrideKind>("DeleteOverride", request, kNoSuchOverride));
}

absl::StatusOr<v1::MutationResponse> ControlService::DeleteKill(
    const v1::DeleteKillRequest& request) {
  FB_RETURN_IF_ERROR(CheckMutation(request.mutation()));
  FB_RETURN_IF_ERROR(CheckScope(request.scope()));
  return Apply(request.mutation(), DeleteChange<KillKind>("DeleteKill", request, kNoSuchKill));
}

absl::StatusOr<v1::ListOverridesResponse> ControlService::ListOverrides() {
  const Snapshot snapshot = config_.snapshots->Current();
  v1::ListOverridesResponse response;
  response.set_revision(snapshot.revision());
  for (const v1::Override& record : snapshot.switches->overrides) {
    if (!IsExpired(record.expires_at_us(), snapshot.now)) *response.add_overrides() = record;
  }
  return response;
}

absl::StatusOr<v1::ListKillsResponse> ControlService::ListKills() {
  const Snapshot snapshot = config_.snapshots->Current();
  v1::ListKillsResponse response;
  response.set_revision(snapshot.revision());
  for (const v1::Kill& kill : snapshot.switches->kills) {
    if (!IsExpired(kill.expires_at_us(), snapshot.now)) *response.add_kills() = kill;
  }
  return response;
}

absl::StatusOr<v1::ListAuditResponse> ControlService::ListAudit(
    const v1::ListAuditRequest& request) {
  if (request.limit() < 0 || request.limit() > kMaxAuditLimit) {
    return BadRequest("limit", absl::StrCat(request.limit(), ", want 0 to ", kMaxAuditLimit));
  }
  if (request.before_revision() < 0) {
    return BadRequest("before_revision",
                      absl::StrCat(request.before_revision(), ", want at least 0"));
  }
  FB_ASSIGN_OR_RETURN(
      const std::vector<StoreAudit> records,
      config_.store->ListAudit(request.before_revision(),
                               request.limit() == 0 ? kDefaultAuditLimit : request.limit()));
  v1::ListAuditResponse response;
  for (const StoreAudit& stored : records) {
    v1::AuditRecord& record = *response.add_records();
    if (!record.ParseFromString(stored.record)) {
      return absl::DataLossError(
          absl::StrCat("store: the audit record of revision ", stored.revision, " is unreadable"));
    }
    record.set_revision(stored.revision);
  }
  return response;
}

}  // namespace fuseboard
