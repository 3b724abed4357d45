#include "server/rpc/catalog_rpc.h"

#include "server/rpc/unary.h"

namespace fuseboard {

grpc::ServerUnaryReactor* CatalogRpc::ListModels(grpc::CallbackServerContext* context,
                                                 const v1::ListModelsRequest* /*request*/,
                                                 v1::ListModelsResponse* response) {
  return AnswerUnary(calls_, "Catalog/ListModels", context, response, [&] {
    return absl::StatusOr<v1::ListModelsResponse>(service_->ListModels());
  });
}

grpc::ServerUnaryReactor* CatalogRpc::DescribeModel(grpc::CallbackServerContext* context,
                                                    const v1::DescribeModelRequest* request,
                                                    v1::DescribeModelResponse* response) {
  return AnswerUnary(calls_, "Catalog/DescribeModel", context, response,
                     [&] { return service_->DescribeModel(*request); });
}

grpc::ServerUnaryReactor* CatalogRpc::ListKernels(grpc::CallbackServerContext* context,
                                                  const v1::ListKernelsRequest* /*request*/,
                                                  v1::ListKernelsResponse* response) {
  return AnswerUnary(calls_, "Catalog/ListKernels", context, response, [&] {
    return absl::StatusOr<v1::ListKernelsResponse>(service_->ListKernels());
  });
}

grpc::ServerUnaryReactor* CatalogRpc::ListEntries(grpc::CallbackServerContext* context,
                                                  const v1::ListEntriesRequest* /*request*/,
                                                  v1::ListEntriesResponse* response) {
  return AnswerUnary(calls_, "Catalog/ListEntries", context, response, [&] {
    return absl::StatusOr<v1::ListEntriesResponse>(service_->ListEntries());
  });
}

}  // namespace fuseboard
