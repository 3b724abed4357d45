// The resolver: which kernel for which site, or native, with the reason. Pure functions of a
// request and a snapshot: the same inputs give the same plan on every node.
//
// Levels of precedence, first hit decides (proto Rule has their numbers):
//    1 the process's own opt-out         6 override: job, node, fleet
//    2 kill at any scope, deny file      7 rollout            (reserved: never decides)
//    3 incompatible                      8 policy             (reserved: never decides)
//    4 quarantine (reserved)             9 catalogue default
//    5 breaker    (reserved)            10 native
//
// What a site gets when it does not get its kernel: the composite, if its catalogue entry has that
// as its fallback, the binding can be loaded and the operation was switched off or its kernel
// library cannot be used here; native in all other cases (opt-out, kill of "*", no catalogue entry,
// no binding, a conflict, off by default).
//
// Thread-safe, like all pure functions. Knows no store, no clock and no file.

#ifndef SERVER_RESOLVER_RESOLVER_H_
#define SERVER_RESOLVER_RESOLVER_H_

#include <string>
#include <vector>

#include "fuseboard/v1/plan.pb.h"
#include "fuseboard/v1/resolver.pb.h"
#include "server/registry/library_set.h"
#include "server/resolver/snapshot.h"

namespace fuseboard {

struct SiteResolution {
  v1::Decision decision;
  // All that was looked at, in order of precedence; at most one is accepted.
  std::vector<v1::Candidate> candidates;
  // What the decision needs; owned by the snapshot's LibrarySet. Kernels, then the binding.
  std::vector<const Library*> libraries;
};

// Resolves one site by itself; conflicts between sites are ResolvePlan's.
SiteResolution ResolveSite(const v1::Site& site, const v1::ResolveRequest& request,
                           const Snapshot& snapshot);

// Resolves all sites, settles conflicts (the side whose rule has the lower number stays; of equals,
// the one whose name comes first) and lists the artifacts, each once: kernels by name, the binding,
// the profiler. REQUIRES: CheckRequest(request) is OK.
v1::Plan ResolvePlan(const v1::ResolveRequest& request, const Snapshot& snapshot);

// As ResolvePlan, with every candidate. `request` is copied into the answer.
v1::ExplainResponse ExplainPlan(const v1::ResolveRequest& request, const Snapshot& snapshot);

}  // namespace fuseboard

#endif  // SERVER_RESOLVER_RESOLVER_H_
