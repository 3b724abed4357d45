// The Catalog: what this build knows of models. Each entry says "a module with this code and these
// attributes computes this operation"; a site of a training process is matched against them.
//
// Immutable once loaded; share it between threads. It knows nothing of libraries, switches or
// adapters: whether a matched operation may run is the resolver's question.

#ifndef SERVER_CATALOG_CATALOG_H_
#define SERVER_CATALOG_CATALOG_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/catalog.pb.h"
#include "fuseboard/v1/plan.pb.h"

namespace fuseboard {

// How one entry compares with a site.
struct CatalogMatch {
  const v1::CatalogEntry* entry = nullptr;  // Owned by the catalogue.
  bool matched = false;
  // The code is the entry's; if `matched` is false, a condition is not met.
  bool fingerprint_matched = false;
  // The first thing that differs, with both values, or what matched. Never empty.
  std::string reason;
};

class Catalog {
 public:
  // Loads all "*.textpb" of the folders, folder by folder, in order of name. The order is that of
  // precedence: the first entry that matches decides.
  //
  // Errors: of the files, and InvalidArgument from validation. Any error refuses the whole.
  static absl::StatusOr<std::shared_ptr<const Catalog>> Load(const std::vector<std::string>& dirs);

  // Builds a catalogue from one merged file.
  //
  // Errors: InvalidArgument, naming the entry and the field: an id, model or fingerprint given
  // twice within one scope; a missing or malformed field; a model that names an unknown entry; the
  // fallback COMPOSITE where there is no composite (role "lm_head" only).
  static absl::StatusOr<std::shared_ptr<const Catalog>> Create(v1::CatalogFile file);

  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // In order of precedence.
  const google::protobuf::RepeatedPtrField<v1::CatalogEntry>& entries() const {
    return file_.entries();
  }
  // Sorted by model_type.
  const std::vector<const v1::CatalogModel*>& models() const { return models_; }
  // Sorted, each once.
  const std::vector<std::string>& operations() const { return operations_; }
  // Of the content: two catalogues with the same digest match alike.
  const std::string& digest() const { return digest_; }

  // Entry or model of that id, or nullptr.
  const v1::CatalogEntry* FindEntry(absl::string_view id) const;
  const v1::CatalogModel* FindModel(absl::string_view model_type) const;

  // Compares the site with every entry of its role, in order of precedence.
  std::vector<CatalogMatch> Match(const v1::Site& site) const;

 private:
  explicit Catalog(v1::CatalogFile file);

  const v1::CatalogFile file_;
  std::vector<const v1::CatalogModel*> models_;
  std::vector<std::string> operations_;
  std::string digest_;
  absl::flat_hash_map<std::string, const v1::CatalogEntry*> entries_by_id_;
};

// Why `condition` does not hold for `site`, with both values; empty if it holds.
std::string UnmetCondition(const v1::Condition& condition, const v1::Site& site);

// InvalidArgument if `file` is not a valid catalogue; see Catalog::Create.
absl::Status ValidateCatalog(const v1::CatalogFile& file);

}  // namespace fuseboard

#endif  // SERVER_CATALOG_CATALOG_H_
