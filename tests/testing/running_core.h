// The daemon's core without sockets, over files in a temporary folder: a store, the sample's
// libraries on disk, a deny file, and the services on top. The clock moves only when told to.

#ifndef TESTS_TESTING_RUNNING_CORE_H_
#define TESTS_TESTING_RUNNING_CORE_H_

#include <unistd.h>

#include <memory>
#include <string>

#include "server/deny/deny_file.h"
#include "server/jobs/process_table.h"
#include "server/plans/snapshot_source.h"
#include "server/registry/library_registry.h"
#include "server/store/sqlite_store.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/sample_node.h"

namespace fuseboard::testing {

struct RunningCore {
  RunningCore() {
    for (const Library& library : SampleLibraries()) {
      folder.WriteLibrary("kernels", library.manifest, library.manifest.name());
    }
    snapshots = *SnapshotSource::Create({&clock, store.get(), *Catalog::Create(SampleCatalog()),
                                         &libraries, &deny, /*node=*/"node1"});
  }

  // Registers a live process; returns its request.
  v1::ResolveRequest AddProcess(int number, const std::string& job) {
    v1::ResolveRequest request = SampleRequest();
    request.mutable_job()->set_name(job);
    request.mutable_job()->set_instance_id(SampleInstance(number));
    processes.Register(std::make_shared<const v1::ResolveRequest>(request), nullptr);
    return request;
  }

  [[nodiscard]] int64_t Revision() const { return store->List("")->revision; }

  FakeClock clock;
  TemporaryFolder folder;
  std::unique_ptr<SqliteStore> store =
      *SqliteStore::Open({.path = folder.Path("store.db"), .busy_timeout_ms = 0});
  LibraryRegistry libraries{{folder.Path("kernels")}};
  DenyFile deny{folder.Path("deny"), getuid()};
  ProcessTable processes{&clock, ProcessTable::Options{}};
  std::unique_ptr<SnapshotSource> snapshots;
};

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_RUNNING_CORE_H_
