// Whether a library can run where a process runs. Pure; every answer is a sentence with both
// values, or empty for "yes".

#ifndef SERVER_RESOLVER_COMPATIBILITY_H_
#define SERVER_RESOLVER_COMPATIBILITY_H_

#include <string>

#include "absl/strings/string_view.h"
#include "fuseboard/v1/plan.pb.h"
#include "server/registry/library_set.h"

namespace fuseboard {

// Why this kernel library cannot serve `site`: unusable file, kind of device, architecture of the
// GPU, dtype of a parameter, torch.compile, no backward.
std::string KernelMismatch(const Library& kernel, const v1::Site& site,
                           const v1::Environment& environment);

// Why this binding cannot be loaded by the process.
std::string BindingMismatch(const Library& binding, const v1::Environment& environment);

// The first binding that matches, or nullptr; then `reason` says why, naming what is there.
const Library* SelectBinding(const LibrarySet& libraries, const v1::Environment& environment,
                             std::string* reason);

// Whether device code for `sm` is in the library: a binary of the same major architecture that is
// not newer, or PTX that is not newer.
bool CoversArchitecture(const v1::Manifest& manifest, int sm);

// "2.11.0+cu130" -> "2.11.0".
absl::string_view WithoutLocalVersion(absl::string_view version);

}  // namespace fuseboard

#endif  // SERVER_RESOLVER_COMPATIBILITY_H_
