// Switches: the overrides and kills in force, and how they lie in a ConfigStore.
//
// This is the only place that knows keys and values: "override/<operation>/<scope>" and
// "kill/<operation>/<scope>", with the proto message as value. An immutable value; share it.

#ifndef SERVER_SWITCHES_SWITCHES_H_
#define SERVER_SWITCHES_SWITCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fuseboard/v1/control.pb.h"
#include "server/store/config_store.h"

namespace fuseboard {

inline constexpr char kAllOperations[] = "*";

struct Switches {
  int64_t revision = 0;
  // Sorted by operation, then scope. Expired ones may still be here: ask IsExpired.
  std::vector<v1::Override> overrides;
  std::vector<v1::Kill> kills;
  // Digest of the node's own inputs (catalogue, libraries, deny file) that `revision` stands for.
  std::string node_inputs;
};

// Keys. Equal arguments, equal key: a second Set replaces the first.
std::string OverrideKey(absl::string_view operation, const v1::Scope& scope);
std::string KillKey(absl::string_view operation, const v1::Scope& scope);
std::string NodeInputsKey(absl::string_view node);

// Reads all switches of a store, and what is recorded of `node`.
//
// Errors: as ConfigStore::List; DataLoss if a value cannot be decoded, naming its key.
absl::StatusOr<Switches> LoadSwitches(ConfigStore& store, absl::string_view node);

// Whether something that expires at `expires_at_us` (0: never) is as if absent.
bool IsExpired(int64_t expires_at_us, absl::Time now);

// The next time after `now` at which something expires, or InfiniteFuture.
absl::Time NextExpiry(const Switches& switches, absl::Time now);

// Deletes what has expired, each with an audit record "Expire" by "fuseboardd". Returns how many.
//
// Errors: as ConfigStore::Delete; what was deleted before the error stays so. To be called again.
absl::StatusOr<int> SweepExpired(ConfigStore& store, const Switches& switches, absl::Time now);

// "job train", "node", "fleet": for reasons and audit records.
std::string ScopeText(const v1::Scope& scope);

// One line for people: "off at node until 2026-01-02T03:04:05Z, by alice: slow".
std::string OverrideText(const v1::Override& override_record);
std::string KillText(const v1::Kill& kill);

}  // namespace fuseboard

#endif  // SERVER_SWITCHES_SWITCHES_H_
