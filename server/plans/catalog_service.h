// The logic of the Catalog service without gRPC: what the daemon knows and what of it is on.
// Thread-safe.

#ifndef SERVER_PLANS_CATALOG_SERVICE_H_
#define SERVER_PLANS_CATALOG_SERVICE_H_

#include "absl/status/statusor.h"
#include "fuseboard/v1/catalog.pb.h"
#include "server/jobs/process_table.h"
#include "server/plans/snapshot_source.h"

namespace fuseboard {

class CatalogService {
 public:
  // Both outlive the service.
  CatalogService(SnapshotSource* snapshots, const ProcessTable* processes)
      : snapshots_(snapshots), processes_(processes) {}

  v1::ListModelsResponse ListModels();

  // Errors: NotFound (UNKNOWN_MODEL), naming the known ones; InvalidArgument (BAD_REQUEST) if
  // empty.
  absl::StatusOr<v1::DescribeModelResponse> DescribeModel(const v1::DescribeModelRequest& request);

  // One per kernel library and one per operation without an own library, by operation, then newest
  // version first. `enabled` is what switches and catalogue say for a job that none of them names.
  v1::ListKernelsResponse ListKernels();

  v1::ListEntriesResponse ListEntries();

 private:
  SnapshotSource* const snapshots_;
  const ProcessTable* const processes_;
};

}  // namespace fuseboard

#endif  // SERVER_PLANS_CATALOG_SERVICE_H_
