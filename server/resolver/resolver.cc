#include "server/resolver/resolver.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/switches/switches.h"

namespace fuseboard {
namespace {

// An operation that some site is to run.
struct Active {
  v1::Rule rule = v1::RULE_UNSPECIFIED;  // The strongest that speaks for it.
  std::set<std::string> conflicts;
};

std::map<std::string, Active> ActiveOperations(const std::vector<SiteResolution>& sites) {
  std::map<std::string, Active> active;
  for (const SiteResolution& site : sites) {
    if (site.decision.kind() != v1::DECISION_KIND_KERNEL) continue;
    const auto [it, inserted] = active.try_emplace(site.decision.operation());
    Active& operation = it->second;
    if (inserted || site.decision.rule() < operation.rule) operation.rule = site.decision.rule();
    for (const Library* library : site.libraries) {
      if (library->manifest.kind() != v1::ARTIFACT_KIND_KERNEL) continue;
      operation.conflicts.insert(library->manifest.conflicts().begin(),
                                 library->manifest.conflicts().end());
    }
  }
  return active;
}

// Operations that must give way, each with the one it gives way to.
std::map<std::string, std::string> Losers(const std::map<std::string, Active>& active) {
  std::vector<std::string> order;
  order.reserve(active.size());
  for (const auto& [name, operation] : active) order.push_back(name);
  // Names are sorted already; a stable sort by rule keeps that order among equals.
  std::ranges::stable_sort(order, [&](const std::string& a, const std::string& b) {
    return active.at(a).rule < active.at(b).rule;
  });
  std::vector<std::string> kept;
  std::map<std::string, std::string> losers;
  for (const std::string& name : order) {
    const auto winner = std::ranges::find_if(kept, [&](const std::string& other) {
      return active.at(name).conflicts.contains(other) || active.at(other).conflicts.contains(name);
    });
    if (winner == kept.end()) {
      kept.push_back(name);
    } else {
      losers.emplace(name, *winner);
    }
  }
  return losers;
}

void GiveWay(const std::string& winner, SiteResolution& site) {
  v1::Decision& decision = site.decision;
  const std::string reason = absl::StrCat(decision.operation(), " conflicts with ", winner,
                                          ", which is on in the same process");
  decision.set_kind(v1::DECISION_KIND_NATIVE);
  decision.set_rule(v1::RULE_INCOMPATIBLE);
  decision.set_reason(reason);
  decision.clear_version();
  decision.clear_sha256();
  decision.clear_adapter();
  decision.clear_parameters();
  site.libraries.clear();
  for (v1::Candidate& candidate : site.candidates) {
    if (!candidate.accepted()) continue;
    candidate.set_accepted(false);
    candidate.set_rule(v1::RULE_INCOMPATIBLE);
    candidate.set_reason(reason);
  }
}

std::vector<SiteResolution> ResolveSites(const v1::ResolveRequest& request,
                                         const Snapshot& snapshot) {
  std::vector<SiteResolution> sites;
  sites.reserve(static_cast<size_t>(request.sites_size()));
  for (const v1::Site& site : request.sites()) {
    sites.push_back(ResolveSite(site, request, snapshot));
  }
  const std::map<std::string, std::string> losers = Losers(ActiveOperations(sites));
  for (SiteResolution& site : sites) {
    const auto it = losers.find(site.decision.operation());
    if (it != losers.end() && site.decision.kind() == v1::DECISION_KIND_KERNEL) {
      GiveWay(it->second, site);
    }
  }
  return sites;
}

// The CUPTI library also measures a model that runs native: that is the baseline. A process that
// opted out of everything gets nothing at all.
const Library* FindProfiler(const v1::ResolveRequest& request, const LibrarySet& libraries) {
  const auto& opt_out = request.opt_out();
  if (std::ranges::find(opt_out, kAllOperations) != opt_out.end()) return nullptr;
  for (const Library* profiler : libraries.OfKind(v1::ARTIFACT_KIND_PROFILER)) {
    const auto& devices = profiler->manifest.device_types();
    const bool fits =
        devices.empty() ||
        std::ranges::find(devices, request.environment().device_type()) != devices.end();
    if (profiler->error.empty() && fits) return profiler;
  }
  return nullptr;
}

v1::Plan MakePlan(const v1::ResolveRequest& request, const Snapshot& snapshot,
                  const std::vector<SiteResolution>& sites) {
  v1::Plan plan;
  plan.set_revision(snapshot.revision());
  plan.set_store_id(snapshot.store_id);
  std::set<const Library*> needed;
  for (const SiteResolution& site : sites) {
    *plan.add_decisions() = site.decision;
    needed.insert(site.libraries.begin(), site.libraries.end());
  }
  if (const Library* profiler = FindProfiler(request, *snapshot.libraries)) {
    needed.insert(profiler);
  }
  // The set's own order: kernels by name, the binding, the profiler.
  for (const Library& library : snapshot.libraries->libraries()) {
    if (needed.contains(&library)) *plan.add_artifacts() = ToArtifact(library);
  }
  return plan;
}

}  // namespace

v1::Plan ResolvePlan(const v1::ResolveRequest& request, const Snapshot& snapshot) {
  return MakePlan(request, snapshot, ResolveSites(request, snapshot));
}

v1::ExplainResponse ExplainPlan(const v1::ResolveRequest& request, const Snapshot& snapshot) {
  std::vector<SiteResolution> sites = ResolveSites(request, snapshot);
  v1::ExplainResponse response;
  *response.mutable_plan() = MakePlan(request, snapshot, sites);
  *response.mutable_request() = request;
  for (SiteResolution& site : sites) {
    v1::SiteExplanation* const explanation = response.add_sites();
    explanation->set_site_id(site.decision.site_id());
    for (v1::Candidate& candidate : site.candidates) {
      *explanation->add_candidates() = std::move(candidate);
    }
  }
  return response;
}

}  // namespace fuseboard
