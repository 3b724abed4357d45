// The PlanHub tells watching processes their plan, now and whenever it changes.
//
// Each watch has one slot. A plan that is not taken before the next one comes is replaced by it, so
// a slow watcher gets the newest plan and never a queue; every plan is whole. One thread of the hub
// recomputes when the store changes, when an override or kill expires, and every `poll_interval`
// for what has no notification (deny file, libraries). It knows nothing of sockets. Thread-safe.

#ifndef SERVER_PLANS_PLAN_HUB_H_
#define SERVER_PLANS_PLAN_HUB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "fuseboard/v1/plan.pb.h"
#include "fuseboard/v1/resolver.pb.h"
#include "server/jobs/process_table.h"
#include "server/plans/snapshot_source.h"

namespace fuseboard {

// One watching process. Destroying it ends the watch: `ready` neither runs nor will run after that.
// Must not be destroyed inside `ready`, nor while holding a lock that `ready` takes.
class PlanWatch {
 public:
  ~PlanWatch();
  PlanWatch(const PlanWatch&) = delete;
  PlanWatch& operator=(const PlanWatch&) = delete;

  // The newest plan if it was not taken yet, else nullptr. May be called inside `ready`. Counts as
  // sent: the ProcessTable is told.
  std::shared_ptr<const v1::Plan> TakePlan();

 private:
  friend class PlanHub;
  struct Slot;
  explicit PlanWatch(std::shared_ptr<Slot> slot);

  const std::shared_ptr<Slot> slot_;
};

class PlanHub {
 public:
  // All pointers outlive the hub, and the hub outlives its watches.
  struct Config {
    const Clock* clock = nullptr;
    SnapshotSource* snapshots = nullptr;
    ProcessTable* processes = nullptr;
    // One second: a deny file is an emergency brake.
    absl::Duration poll_interval = absl::Seconds(1);
  };

  explicit PlanHub(Config config);
  ~PlanHub();  // Stops.
  PlanHub(const PlanHub&) = delete;
  PlanHub& operator=(const PlanHub&) = delete;

  // Starts and ends the hub's thread. Without it, plans change by PublishNow only. Stop is
  // idempotent; after it no `ready` runs.
  void Start();
  void Stop();

  // Registers the process and begins to watch. The first plan lies in the slot when this returns,
  // unless the caller knows it already (revision and store id). `ready` is called, on the hub's
  // thread, each time a later plan enters an empty slot; it should start a write or set a flag.
  // REQUIRES: CheckRequest(request.request()) is OK.
  std::unique_ptr<PlanWatch> Watch(const v1::WatchPlanRequest& request,
                                   std::function<void()> ready);

  // Refreshes the snapshot and gives every watch whose plan changed the new one. A plan of a new
  // revision counts as changed even if its decisions are the same.
  void PublishNow();

  int WatchCount() const;

 private:
  void Loop();
  void Offer(PlanWatch::Slot& slot, const Snapshot& snapshot);

  const Config config_;

  mutable absl::Mutex mutex_;
  std::vector<std::weak_ptr<PlanWatch::Slot>> slots_ ABSL_GUARDED_BY(mutex_);

  // Serialises publications, so that no watch gets an older plan after a newer one.
  absl::Mutex publish_mutex_;

  absl::Mutex wake_mutex_;
  bool wake_ ABSL_GUARDED_BY(wake_mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(wake_mutex_) = false;
  std::thread thread_;
};

}  // namespace fuseboard

#endif  // SERVER_PLANS_PLAN_HUB_H_
