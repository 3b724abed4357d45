#include "server/resolver/switch_state.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

// The kernel that an entry of a manifest's `uses` names, if it is for `composite`.
std::optional<std::string> KernelUsedBy(absl::string_view composite, const std::string& entry) {
  const size_t colon = entry.find(':');
  if (colon == std::string::npos) return entry;
  if (absl::string_view(entry).substr(0, colon) != composite) return std::nullopt;
  return entry.substr(colon + 1);
}

bool Covers(const v1::Scope& scope, absl::string_view job_name) {
  switch (scope.kind()) {
    case v1::SCOPE_KIND_JOB:
      return scope.name() == job_name;
    case v1::SCOPE_KIND_NODE:
    case v1::SCOPE_KIND_FLEET:
      return true;
    default:  // A group, of which this release knows no members.
      return false;
  }
}

const v1::Kill* FindKillOf(absl::string_view operation, absl::string_view job_name,
                           const Snapshot& snapshot) {
  for (const v1::Kill& kill : snapshot.switches->kills) {
    if (kill.operation() == operation && !IsExpired(kill.expires_at_us(), snapshot.now) &&
        Covers(kill.scope(), job_name)) {
      return &kill;
    }
  }
  return nullptr;
}

// Why `name` (an operation or "*") is killed, or empty.
std::string KillReason(absl::string_view name, absl::string_view job_name,
                       const Snapshot& snapshot) {
  const std::string what = name == kAllOperations ? "every kernel" : absl::StrCat("kernel ", name);
  const std::vector<std::string>& denied = snapshot.deny->operations;
  if (std::ranges::find(denied, name) != denied.end()) {
    return absl::StrCat(what, " is denied on this node by ", snapshot.deny->path);
  }
  const v1::Kill* const kill = FindKillOf(name, job_name, snapshot);
  return kill == nullptr ? "" : absl::StrCat(what, " is ", KillText(*kill));
}

// Narrow scopes come first in the enum: job, node, group, fleet.
const v1::Override* FindOverride(absl::string_view operation, absl::string_view job_name,
                                 const Snapshot& snapshot) {
  const v1::Override* best = nullptr;
  for (const v1::Override& record : snapshot.switches->overrides) {
    if (record.operation() != operation || IsExpired(record.expires_at_us(), snapshot.now) ||
        !Covers(record.scope(), job_name)) {
      continue;
    }
    if (best == nullptr || record.scope().kind() < best->scope().kind()) best = &record;
  }
  return best;
}

struct PreferenceQuestion {
  absl::string_view operation;
  bool default_enabled;
  absl::string_view job_name;
  const Snapshot& snapshot;
};
using PreferenceStep = std::optional<Verdict> (*)(const PreferenceQuestion&);

// Level 6.
std::optional<Verdict> FromOverride(const PreferenceQuestion& question) {
  const v1::Override* const record =
      FindOverride(question.operation, question.job_name, question.snapshot);
  if (record == nullptr) return std::nullopt;
  return Verdict{record->enabled(), v1::RULE_OVERRIDE,
                 absl::StrCat("switched ", OverrideText(*record))};
}

// Level 7, a share of the jobs by a hash of their name: there are no rollout records yet, so this
// level has nothing to say.
std::optional<Verdict> FromRollout(const PreferenceQuestion& /*question*/) { return std::nullopt; }

// Level 8, on only where calibration measured a gain: there are no calibrations yet.
std::optional<Verdict> FromPolicy(const PreferenceQuestion& /*question*/) { return std::nullopt; }

// Level 9.
std::optional<Verdict> FromCatalogue(const PreferenceQuestion& question) {
  if (!question.default_enabled) return std::nullopt;
  return Verdict{true, v1::RULE_CATALOGUE, "on by default"};
}

}  // namespace

std::optional<Verdict> FindKill(absl::string_view operation, const std::vector<std::string>& uses,
                                absl::string_view job_name, const Snapshot& snapshot) {
  Verdict verdict{false, v1::RULE_KILL, KillReason(kAllOperations, job_name, snapshot), true};
  if (!verdict.reason.empty()) return verdict;
  verdict.kills_all = false;
  verdict.reason = KillReason(operation, job_name, snapshot);
  if (!verdict.reason.empty()) return verdict;
  for (const std::string& used : uses) {
    const std::string reason = KillReason(used, job_name, snapshot);
    if (reason.empty()) continue;
    verdict.reason = absl::StrCat(operation, " uses ", used, ", and ", reason);
    return verdict;
  }
  return std::nullopt;
}

Verdict FindPreference(absl::string_view operation, bool default_enabled,
                       absl::string_view job_name, const Snapshot& snapshot) {
  const PreferenceQuestion question{operation, default_enabled, job_name, snapshot};
  for (const PreferenceStep step : {FromOverride, FromRollout, FromPolicy, FromCatalogue}) {
    if (std::optional<Verdict> verdict = step(question)) return *std::move(verdict);
  }
  return {false, v1::RULE_NATIVE, "off by default"};
}

std::vector<std::string> KnownOperations(const Snapshot& snapshot) {
  std::vector<std::string> operations = snapshot.libraries->Operations();
  const std::vector<std::string>& catalogued = snapshot.catalog->operations();
  operations.insert(operations.end(), catalogued.begin(), catalogued.end());
  std::ranges::sort(operations);
  operations.erase(std::ranges::unique(operations).begin(), operations.end());
  return operations;
}

std::vector<std::string> UsedKernels(absl::string_view operation, const LibrarySet& libraries) {
  std::vector<std::string> used;
  for (const Library* binding : libraries.OfKind(v1::ARTIFACT_KIND_BINDING)) {
    const v1::Manifest& manifest = binding->manifest;
    if (std::find(manifest.composites().begin(), manifest.composites().end(), operation) ==
        manifest.composites().end()) {
      continue;
    }
    for (const std::string& entry : manifest.uses()) {
      if (auto kernel = KernelUsedBy(operation, entry)) used.push_back(*std::move(kernel));
    }
  }
  std::ranges::sort(used);
  used.erase(std::ranges::unique(used).begin(), used.end());
  return used;
}

}  // namespace fuseboard
