#include "server/control/effects.h"

#include "server/resolver/resolver.h"

namespace fuseboard {

std::vector<v1::Effect> ComputeEffects(
    const std::vector<std::shared_ptr<const v1::ResolveRequest>>& requests, const Snapshot& before,
    const Snapshot& after) {
  std::vector<v1::Effect> effects;
  for (const auto& request : requests) {
    const v1::Plan old_plan = ResolvePlan(*request, before);
    const v1::Plan new_plan = ResolvePlan(*request, after);
    for (int i = 0; i < request->sites_size(); ++i) {
      const v1::Decision& old_decision = old_plan.decisions(i);
      const v1::Decision& new_decision = new_plan.decisions(i);
      if (old_decision.kind() == new_decision.kind()) continue;
      v1::Effect& effect = effects.emplace_back();
      effect.set_job_name(request->job().name());
      effect.set_rank(request->job().rank());
      effect.set_instance_id(request->job().instance_id());
      effect.set_site_id(request->sites(i).site_id());
      effect.set_count(request->sites(i).count());
      effect.set_before(old_decision.kind());
      effect.set_after(new_decision.kind());
      effect.set_operation(new_decision.operation());
    }
  }
  return effects;
}

}  // namespace fuseboard
