#include "server/daemon/unix_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

absl::Status MakeOne(const std::string& folder, mode_t mode) {
  if (mkdir(folder.c_str(), mode) == 0) {
    // mkdir's mode is cut by the umask; this one is meant.
    if (chmod(folder.c_str(), mode) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot set the mode of ", folder));
  }
  if (errno == EEXIST) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot create the folder ", folder));
}

}  // namespace

absl::Status EnsureFolder(const std::string& folder, mode_t mode) {
  for (size_t slash = folder.find('/', 1); slash != std::string::npos;
       slash = folder.find('/', slash + 1)) {
    absl::Status status = MakeOne(folder.substr(0, slash), 0755);
    if (!status.ok()) return status;
  }
  absl::Status status = MakeOne(folder, mode);
  if (!status.ok()) return status;
  struct stat found {};
  if (stat(folder.c_str(), &found) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot inspect the folder ", folder));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(folder, " is not a folder"));
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write to the folder ", folder));
  }
  return absl::OkStatus();
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot inspect ", path));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " exists and is not a socket"));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove the stale socket ", path));
  }
  return absl::OkStatus();
}

absl::Status SetSocketMode(const std::string& path, mode_t mode) {
  if (chmod(path.c_str(), mode) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot set the mode of ", path));
}

}  // namespace fuseboard
