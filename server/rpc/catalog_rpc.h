// The Catalog service over gRPC's callback API; CatalogService answers.

#ifndef SERVER_RPC_CATALOG_RPC_H_
#define SERVER_RPC_CATALOG_RPC_H_

#include "fuseboard/v1/catalog.grpc.pb.h"
#include "server/plans/catalog_service.h"
#include "server/rpc/call_stats.h"

namespace fuseboard {

class CatalogRpc : public v1::Catalog::CallbackService {
 public:
  // Both outlive the service.
  CatalogRpc(CatalogService* service, CallStats* calls) : service_(service), calls_(calls) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* DescribeModel(grpc::CallbackServerContext* context,
                                          const v1::DescribeModelRequest* request,
                                          v1::DescribeModelResponse* response) override;
  grpc::ServerUnaryReactor* ListKernels(grpc::CallbackServerContext* context,
                                        const v1::ListKernelsRequest* request,
                                        v1::ListKernelsResponse* response) override;
  grpc::ServerUnaryReactor* ListEntries(grpc::CallbackServerContext* context,
                                        const v1::ListEntriesRequest* request,
                                        v1::ListEntriesResponse* response) override;

 private:
  CatalogService* const service_;
  CallStats* const calls_;
};

}  // namespace fuseboard

#endif  // SERVER_RPC_CATALOG_RPC_H_
