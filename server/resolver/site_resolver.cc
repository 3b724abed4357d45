// One site: which catalogue entry, which libraries, and what the levels of precedence say of it.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/resolver/compatibility.h"
#include "server/resolver/resolver.h"
#include "server/resolver/switch_state.h"

namespace fuseboard {
namespace {

// What is found out about a site before the levels are asked, in their order.
struct Question {
  const v1::Site& site;
  const v1::ResolveRequest& request;
  const Snapshot& snapshot;
  const v1::CatalogEntry* entry = nullptr;  // The first that matches, or none.
  std::string match_reason{};               // Why it matches, or why none does.
  std::vector<std::string> uses{};          // Kernels that a composite calls.
  const Library* binding = nullptr;
  std::vector<const Library*> kernels{};  // What would run.
  std::string obstacle{};                 // Why it cannot run here; empty if it can.
  std::vector<v1::Candidate> candidates{};
};

std::string OperationOf(const Question& question) {
  return question.entry == nullptr ? "" : question.entry->operation();
}

v1::Candidate Rejected(const v1::CatalogEntry& entry, absl::string_view version,
                       absl::string_view reason, v1::Rule rule) {
  v1::Candidate candidate;
  candidate.set_catalog_entry(entry.id());
  candidate.set_operation(entry.operation());
  candidate.set_version(std::string(version));
  candidate.set_reason(std::string(reason));
  candidate.set_rule(rule);
  return candidate;
}

// The nearest miss: an entry with this very code, whose condition is not met, says more than
// "unknown".
std::string NoMatchReason(const v1::Site& site, const std::vector<CatalogMatch>& matches) {
  if (site.fingerprint().empty()) {
    return absl::StrCat("the code has no fingerprint: ", site.fingerprint_error().empty()
                                                             ? "no reason given"
                                                             : site.fingerprint_error());
  }
  for (const CatalogMatch& match : matches) {
    if (match.fingerprint_matched) {
      return absl::StrCat("the code is that of ", match.entry->id(), ", but ", match.reason);
    }
  }
  return absl::StrCat("no catalogue entry for role ", site.role(), " has the fingerprint ",
                      site.fingerprint());
}

void FindEntry(Question& question) {
  const std::vector<CatalogMatch> matches = question.snapshot.catalog->Match(question.site);
  for (const CatalogMatch& match : matches) {
    if (!match.matched) {
      question.candidates.push_back(
          Rejected(*match.entry, "", match.reason, v1::RULE_INCOMPATIBLE));
    } else if (question.entry == nullptr) {
      question.entry = match.entry;
      question.match_reason = match.reason;
    } else {
      question.candidates.push_back(
          Rejected(*match.entry, "",
                   absl::StrCat("entry ", question.entry->id(), " matches too and comes first"),
                   v1::RULE_NATIVE));
    }
  }
  if (question.entry == nullptr) question.match_reason = NoMatchReason(question.site, matches);
}

// The newest version that can run here. Appends the others to the candidates.
const Library* FindKernel(const std::string& name, Question& question) {
  const std::vector<const Library*> versions = question.snapshot.libraries->Kernels(name);
  const Library* chosen = nullptr;
  std::string first_mismatch;
  for (const Library* kernel : versions) {
    std::string reason;
    v1::Rule rule = v1::RULE_INCOMPATIBLE;
    if (chosen != nullptr) {
      reason = absl::StrCat("kernel ", name, " ", chosen->manifest.version(), " is newer and fits");
      rule = v1::RULE_NATIVE;
    } else {
      reason = KernelMismatch(*kernel, question.site, question.request.environment());
      if (reason.empty()) {
        chosen = kernel;
        continue;
      }
      if (first_mismatch.empty()) first_mismatch = reason;
    }
    question.candidates.push_back(
        Rejected(*question.entry, kernel->manifest.version(), reason, rule));
  }
  if (chosen == nullptr && question.obstacle.empty()) {
    question.obstacle = versions.empty()
                            ? absl::StrCat("there is no library of kernel ", name, " on this node")
                            : first_mismatch;
  }
  return chosen;
}

void FindLibraries(Question& question) {
  const LibrarySet& libraries = *question.snapshot.libraries;
  const std::string& operation = question.entry->operation();
  question.uses = UsedKernels(operation, libraries);
  question.binding = SelectBinding(libraries, question.request.environment(), &question.obstacle);
  const bool composite = libraries.IsComposite(operation);
  if (composite && question.binding != nullptr) {
    const auto& composites = question.binding->manifest.composites();
    if (std::ranges::find(composites, operation) == composites.end()) {
      question.obstacle =
          absl::StrCat("binding ", question.binding->manifest.name(), " ",
                       question.binding->manifest.version(), " does not have ", operation);
      question.binding = nullptr;
    }
  }
  const std::vector<std::string> names =
      composite ? question.uses : std::vector<std::string>{operation};
  for (const std::string& name : names) {
    if (const Library* kernel = FindKernel(name, question)) question.kernels.push_back(kernel);
  }
}

// Level 1.
std::optional<Verdict> FromOptOut(const Question& question) {
  const auto& opt_out = question.request.opt_out();
  const auto names = [&](absl::string_view what) {
    return std::ranges::find(opt_out, what) != opt_out.end();
  };
  const std::string operation = OperationOf(question);
  if (names(kAllOperations)) {
    return Verdict{false, v1::RULE_OPT_OUT, "the process opted out of every kernel"};
  }
  if (operation.empty() || !names(operation)) return std::nullopt;
  return Verdict{false, v1::RULE_OPT_OUT, absl::StrCat("the process opted out of ", operation)};
}

// Level 2. Without an entry the operation is empty, and only a kill of everything can hit.
std::optional<Verdict> FromKill(const Question& question) {
  return FindKill(OperationOf(question), question.uses, question.request.job().name(),
                  question.snapshot);
}

// Level 3. Conflicts between operations belong here too, but need all sites: see resolver.cc.
std::optional<Verdict> FromIncompatibility(const Question& question) {
  if (question.entry == nullptr) {
    return Verdict{false, v1::RULE_INCOMPATIBLE, question.match_reason};
  }
  if (question.obstacle.empty()) return std::nullopt;
  return Verdict{false, v1::RULE_INCOMPATIBLE, question.obstacle};
}

// Level 4, after a crash of this kernel: nothing is quarantined yet.
std::optional<Verdict> FromQuarantine(const Question& /*question*/) { return std::nullopt; }

// Level 5, after repeated faults of this kernel in this job: there are no breakers yet.
std::optional<Verdict> FromBreaker(const Question& /*question*/) { return std::nullopt; }

// Levels 6 to 10. REQUIRES: there is an entry.
std::optional<Verdict> FromPreference(const Question& question) {
  return FindPreference(question.entry->operation(), question.entry->default_enabled(),
                        question.request.job().name(), question.snapshot);
}

Verdict Decide(const Question& question) {
  for (const auto level :
       {FromOptOut, FromKill, FromIncompatibility, FromQuarantine, FromBreaker, FromPreference}) {
    if (std::optional<Verdict> verdict = level(question)) return *std::move(verdict);
  }
  return {false, v1::RULE_NATIVE, "nothing speaks for a kernel"};
}

v1::DecisionKind KindOf(const Question& question, const Verdict& verdict) {
  if (verdict.enabled) return v1::DECISION_KIND_KERNEL;
  const bool has_composite = question.entry != nullptr &&
                             question.entry->fallback() == v1::DECISION_KIND_COMPOSITE &&
                             question.binding != nullptr;
  const bool wants_native =
      verdict.kills_all || verdict.rule == v1::RULE_OPT_OUT || verdict.rule == v1::RULE_NATIVE;
  return has_composite && !wants_native ? v1::DECISION_KIND_COMPOSITE : v1::DECISION_KIND_NATIVE;
}

std::string ReasonOf(const Question& question, const Verdict& verdict, v1::DecisionKind kind) {
  switch (kind) {
    case v1::DECISION_KIND_KERNEL:
      return absl::StrCat(verdict.reason, "; ", question.match_reason);
    case v1::DECISION_KIND_COMPOSITE:
      return absl::StrCat(verdict.reason, "; the composite keeps the peak memory");
    default:
      return verdict.reason;
  }
}

SiteResolution Resolved(Question question, const Verdict& verdict) {
  SiteResolution resolution;
  v1::Decision& decision = resolution.decision;
  decision.set_site_id(question.site.site_id());
  decision.set_kind(KindOf(question, verdict));
  decision.set_operation(OperationOf(question));
  decision.set_reason(ReasonOf(question, verdict, decision.kind()));
  decision.set_rule(verdict.rule);
  resolution.candidates = std::move(question.candidates);
  if (question.entry == nullptr) return resolution;
  decision.set_catalog_entry(question.entry->id());
  const bool kernel = decision.kind() == v1::DECISION_KIND_KERNEL;
  if (kernel) resolution.libraries = question.kernels;
  if (decision.kind() != v1::DECISION_KIND_NATIVE) {
    resolution.libraries.push_back(question.binding);
    decision.set_adapter(question.entry->adapter());
    *decision.mutable_parameters() = question.entry->parameters();
  }
  // A composite that calls no kernel library is the binding's own.
  const Library* const main = kernel ? resolution.libraries.front() : nullptr;
  if (main != nullptr) {
    decision.set_version(main->manifest.version());
    decision.set_sha256(main->manifest.sha256());
  }
  v1::Candidate chosen = Rejected(
      *question.entry, question.kernels.empty() ? "" : question.kernels.front()->manifest.version(),
      decision.reason(), verdict.rule);
  chosen.set_accepted(kernel);
  resolution.candidates.push_back(std::move(chosen));
  return resolution;
}

}  // namespace

SiteResolution ResolveSite(const v1::Site& site, const v1::ResolveRequest& request,
                           const Snapshot& snapshot) {
  Question question{.site = site, .request = request, .snapshot = snapshot};
  FindEntry(question);
  if (question.entry != nullptr) FindLibraries(question);
  const Verdict verdict = Decide(question);
  return Resolved(std::move(question), verdict);
}

}  // namespace fuseboard
