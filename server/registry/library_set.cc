#include "server/registry/library_set.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/common/sha256.h"
#include "server/registry/semantic_version.h"

namespace fuseboard {
namespace {

// An unreadable version comes last.
SemanticVersion VersionOf(const Library& library) {
  return ParseSemanticVersion(library.manifest.version()).value_or(SemanticVersion{});
}

auto Identity(const Library& library) {
  const v1::Manifest& manifest = library.manifest;
  return std::make_tuple(static_cast<int>(manifest.kind()), manifest.name(), manifest.version(),
                         manifest.torch_version(), manifest.torch_cuda_version());
}

bool Before(const Library& a, const Library& b) {
  const auto kind_and_name = [](const Library& library) {
    return std::make_tuple(static_cast<int>(library.manifest.kind()), library.manifest.name());
  };
  if (kind_and_name(a) != kind_and_name(b)) return kind_and_name(a) < kind_and_name(b);
  const std::weak_ordering order = VersionOf(a) <=> VersionOf(b);
  if (order != 0) return order > 0;
  // Builds that differ only in what is not ordered: by text, so that the order never changes.
  return Identity(a) < Identity(b);
}

}  // namespace

LibrarySet::LibrarySet(std::vector<Library> libraries) {
  for (Library& library : libraries) {
    const bool known = std::ranges::any_of(
        libraries_, [&](const Library& other) { return Identity(other) == Identity(library); });
    if (!known) libraries_.push_back(std::move(library));
  }
  std::ranges::stable_sort(libraries_, Before);
  std::string text;
  for (const Library& library : libraries_) {
    absl::StrAppend(&text, library.path, "\n", library.error, "\n",
                    library.manifest.ShortDebugString(), "\n");
  }
  digest_ = Sha256(text);
}

std::vector<const Library*> LibrarySet::Kernels(absl::string_view operation) const {
  std::vector<const Library*> kernels;
  for (const Library* library : OfKind(v1::ARTIFACT_KIND_KERNEL)) {
    if (library->manifest.name() == operation) kernels.push_back(library);
  }
  return kernels;
}

std::vector<const Library*> LibrarySet::OfKind(v1::ArtifactKind kind) const {
  std::vector<const Library*> found;
  for (const Library& library : libraries_) {
    if (library.manifest.kind() == kind) found.push_back(&library);
  }
  return found;
}

std::vector<std::string> LibrarySet::Operations() const {
  std::vector<std::string> operations;
  for (const Library& library : libraries_) {
    if (library.manifest.kind() == v1::ARTIFACT_KIND_KERNEL) {
      operations.push_back(library.manifest.name());
    }
    for (const std::string& composite : library.manifest.composites()) {
      operations.push_back(composite);
    }
  }
  std::ranges::sort(operations);
  operations.erase(std::ranges::unique(operations).begin(), operations.end());
  return operations;
}

bool LibrarySet::IsComposite(absl::string_view operation) const {
  const auto lists = [&](const Library* binding) {
    const auto& composites = binding->manifest.composites();
    return std::ranges::find(composites, operation) != composites.end();
  };
  const std::vector<const Library*> bindings = OfKind(v1::ARTIFACT_KIND_BINDING);
  return std::ranges::any_of(bindings, lists);
}

v1::Artifact ToArtifact(const Library& library) {
  v1::Artifact artifact;
  artifact.set_kind(library.manifest.kind());
  artifact.set_name(library.manifest.name());
  artifact.set_version(library.manifest.version());
  artifact.set_path(library.path);
  artifact.set_sha256(library.manifest.sha256());
  return artifact;
}

}  // namespace fuseboard
