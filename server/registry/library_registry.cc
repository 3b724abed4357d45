#include "server/registry/library_registry.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/common/file_reader.h"
#include "server/common/sha256.h"
#include "server/common/status_macros.h"
#include "server/common/text_proto.h"
#include "server/common/utf8.h"

namespace fuseboard {
namespace {

constexpr absl::string_view kManifestSuffix = ".textpb";

// Whatever changes when a file's content does. The change time also moves when somebody sets the
// modification time back.
std::string FileIdentity(const struct stat& stat) {
  return absl::StrCat(stat.st_dev, ":", stat.st_ino, ":", stat.st_mode, ":", stat.st_size, ":",
                      stat.st_mtim.tv_sec, ".", stat.st_mtim.tv_nsec, ":", stat.st_ctim.tv_sec, ".",
                      stat.st_ctim.tv_nsec);
}

std::string PathIdentity(const std::string& path) {
  struct stat stat {};
  if (::stat(path.c_str(), &stat) != 0) return "absent";
  return FileIdentity(stat);
}

std::string LibraryPath(absl::string_view manifest_path) {
  return absl::StrCat(absl::StripSuffix(manifest_path, kManifestSuffix), ".so");
}

std::vector<std::string> AbsolutePaths(const std::vector<std::string>& paths) {
  std::vector<std::string> absolute;
  absolute.reserve(paths.size());
  for (const std::string& path : paths) {
    absolute.push_back(std::filesystem::absolute(path).lexically_normal().string());
  }
  return absolute;
}

// A library's name by its file: libfuseboard_torch.so is fuseboard_torch.
std::string Stem(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  return stem.starts_with("lib") ? stem.substr(3) : stem;
}

}  // namespace

LibraryRegistry::LibraryRegistry(const std::vector<std::string>& dirs)
    : dirs_(AbsolutePaths(dirs)) {}

void LibraryRegistry::SetFolders(const std::vector<std::string>& dirs) {
  absl::MutexLock lock(&mutex_);
  dirs_ = AbsolutePaths(dirs);
}

std::vector<std::string> LibraryRegistry::Folders(const std::string& home,
                                                  const std::vector<std::string>& kernel_dirs) {
  const std::string lib = absl::StrCat(home, "/lib/fuseboard");
  std::vector<std::string> folders = {absl::StrCat(lib, "/kernels")};
  folders.insert(folders.end(), kernel_dirs.begin(), kernel_dirs.end());
  const std::string torch = absl::StrCat(lib, "/torch");
  std::vector<std::string> bindings = {torch};
  std::error_code ignored;  // No such folder: no binding.
  for (const auto& entry : std::filesystem::directory_iterator(torch, ignored)) {
    if (entry.is_directory(ignored)) bindings.push_back(entry.path().string());
  }
  std::ranges::sort(bindings);
  folders.insert(folders.end(), bindings.begin(), bindings.end());
  folders.push_back(lib);
  return folders;
}

std::shared_ptr<const LibrarySet> LibraryRegistry::Scan() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> problems;
  std::vector<std::string> manifests;
  std::string signature;
  for (const std::string& dir : dirs_) {
    const auto paths = ListFolder(dir, kManifestSuffix);
    if (!paths.ok()) {
      problems.emplace_back(paths.status().message());
      continue;
    }
    for (const std::string& path : *paths) {
      // The name goes into plans, which no client could decode.
      if (!IsUtf8(path)) {
        problems.push_back(absl::StrCat(ToUtf8(path), ": the name is not UTF-8"));
        continue;
      }
      absl::StrAppend(&signature, path, " ", PathIdentity(path), " ",
                      PathIdentity(LibraryPath(path)), "\n");
      manifests.push_back(path);
    }
  }
  for (const std::string& problem : problems) absl::StrAppend(&signature, problem, "\n");
  if (current_ != nullptr && signature == signature_) {
    return current_;
  }
  std::vector<Library> libraries;
  for (const std::string& path : manifests) {
    absl::StatusOr<Library> library = LoadLibrary(path);
    if (library.ok()) {
      libraries.push_back(*std::move(library));
    } else {
      problems.emplace_back(library.status().message());
    }
  }
  auto fresh = std::make_shared<const LibrarySet>(std::move(libraries));
  // A touched file with the same content is no change.
  if (current_ == nullptr || current_->digest() != fresh->digest()) current_ = std::move(fresh);
  signature_ = std::move(signature);
  problems_ = std::move(problems);
  return current_;
}

std::vector<std::string> LibraryRegistry::Problems() const {
  absl::MutexLock lock(&mutex_);
  return problems_;
}

absl::StatusOr<Library> LibraryRegistry::LoadLibrary(const std::string& manifest_path) {
  Library library;
  FB_RETURN_IF_ERROR(LoadTextProto(manifest_path, &library.manifest));
  library.path = LibraryPath(manifest_path);
  const std::string stem = Stem(manifest_path);
  library.error = ManifestError(library.manifest, stem);
  // Whatever the manifest claims: what is known of this library is the name of its file.
  library.manifest.set_name(stem);
  if (library.error.empty()) library.error = VerifyFile(library);
  return library;
}

std::string LibraryRegistry::VerifyFile(const Library& library) {
  const absl::StatusOr<OpenFile> file = OpenRegularFile(library.path);
  if (!file.ok()) return std::string(file.status().message());
  if (file->stat.st_size != library.manifest.size_bytes()) {
    return absl::StrCat(library.path, " has ", file->stat.st_size, " bytes, want ",
                        library.manifest.size_bytes());
  }
  const std::string identity = FileIdentity(file->stat);
  auto known = digests_.find(identity);
  if (known == digests_.end()) {
    absl::StatusOr<std::string> digest = Sha256OfFile(file->fd.get());
    if (!digest.ok()) return absl::StrCat(library.path, ": ", digest.status().message());
    // 4096 is far beyond one node's libraries; it only bounds a node that is written to for years.
    if (digests_.size() >= 4096) digests_.clear();
    known = digests_.emplace(identity, *std::move(digest)).first;
  }
  if (known->second != library.manifest.sha256()) {
    return absl::StrCat(library.path, " has sha256 ", known->second, ", want ",
                        library.manifest.sha256());
  }
  return "";
}

}  // namespace fuseboard
