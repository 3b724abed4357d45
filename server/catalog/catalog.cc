#include "server/catalog/catalog.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/common/file_reader.h"
#include "server/common/sha256.h"
#include "server/common/status_macros.h"
#include "server/common/text_proto.h"

namespace fuseboard {
namespace {

CatalogMatch MatchEntry(const v1::CatalogEntry& entry, const v1::Site& site) {
  CatalogMatch match{&entry, false, false, ""};
  if (site.fingerprint().empty()) {
    match.reason = absl::StrCat("the code has no fingerprint: ", site.fingerprint_error().empty()
                                                                     ? "no reason given"
                                                                     : site.fingerprint_error());
    return match;
  }
  const auto known =
      std::find_if(entry.fingerprints().begin(), entry.fingerprints().end(),
                   [&](const v1::Fingerprint& f) { return f.value() == site.fingerprint(); });
  if (known == entry.fingerprints().end()) {
    match.reason =
        absl::StrCat("fingerprint is ", site.fingerprint(), ", want ",
                     entry.fingerprints_size() == 1 ? "" : "one of ", entry.fingerprints(0).value(),
                     entry.fingerprints_size() == 1
                         ? ""
                         : absl::StrCat(" and ", entry.fingerprints_size() - 1, " more"));
    return match;
  }
  match.fingerprint_matched = true;
  for (const v1::Condition& condition : entry.conditions()) {
    match.reason = UnmetCondition(condition, site);
    if (!match.reason.empty()) return match;
  }
  match.matched = true;
  match.reason = absl::StrCat("the code is that of ",
                              known->source().empty() ? known->value() : known->source());
  return match;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Catalog>> Catalog::Load(const std::vector<std::string>& dirs) {
  v1::CatalogFile merged;
  for (const std::string& dir : dirs) {
    FB_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListFolder(dir, ".textpb"));
    for (const std::string& path : paths) {
      v1::CatalogFile file;
      FB_RETURN_IF_ERROR(LoadTextProto(path, &file));
      // The entries alone first, so that the error names the file. Models may name entries of
      // other files.
      v1::CatalogFile alone;
      *alone.mutable_entries() = file.entries();
      if (const absl::Status valid = ValidateCatalog(alone); !valid.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message()));
      }
      merged.MergeFrom(file);
    }
  }
  return Create(std::move(merged));
}

absl::StatusOr<std::shared_ptr<const Catalog>> Catalog::Create(v1::CatalogFile file) {
  FB_RETURN_IF_ERROR(ValidateCatalog(file));
  return std::shared_ptr<const Catalog>(new Catalog(std::move(file)));
}

Catalog::Catalog(v1::CatalogFile file) : file_(std::move(file)) {
  for (const v1::CatalogEntry& entry : file_.entries()) {
    entries_by_id_.emplace(entry.id(), &entry);
    operations_.push_back(entry.operation());
  }
  std::ranges::sort(operations_);
  operations_.erase(std::ranges::unique(operations_).begin(), operations_.end());
  for (const v1::CatalogModel& model : file_.models()) models_.push_back(&model);
  std::ranges::sort(models_,
                    [](const auto* a, const auto* b) { return a->model_type() < b->model_type(); });
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream output(&stream);
    output.SetSerializationDeterministic(true);  // Maps have no order of their own.
    file_.SerializeToCodedStream(&output);
  }
  digest_ = Sha256(bytes);
}

const v1::CatalogEntry* Catalog::FindEntry(absl::string_view id) const {
  const auto it = entries_by_id_.find(id);
  return it == entries_by_id_.end() ? nullptr : it->second;
}

const v1::CatalogModel* Catalog::FindModel(absl::string_view model_type) const {
  const auto it = std::ranges::find_if(
      models_, [&](const v1::CatalogModel* model) { return model->model_type() == model_type; });
  return it == models_.end() ? nullptr : *it;
}

std::vector<CatalogMatch> Catalog::Match(const v1::Site& site) const {
  std::vector<CatalogMatch> matches;
  for (const v1::CatalogEntry& entry : file_.entries()) {
    if (entry.role() == site.role()) matches.push_back(MatchEntry(entry, site));
  }
  return matches;
}

}  // namespace fuseboard
