#include "server/daemon/instance_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

std::string DescribeHolder(int fd) {
  std::array<char, 128> buffer{};
  const ssize_t size = pread(fd, buffer.data(), buffer.size(), 0);
  const absl::string_view text(buffer.data(), size > 0 ? static_cast<size_t>(size) : 0);
  // Between lock and write the holder's file is empty, or still speaks of its predecessor.
  if (text.empty()) return "a daemon that is just starting";
  return absl::CHexEscape(absl::StripAsciiWhitespace(text));
}

}  // namespace

absl::StatusOr<InstanceLock> InstanceLock::Acquire(const std::string& path, absl::Time started_at) {
  // O_NOFOLLOW: in a folder that others may write to, a link could aim the write elsewhere.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the lock file ", path));
  }
  InstanceLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("another daemon holds ", path, ": ", DescribeHolder(fd)));
  }
  const std::string text =
      absl::StrCat("pid ", getpid(), " started ",
                   absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", started_at, absl::UTCTimeZone()), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return lock;
}

InstanceLock::InstanceLock(InstanceLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

InstanceLock& InstanceLock::operator=(InstanceLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

InstanceLock::~InstanceLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace fuseboard
