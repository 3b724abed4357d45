// A ConfigStore that passes every call to another one, unless a test has it fail or lets somebody
// else be faster. Thread-compatible: the faults are set while nobody calls.

#ifndef TESTS_TESTING_FAULTY_STORE_H_
#define TESTS_TESTING_FAULTY_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/config_store.h"

namespace fuseboard::testing {

class FaultyStore : public ConfigStore {
 public:
  // REQUIRES: `store` outlives this one.
  explicit FaultyStore(ConfigStore* store) : store_(store) {}

  // What the calls answer instead of asking the store, while it is not OK. The store is then as it
  // was.
  absl::Status list_error;
  absl::Status write_error;
  // Runs before each Put and Delete reaches the store: the changes of somebody else.
  std::function<void()> before_write;

  const std::string& store_id() const override { return store_->store_id(); }
  absl::string_view kind() const override { return store_->kind(); }
  absl::StatusOr<StoreListing> List(absl::string_view prefix) override {
    if (!list_error.ok()) return list_error;
    return store_->List(prefix);
  }
  absl::StatusOr<int64_t> Put(absl::string_view key, absl::string_view value,
                              const StoreCommit& commit) override {
    if (!write_error.ok()) return write_error;
    if (before_write != nullptr) before_write();
    return store_->Put(key, value, commit);
  }
  absl::StatusOr<int64_t> Delete(absl::string_view key, const StoreCommit& commit) override {
    if (!write_error.ok()) return write_error;
    if (before_write != nullptr) before_write();
    return store_->Delete(key, commit);
  }
  absl::StatusOr<std::unique_ptr<Watch>> WatchFrom(int64_t revision,
                                                   ChangeCallback callback) override {
    return store_->WatchFrom(revision, std::move(callback));
  }
  absl::StatusOr<std::vector<StoreAudit>> ListAudit(int64_t before_revision, int limit) override {
    return store_->ListAudit(before_revision, limit);
  }
  absl::Status Health() const override { return store_->Health(); }

 private:
  ConfigStore* const store_;
};

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_FAULTY_STORE_H_
