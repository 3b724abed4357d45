// The ConfigStore in one SQLite file: the default, for one node.
//
// Write-ahead log with synchronous=FULL: the log is synchronised before a mutation returns, so an
// acknowledged mutation survives SIGKILL and power loss. One connection, guarded by one mutex; that
// no second daemon opens the same file is the caller's business (the daemon's lock file).
//
// A file that is damaged, of another schema or of another program is left as it is and refused by
// name: somebody must look at it, because it may hold kills.

#ifndef SERVER_STORE_SQLITE_STORE_H_
#define SERVER_STORE_SQLITE_STORE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/store/config_store.h"

struct sqlite3;

namespace fuseboard {

class SqliteStore : public ConfigStore {
 public:
  struct Options {
    // The file; created with mode 0600 if absent. Its folder must exist.
    std::string path;
    // Changes kept for watches that resume. 4096 mutations are years of operators' work.
    int64_t kept_changes = 4096;
    // How long to wait for another program that has the file locked (a backup).
    int busy_timeout_ms = 5000;
  };

  // Opens or creates the store and checks its integrity.
  //
  // Errors: FailedPrecondition if the file is damaged, of another schema version or of
  // another program, naming it;
  // Unavailable (STORE) if it cannot be opened or written.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const Options& options);

  ~SqliteStore() override;
  SqliteStore(const SqliteStore&) = delete;
  SqliteStore& operator=(const SqliteStore&) = delete;

  const std::string& store_id() const override { return store_id_; }
  absl::string_view kind() const override { return "sqlite"; }
  absl::StatusOr<StoreListing> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> Put(absl::string_view key, absl::string_view value,
                              const StoreCommit& commit) override;
  absl::StatusOr<int64_t> Delete(absl::string_view key, const StoreCommit& commit) override;
  absl::StatusOr<std::unique_ptr<Watch>> WatchFrom(int64_t revision,
                                                   ChangeCallback callback) override;
  absl::StatusOr<std::vector<StoreAudit>> ListAudit(int64_t before_revision, int limit) override;
  absl::Status Health() const override;

 private:
  class Registration;
  struct CloseConnection {
    void operator()(sqlite3* connection) const;
  };

  SqliteStore(Options options, std::unique_ptr<sqlite3, CloseConnection> connection);

  // The schema's version, 0 for a new file, if the file is sound and may be written to.
  absl::StatusOr<int64_t> CheckFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Initialise() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> Mutate(const StoreChange& change, const StoreCommit& commit)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<int64_t> WriteInTransaction(const StoreChange& change, const StoreCommit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> Revision() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::string store_id_;  // Written by Open only.

  mutable absl::Mutex mutex_;
  std::unique_ptr<sqlite3, CloseConnection> connection_ ABSL_PT_GUARDED_BY(mutex_);
  std::list<ChangeCallback> callbacks_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fuseboard

#endif  // SERVER_STORE_SQLITE_STORE_H_
