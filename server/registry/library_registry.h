// A LibraryRegistry finds the libraries of this node and verifies them each time it hands them out.
//
// It looks at manifests (<stem>.textpb) and at the file beside each (<stem>.so): regular, of the
// stated size, digest and ABI. A fault of one library is that library's error and nobody else's.
// Digests are remembered by device, inode, size and change times, so an unchanged node costs a few
// stat calls per Scan and a swapped file is hashed again. It never maps a library. Thread-safe.

#ifndef SERVER_REGISTRY_LIBRARY_REGISTRY_H_
#define SERVER_REGISTRY_LIBRARY_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/registry/library_set.h"

namespace fuseboard {

class LibraryRegistry {
 public:
  // Folders that hold manifests, in order of precedence.
  explicit LibraryRegistry(const std::vector<std::string>& dirs);

  // The folders of an installation: lib/fuseboard/kernels and `kernel_dirs`, every folder of
  // lib/fuseboard/torch, and lib/fuseboard itself for the profiler.
  static std::vector<std::string> Folders(const std::string& home,
                                          const std::vector<std::string>& kernel_dirs);

  // Other folders from the next Scan on. What is known of unchanged files is kept.
  void SetFolders(const std::vector<std::string>& dirs);

  // The libraries as they are now. The same object as long as nothing changed on disk.
  std::shared_ptr<const LibrarySet> Scan();

  // What is wrong with folders or unreadable manifests, as of the last Scan; empty if nothing is.
  std::vector<std::string> Problems() const;

 private:
  absl::StatusOr<Library> LoadLibrary(const std::string& manifest_path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string VerifyFile(const Library& library) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<std::string> dirs_ ABSL_GUARDED_BY(mutex_);
  std::string signature_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const LibrarySet> current_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mutex_);
  // Identity of a file (device, inode, size, times) to its digest.
  absl::flat_hash_map<std::string, std::string> digests_ ABSL_GUARDED_BY(mutex_);
};

// What is wrong with the manifest itself; empty if nothing is. `stem` is its file's name, less
// "lib".
std::string ManifestError(const v1::Manifest& manifest, absl::string_view stem);

}  // namespace fuseboard

#endif  // SERVER_REGISTRY_LIBRARY_REGISTRY_H_
