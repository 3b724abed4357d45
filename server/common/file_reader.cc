#include "server/common/file_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

absl::Status NotRegular(absl::string_view path) {
  return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
}

}  // namespace

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

OwnedFd::OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  return absl::ErrnoToStatus(error, what);
}

absl::StatusOr<OpenFile> OpenRegularFile(const std::string& path, Symlinks symlinks) {
  // O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
  int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  if (symlinks == Symlinks::kRefuse) flags |= O_NOFOLLOW;
  OpenFile file{OwnedFd(open(path.c_str(), flags)), {}};
  if (file.fd.get() < 0) {
    const int error = errno;
    if (error == ELOOP) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is a symbolic link"));
    }
    // A socket, or a device without a driver. By errno it would pass for a file that is not there.
    if (error == ENXIO || error == ENODEV) return NotRegular(path);
    return ErrnoStatus(error, path);
  }
  if (fstat(file.fd.get(), &file.stat) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(file.stat.st_mode)) return NotRegular(path);
  return file;
}

absl::StatusOr<FileContent> ReadFile(const std::string& path, int64_t max_bytes,
                                     Symlinks symlinks) {
  FB_ASSIGN_OR_RETURN(const OpenFile file, OpenRegularFile(path, symlinks));
  const auto too_large = [&](int64_t bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", bytes, " bytes, want at most ", max_bytes));
  };
  if (file.stat.st_size > max_bytes) return too_large(file.stat.st_size);
  FileContent content{"", file.stat};
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = read(file.fd.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, path);
    if (count == 0) return content;
    content.text.append(buffer, static_cast<size_t>(count));
    const auto bytes = static_cast<int64_t>(content.text.size());
    if (bytes > max_bytes) return too_large(bytes);
  }
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& dir,
                                                    absl::string_view suffix) {
  struct CloseFolder {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  const std::unique_ptr<DIR, CloseFolder> folder(opendir(dir.c_str()));
  std::vector<std::string> paths;
  if (folder == nullptr) {
    if (errno == ENOENT) return paths;
    return ErrnoStatus(errno, dir);
  }
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(folder.get());
    if (entry == nullptr) break;
    const absl::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (absl::EndsWith(name, suffix)) paths.push_back(absl::StrCat(dir, "/", name));
  }
  if (errno != 0) return ErrnoStatus(errno, dir);
  std::ranges::sort(paths);
  return paths;
}

}  // namespace fuseboard
