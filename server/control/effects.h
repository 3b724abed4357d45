// What a change of the configuration does to the processes that run now. Pure.

#ifndef SERVER_CONTROL_EFFECTS_H_
#define SERVER_CONTROL_EFFECTS_H_

#include <memory>
#include <vector>

#include "fuseboard/v1/control.pb.h"
#include "fuseboard/v1/resolver.pb.h"
#include "server/resolver/snapshot.h"

namespace fuseboard {

// One Effect per site whose kind differs between the two snapshots, in order of `requests`.
std::vector<v1::Effect> ComputeEffects(
    const std::vector<std::shared_ptr<const v1::ResolveRequest>>& requests, const Snapshot& before,
    const Snapshot& after);

}  // namespace fuseboard

#endif  // SERVER_CONTROL_EFFECTS_H_
