#include "server/plans/plan_hub.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "server/resolver/resolver.h"

namespace fuseboard {

struct PlanWatch::Slot {
  std::shared_ptr<const v1::ResolveRequest> request;
  ProcessTable* processes = nullptr;

  absl::Mutex plan_mutex;
  std::shared_ptr<const v1::Plan> offered ABSL_GUARDED_BY(plan_mutex);  // Newest, taken or not.
  bool full ABSL_GUARDED_BY(plan_mutex) = false;                        // Not taken yet.

  // Apart from plan_mutex, so that `ready` may take the plan.
  absl::Mutex ready_mutex;
  std::function<void()> ready ABSL_GUARDED_BY(ready_mutex);

  void CallReady() ABSL_LOCKS_EXCLUDED(ready_mutex) {
    absl::MutexLock lock(&ready_mutex);
    if (ready != nullptr) ready();
  }
};

PlanWatch::PlanWatch(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

PlanWatch::~PlanWatch() {
  absl::MutexLock lock(&slot_->ready_mutex);
  slot_->ready = nullptr;
}

std::shared_ptr<const v1::Plan> PlanWatch::TakePlan() {
  std::shared_ptr<const v1::Plan> plan;
  {
    absl::MutexLock lock(&slot_->plan_mutex);
    if (!slot_->full) return nullptr;
    slot_->full = false;
    plan = slot_->offered;
  }
  slot_->processes->RecordSent(slot_->request->job().instance_id(), plan);
  return plan;
}

PlanHub::PlanHub(Config config) : config_(config) {
  config_.snapshots->SetListener([this] {
    absl::MutexLock lock(&wake_mutex_);
    wake_ = true;
  });
}

PlanHub::~PlanHub() {
  config_.snapshots->SetListener(nullptr);
  Stop();
}

void PlanHub::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void PlanHub::Stop() {
  {
    absl::MutexLock lock(&wake_mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void PlanHub::Loop() {
  while (true) {
    PublishNow();
    const absl::Duration until_expiry = config_.snapshots->NextExpiry() - config_.clock->Now();
    const absl::Duration pause =
        std::clamp(until_expiry, absl::ZeroDuration(), config_.poll_interval);
    absl::MutexLock lock(&wake_mutex_);
    wake_mutex_.AwaitWithTimeout(absl::Condition(
                                     +[](PlanHub* hub) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                          hub->wake_mutex_) { return hub->wake_ || hub->stop_; },
                                     this),
                                 pause);
    wake_ = false;
    if (stop_) return;
  }
}

std::unique_ptr<PlanWatch> PlanHub::Watch(const v1::WatchPlanRequest& request,
                                          std::function<void()> ready) {
  auto slot = std::make_shared<PlanWatch::Slot>();
  slot->request = std::make_shared<const v1::ResolveRequest>(request.request());
  slot->processes = config_.processes;
  {
    absl::MutexLock lock(&slot->ready_mutex);
    slot->ready = std::move(ready);
  }
  absl::MutexLock publish_lock(&publish_mutex_);
  const Snapshot snapshot = config_.snapshots->Refresh();
  auto plan = std::make_shared<const v1::Plan>(ResolvePlan(*slot->request, snapshot));
  const bool known = request.known_revision() == plan->revision() &&
                     request.known_store_id() == plan->store_id() &&
                     config_.snapshots->revision_stands();
  config_.processes->Register(slot->request, plan);
  {
    absl::MutexLock lock(&slot->plan_mutex);
    slot->offered = std::move(plan);
    slot->full = !known;
  }
  absl::MutexLock lock(&mutex_);
  slots_.push_back(slot);
  return std::unique_ptr<PlanWatch>(new PlanWatch(std::move(slot)));
}

void PlanHub::PublishNow() {
  absl::MutexLock publish_lock(&publish_mutex_);
  const Snapshot snapshot = config_.snapshots->Refresh();
  std::vector<std::shared_ptr<PlanWatch::Slot>> slots;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = slots_.begin(); it != slots_.end();) {
      if (std::shared_ptr<PlanWatch::Slot> slot = it->lock()) {
        slots.push_back(std::move(slot));
        ++it;
      } else {
        it = slots_.erase(it);
      }
    }
  }
  for (const auto& slot : slots) Offer(*slot, snapshot);
}

void PlanHub::Offer(PlanWatch::Slot& slot, const Snapshot& snapshot) {
  auto plan = std::make_shared<const v1::Plan>(ResolvePlan(*slot.request, snapshot));
  bool was_empty = false;
  {
    absl::MutexLock lock(&slot.plan_mutex);
    if (google::protobuf::util::MessageDifferencer::Equals(*plan, *slot.offered)) return;
    was_empty = !slot.full;
    slot.offered = std::move(plan);
    slot.full = true;
  }
  if (was_empty) slot.CallReady();
}

int PlanHub::WatchCount() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(),
                                        [](const auto& slot) { return !slot.expired(); }));
}

}  // namespace fuseboard
