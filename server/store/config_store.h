// A ConfigStore keeps the configuration of a node or a fleet: a small ordered map of opaque keys
// and values with one revision for the whole, and an append-only list of audit records.
//
// A mutation is durable when the call returns, raises the revision and writes its audit record in
// one transaction: there is neither a change without a record nor a record without a change. It
// knows nothing of overrides or kills (server/switches does). All implementations are thread-safe.
//
// Made so that etcd fits behind it: revisions only grow (here by exactly one; with etcd by at least
// one), a watch resumes at a revision, and a revision that is too old is answered by an error upon
// which the caller lists again.

#ifndef SERVER_STORE_CONFIG_STORE_H_
#define SERVER_STORE_CONFIG_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fuseboard {

struct StoreEntry {
  std::string key;
  std::string value;
  int64_t revision = 0;  // The mutation that wrote it.
};

// All entries under a prefix, sorted by key, as they are at `revision`.
struct StoreListing {
  int64_t revision = 0;
  std::vector<StoreEntry> entries;
};

// One mutation, as a watch sees it.
struct StoreChange {
  int64_t revision = 0;
  std::string key;
  bool deleted = false;
  std::string value;  // Empty if deleted.
};

struct StoreAudit {
  int64_t revision = 0;
  std::string record;
};

// What every mutation carries.
struct StoreCommit {
  // 0: unconditional. Else the revision that the whole store must be at.
  int64_t expected_revision = 0;
  // Written with the mutation, in its transaction.
  std::string audit_record;
};

class ConfigStore {
 public:
  // Called once per mutation, in order of revision, on the mutating thread before its call returns.
  // REQUIRES: does not call the store and does not block.
  using ChangeCallback = std::function<void(const StoreChange&)>;

  // Ends the watch when destroyed; the callback neither runs nor will run after that. Must not be
  // destroyed inside its callback, nor after the store.
  class Watch {
   public:
    virtual ~Watch() = default;
  };

  virtual ~ConfigStore() = default;

  // Random id given at creation. Revisions of different ids cannot be compared.
  virtual const std::string& store_id() const = 0;

  // "sqlite" or "etcd".
  virtual absl::string_view kind() const = 0;

  // The entries whose key begins with `prefix`. A new store is at revision 1.
  //
  // Errors: Unavailable (STORE).
  virtual absl::StatusOr<StoreListing> List(absl::string_view prefix) = 0;

  // Writes `value` under `key`, whether or not it is there, and returns the new revision.
  //
  // Errors: Aborted (REVISION_MISMATCH) if `commit.expected_revision` is set and differs, naming
  // both; Unavailable (STORE) if it cannot be made durable: nothing is changed then.
  virtual absl::StatusOr<int64_t> Put(absl::string_view key, absl::string_view value,
                                      const StoreCommit& commit) = 0;

  // Removes `key` and returns the new revision.
  //
  // Errors: as Put; NotFound if there is no such key (and then no new revision).
  virtual absl::StatusOr<int64_t> Delete(absl::string_view key, const StoreCommit& commit) = 0;

  // Calls `callback` for every mutation after `revision`: for those that already happened before
  // this returns, for later ones as they happen. None is missed or seen twice.
  //
  // Errors: OutOfRange (COMPACTED) if changes after `revision` are no longer kept: List and watch
  // from the listing's revision. InvalidArgument if `revision` lies in the future.
  virtual absl::StatusOr<std::unique_ptr<Watch>> WatchFrom(int64_t revision,
                                                           ChangeCallback callback) = 0;

  // Audit records of revisions below `before_revision` (0: from the newest), newest first.
  //
  // Errors: Unavailable (STORE).
  virtual absl::StatusOr<std::vector<StoreAudit>> ListAudit(int64_t before_revision, int limit) = 0;

  // OK if the last mutation could be made durable; else its error, until one succeeds.
  virtual absl::Status Health() const = 0;
};

}  // namespace fuseboard

#endif  // SERVER_STORE_CONFIG_STORE_H_
