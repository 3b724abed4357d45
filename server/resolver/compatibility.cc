#include "server/resolver/compatibility.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fuseboard {
namespace {

template <typename Texts>
bool Lists(const Texts& texts, absl::string_view wanted) {
  return std::find(texts.begin(), texts.end(), wanted) != texts.end();
}

std::string NameAndVersion(const Library& library) {
  return absl::StrCat(library.manifest.name(), " ", library.manifest.version());
}

std::string TorchText(absl::string_view version, absl::string_view cuda) {
  return cuda.empty() ? absl::StrCat("torch ", version, " without CUDA")
                      : absl::StrCat("torch ", version, " with CUDA ", cuda);
}

std::string ArchitectureText(const v1::Manifest& manifest) {
  std::vector<std::string> architectures;
  for (const int arch : manifest.cuda_archs()) architectures.push_back(absl::StrCat("sm_", arch));
  if (manifest.ptx_arch() != 0) {
    architectures.push_back(absl::StrCat("PTX of compute_", manifest.ptx_arch()));
  }
  return architectures.empty() ? "no device code" : absl::StrJoin(architectures, ", ");
}

// Parameters come from a map, which has no order: the first by name decides, so that the reason is
// always the same.
std::string DtypeMismatch(const v1::Manifest& manifest, const v1::Site& site) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : site.parameters()) {
    if (!Lists(manifest.dtypes(), parameter.dtype())) names.push_back(name);
  }
  if (names.empty()) return "";
  const std::string& first = *std::ranges::min_element(names);
  return absl::StrCat("parameter ", first, " is ", site.parameters().at(first).dtype(), ", want ",
                      absl::StrJoin(manifest.dtypes(), " or "));
}

}  // namespace

absl::string_view WithoutLocalVersion(absl::string_view version) {
  return version.substr(0, version.find('+'));
}

bool CoversArchitecture(const v1::Manifest& manifest, int sm) {
  const auto runs = [sm](int arch) { return arch / 10 == sm / 10 && arch <= sm; };
  return std::any_of(manifest.cuda_archs().begin(), manifest.cuda_archs().end(), runs) ||
         (manifest.ptx_arch() != 0 && manifest.ptx_arch() <= sm);
}

std::string KernelMismatch(const Library& kernel, const v1::Site& site,
                           const v1::Environment& environment) {
  const v1::Manifest& manifest = kernel.manifest;
  const std::string name = absl::StrCat("kernel ", NameAndVersion(kernel));
  if (!kernel.error.empty()) return absl::StrCat(name, " cannot be handed out: ", kernel.error);
  if (!Lists(manifest.device_types(), environment.device_type())) {
    return absl::StrCat(name, " runs on ", absl::StrJoin(manifest.device_types(), " and "),
                        ", the model is on ", environment.device_type());
  }
  if (environment.device_type() == "cuda" && !CoversArchitecture(manifest, environment.sm())) {
    return absl::StrCat(name, " has ", ArchitectureText(manifest), ", the GPU is sm_",
                        environment.sm());
  }
  if (const std::string mismatch = DtypeMismatch(manifest, site); !mismatch.empty()) {
    return absl::StrCat(name, ": ", mismatch);
  }
  if (environment.compile() && !manifest.compile_safe()) {
    return absl::StrCat(name, " is not safe under torch.compile, and the model is compiled");
  }
  // A site is part of a model that trains; a forward alone would break its backward.
  if (!manifest.backward()) return absl::StrCat(name, " has no backward");
  return "";
}

std::string BindingMismatch(const Library& binding, const v1::Environment& environment) {
  const v1::Manifest& manifest = binding.manifest;
  const absl::string_view torch = WithoutLocalVersion(environment.torch_version());
  if (WithoutLocalVersion(manifest.torch_version()) != torch ||
      manifest.torch_cuda_version() != environment.torch_cuda_version()) {
    return absl::StrCat("binding ", NameAndVersion(binding), " is for ",
                        TorchText(manifest.torch_version(), manifest.torch_cuda_version()),
                        ", the process has ",
                        TorchText(environment.torch_version(), environment.torch_cuda_version()));
  }
  // After the match, so that the error of another torch's binding is not in anybody's way.
  if (!binding.error.empty()) {
    return absl::StrCat("binding ", NameAndVersion(binding),
                        " cannot be handed out: ", binding.error);
  }
  // A manifest that names no kind of device is silent on it: ATen runs on all of them.
  if (!manifest.device_types().empty() &&
      !Lists(manifest.device_types(), environment.device_type())) {
    return absl::StrCat("binding ", NameAndVersion(binding), " runs on ",
                        absl::StrJoin(manifest.device_types(), " and "), ", the model is on ",
                        environment.device_type());
  }
  if (environment.compile() && !manifest.compile_safe()) {
    return absl::StrCat("binding ", NameAndVersion(binding),
                        " is not safe under torch.compile, and the model is compiled");
  }
  return "";
}

const Library* SelectBinding(const LibrarySet& libraries, const v1::Environment& environment,
                             std::string* reason) {
  if (environment.torch_version().empty()) {
    *reason = "the process has no torch";
    return nullptr;
  }
  std::vector<std::string> mismatches;
  for (const Library* binding : libraries.OfKind(v1::ARTIFACT_KIND_BINDING)) {
    std::string mismatch = BindingMismatch(*binding, environment);
    if (mismatch.empty()) return binding;
    mismatches.push_back(std::move(mismatch));
  }
  *reason =
      mismatches.empty()
          ? absl::StrCat("there is no binding on this node, want one for ",
                         TorchText(environment.torch_version(), environment.torch_cuda_version()))
          : absl::StrCat("no binding matches: ", absl::StrJoin(mismatches, "; "));
  return nullptr;
}

}  // namespace fuseboard
