// A Snapshot is all that a decision may depend on besides the request. A value of shared immutable
// parts: cheap to copy, safe to keep.

#ifndef SERVER_RESOLVER_SNAPSHOT_H_
#define SERVER_RESOLVER_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/catalog/catalog.h"
#include "server/deny/deny_file.h"
#include "server/registry/library_set.h"
#include "server/switches/switches.h"

namespace fuseboard {

// All pointers are set.
struct Snapshot {
  std::shared_ptr<const Catalog> catalog;
  std::shared_ptr<const LibrarySet> libraries;
  std::shared_ptr<const Switches> switches;
  std::shared_ptr<const DenyList> deny;
  // What expiry is measured against.
  absl::Time now;
  std::string store_id;

  int64_t revision() const { return switches->revision; }
};

}  // namespace fuseboard

#endif  // SERVER_RESOLVER_SNAPSHOT_H_
