// The SnapshotSource puts together what decisions depend on (store, catalogue, libraries, deny
// file) and keeps it up to date.
//
// Current() is never older than the last mutation that returned. When a part that is not in the
// store changes (the deny file, a library, the catalogue of a restarted daemon), it records the new
// digest in the store, with an audit record "NodeChange": so a revision stands for one plan only,
// and a client that reconnects with the revision it knows is never left with an old plan. If the
// store cannot be read, the last good configuration stays in force; if it cannot be written, the
// change holds all the same and `revision_stands` turns false. Thread-safe.

#ifndef SERVER_PLANS_SNAPSHOT_SOURCE_H_
#define SERVER_PLANS_SNAPSHOT_SOURCE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/catalog/catalog.h"
#include "server/common/clock.h"
#include "server/deny/deny_file.h"
#include "server/registry/library_registry.h"
#include "server/resolver/snapshot.h"
#include "server/store/config_store.h"

namespace fuseboard {

class SnapshotSource {
 public:
  // All pointers outlive the source.
  struct Config {
    const Clock* clock = nullptr;
    ConfigStore* store = nullptr;
    std::shared_ptr<const Catalog> catalog;  // The first; Reconfigure replaces it.
    LibraryRegistry* libraries = nullptr;
    DenyFile* deny = nullptr;
    // Under which the node's own inputs are recorded: the host's name.
    std::string node;
  };

  // Errors: as LoadSwitches.
  static absl::StatusOr<std::unique_ptr<SnapshotSource>> Create(Config config);

  SnapshotSource(const SnapshotSource&) = delete;
  SnapshotSource& operator=(const SnapshotSource&) = delete;

  // What holds now. Reads the store only if it changed, and no file.
  Snapshot Current();

  // Looks at everything: libraries, deny file, what has expired (and deletes it from the store).
  // Returns the snapshot. To be called every second or so, and before a library is handed out.
  Snapshot Refresh();

  // Takes over another catalogue and other library folders in one step, and refreshes: no snapshot
  // has one without the other.
  Snapshot Reconfigure(std::shared_ptr<const Catalog> catalog,
                       const std::vector<std::string>& library_dirs);

  // When the next override or kill expires, or InfiniteFuture.
  absl::Time NextExpiry() const;

  // Whether two plans of the current revision are the same plan.
  bool revision_stands() const;

  // `listener` is called after each mutation of the store, on the mutating thread; it must not call
  // the source or the store, nor block. At most one; an empty function removes it, after which it
  // neither runs nor will run.
  void SetListener(std::function<void()> listener);

  // What is wrong with any part, for people; empty if nothing is.
  std::vector<std::string> Problems() const;

 private:
  explicit SnapshotSource(Config config);

  Snapshot RefreshLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Reload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reload, or the last good configuration until the next call of Current tries again.
  void TryReload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordNodeInputs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnStoreChange();
  std::string NodeInputs() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Snapshot Compose() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Config config_;

  // Held across calls to the store. Never taken by OnStoreChange, which runs inside such calls.
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Catalog> catalog_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Switches> switches_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const LibrarySet> libraries_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const DenyList> deny_ ABSL_GUARDED_BY(mutex_);
  absl::Status store_problem_ ABSL_GUARDED_BY(mutex_);
  bool revision_stands_ ABSL_GUARDED_BY(mutex_) = false;

  mutable absl::Mutex listener_mutex_;
  bool stale_ ABSL_GUARDED_BY(listener_mutex_) = false;
  std::function<void()> listener_ ABSL_GUARDED_BY(listener_mutex_);

  // Last: ends before the members that its callback uses.
  std::unique_ptr<ConfigStore::Watch> watch_;
};

}  // namespace fuseboard

#endif  // SERVER_PLANS_SNAPSHOT_SOURCE_H_
