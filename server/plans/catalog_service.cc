#include "server/plans/catalog_service.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/common/error_reason.h"
#include "server/resolver/switch_state.h"

namespace fuseboard {
namespace {

bool IsEntryOnByDefault(absl::string_view operation, const Catalog& catalog) {
  return std::any_of(catalog.entries().begin(), catalog.entries().end(),
                     [&](const v1::CatalogEntry& entry) {
                       return entry.operation() == operation && entry.default_enabled();
                     });
}

// A kernel may be in use only through a composite that calls it.
bool IsOnByDefault(absl::string_view operation, const Snapshot& snapshot) {
  if (IsEntryOnByDefault(operation, *snapshot.catalog)) return true;
  const std::vector<std::string>& operations = snapshot.catalog->operations();
  return std::ranges::any_of(operations, [&](const std::string& composite) {
    const std::vector<std::string> used = UsedKernels(composite, *snapshot.libraries);
    return std::ranges::find(used, operation) != used.end() &&
           IsEntryOnByDefault(composite, *snapshot.catalog);
  });
}

// What is wrong with an operation that has no library of its own; empty for a usable composite.
std::string MissingLibrary(const std::string& operation, const LibrarySet& libraries) {
  if (!libraries.IsComposite(operation)) {
    return absl::StrCat("there is no library of kernel ", operation, " on this node");
  }
  const std::vector<const Library*> bindings = libraries.OfKind(v1::ARTIFACT_KIND_BINDING);
  const bool bound = std::ranges::any_of(bindings, [&](const Library* binding) {
    const auto& composites = binding->manifest.composites();
    return binding->error.empty() && std::ranges::find(composites, operation) != composites.end();
  });
  if (!bound) return absl::StrCat("no binding that has ", operation, " can be handed out");
  for (const std::string& used : UsedKernels(operation, libraries)) {
    const std::vector<const Library*> kernels = libraries.Kernels(used);
    const bool usable =
        std::ranges::any_of(kernels, [](const Library* kernel) { return kernel->error.empty(); });
    if (!usable) return absl::StrCat(operation, " uses ", used, ", which cannot be handed out");
  }
  return "";
}

v1::KernelStatus MakeStatus(const std::string& operation, const Library* library,
                            const Snapshot& snapshot, const ProcessTable& processes) {
  v1::KernelStatus status;
  status.set_operation(operation);
  if (library != nullptr) *status.mutable_manifest() = library->manifest;
  status.set_error(library != nullptr ? library->error
                                      : MissingLibrary(operation, *snapshot.libraries));
  const std::vector<std::string> uses = UsedKernels(operation, *snapshot.libraries);
  Verdict verdict = FindPreference(operation, IsOnByDefault(operation, snapshot), "", snapshot);
  if (!status.error().empty()) verdict = {false, v1::RULE_INCOMPATIBLE, status.error()};
  if (auto kill = FindKill(operation, uses, "", snapshot)) verdict = *std::move(kill);
  status.set_enabled(verdict.enabled);
  status.set_rule(verdict.rule);
  status.set_reason(verdict.reason);
  status.set_active_sites(processes.ActiveSites(operation));
  return status;
}

}  // namespace

v1::ListModelsResponse CatalogService::ListModels() {
  const Snapshot snapshot = snapshots_->Current();
  v1::ListModelsResponse response;
  for (const v1::CatalogModel* model : snapshot.catalog->models()) *response.add_models() = *model;
  return response;
}

absl::StatusOr<v1::DescribeModelResponse> CatalogService::DescribeModel(
    const v1::DescribeModelRequest& request) {
  if (request.model_type().empty()) return BadRequest("model_type", "empty, want a model type");
  const Snapshot snapshot = snapshots_->Current();
  const v1::CatalogModel* const model = snapshot.catalog->FindModel(request.model_type());
  if (model == nullptr) {
    std::vector<std::string> known;
    for (const v1::CatalogModel* other : snapshot.catalog->models()) {
      known.push_back(other->model_type());
    }
    return WithReason(absl::NotFoundError(absl::StrCat(
                          "unknown model \"", request.model_type(), "\", the catalogue names ",
                          known.empty() ? "none" : absl::StrJoin(known, ", "))),
                      kUnknownModel, {{"model_type", request.model_type()}});
  }
  v1::DescribeModelResponse response;
  *response.mutable_model() = *model;
  for (const std::string& id : model->entries()) {
    *response.add_entries() = *snapshot.catalog->FindEntry(id);
  }
  return response;
}

v1::ListKernelsResponse CatalogService::ListKernels() {
  const Snapshot snapshot = snapshots_->Current();
  v1::ListKernelsResponse response;
  for (const std::string& operation : KnownOperations(snapshot)) {
    const std::vector<const Library*> kernels = snapshot.libraries->Kernels(operation);
    for (const Library* kernel : kernels) {
      *response.add_kernels() = MakeStatus(operation, kernel, snapshot, *processes_);
    }
    if (kernels.empty()) {
      *response.add_kernels() = MakeStatus(operation, nullptr, snapshot, *processes_);
    }
  }
  return response;
}

v1::ListEntriesResponse CatalogService::ListEntries() {
  v1::ListEntriesResponse response;
  *response.mutable_entries() = snapshots_->Current().catalog->entries();
  return response;
}

}  // namespace fuseboard
