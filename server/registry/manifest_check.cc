// What makes a manifest valid by itself.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/abi/kernel_abi.h"
#include "server/common/sha256.h"
#include "server/registry/library_registry.h"
#include "server/registry/semantic_version.h"

namespace fuseboard {
namespace {

bool HasAbi(const v1::Manifest& manifest) {
  return manifest.kind() == v1::ARTIFACT_KIND_KERNEL ||
         manifest.kind() == v1::ARTIFACT_KIND_BINDING;
}

}  // namespace

std::string ManifestError(const v1::Manifest& manifest, absl::string_view stem) {
  if (!v1::ArtifactKind_IsValid(manifest.kind()) ||
      manifest.kind() == v1::ARTIFACT_KIND_UNSPECIFIED) {
    return "the manifest has no kind";
  }
  if (manifest.name() != stem) {
    return absl::StrCat("the manifest's name is \"", manifest.name(), "\", want \"", stem, "\"");
  }
  if (!ParseSemanticVersion(manifest.version()).has_value()) {
    return absl::StrCat("version is \"", manifest.version(), "\", want MAJOR.MINOR.PATCH");
  }
  if (!IsSha256(manifest.sha256())) {
    return absl::StrCat("sha256 is \"", manifest.sha256(), "\", want 64 lower-case hex digits");
  }
  if (manifest.size_bytes() <= 0) {
    return absl::StrCat("size_bytes is ", manifest.size_bytes(), ", want at least 1");
  }
  if (HasAbi(manifest) && manifest.abi_version() != FB_ABI_VERSION) {
    return absl::StrCat("the library has ABI ", manifest.abi_version(), ", want ", FB_ABI_VERSION);
  }
  if (manifest.kind() == v1::ARTIFACT_KIND_BINDING && manifest.torch_version().empty()) {
    return "torch_version is empty, want the torch that the binding was compiled for";
  }
  for (const auto& [dtype, tolerance] : manifest.tolerance()) {
    if (!std::isfinite(tolerance) || tolerance < 0) {
      return absl::StrCat("tolerance of ", dtype, " is ", tolerance, ", want at least 0");
    }
  }
  return "";
}

}  // namespace fuseboard
