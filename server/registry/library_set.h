// A LibrarySet is what is known of the libraries on this node at one time: a manifest for each, and
// whether the file beside it may be handed out. An immutable value; share it.
//
// It holds no pointers into libraries, and nothing here ever maps one.

#ifndef SERVER_REGISTRY_LIBRARY_SET_H_
#define SERVER_REGISTRY_LIBRARY_SET_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fuseboard/v1/catalog.pb.h"
#include "fuseboard/v1/plan.pb.h"

namespace fuseboard {

struct Library {
  v1::Manifest manifest;
  // Absolute path of the library.
  std::string path;
  // Empty: the file was verified. Else why it must not be handed out.
  std::string error;
};

class LibrarySet {
 public:
  LibrarySet() = default;
  // Of libraries with the same kind, name, version and torch, the first one counts.
  explicit LibrarySet(std::vector<Library> libraries);

  // By kind, name, newest version first.
  const std::vector<Library>& libraries() const { return libraries_; }
  // Of the manifests, paths and errors.
  const std::string& digest() const { return digest_; }

  // Kernel libraries of `operation`, newest version first.
  std::vector<const Library*> Kernels(absl::string_view operation) const;
  // All bindings, or all profilers.
  std::vector<const Library*> OfKind(v1::ArtifactKind kind) const;
  // Names of kernels and composites, sorted, each once.
  std::vector<std::string> Operations() const;
  // Whether some binding implements `operation` as a composite.
  bool IsComposite(absl::string_view operation) const;

 private:
  std::vector<Library> libraries_;
  std::string digest_;
};

// The artifact that hands out `library`. REQUIRES: library.error is empty.
v1::Artifact ToArtifact(const Library& library);

}  // namespace fuseboard

#endif  // SERVER_REGISTRY_LIBRARY_SET_H_
