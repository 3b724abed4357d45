// Reads whole regular files of bounded size.
//
// A file is opened once; all that is said of it (owner, mode, size, content) is said of that open
// file, so that a file swapped between check and read cannot pass as another. Never blocks on a
// FIFO or device: whatever is not a regular file is refused.

#ifndef SERVER_COMMON_FILE_READER_H_
#define SERVER_COMMON_FILE_READER_H_

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fuseboard {

// A file descriptor that closes itself. Movable, not copyable.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd();
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  int get() const { return fd_; }

 private:
  int fd_;
};

struct OpenFile {
  OwnedFd fd;
  struct stat stat;
};

struct FileContent {
  std::string text;
  struct stat stat;
};

enum class Symlinks { kFollow, kRefuse };

// Opens a regular file for reading.
//
// Errors: NotFound if there is none; FailedPrecondition if it is no regular file or, with kRefuse,
// a symbolic link; others, as PermissionDenied, by errno. All name the path.
absl::StatusOr<OpenFile> OpenRegularFile(const std::string& path,
                                         Symlinks symlinks = Symlinks::kFollow);

// Opens and reads all of it.
//
// Errors: as OpenRegularFile; ResourceExhausted if it has more than `max_bytes` (found from the
// size before anything is read, and again if it grew meanwhile).
absl::StatusOr<FileContent> ReadFile(const std::string& path, int64_t max_bytes,
                                     Symlinks symlinks = Symlinks::kFollow);

// Paths of the entries of `dir` whose name ends in `suffix`, sorted; none if there is no such
// folder.
//
// Errors: by errno, naming the folder.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& dir,
                                                    absl::string_view suffix);

// Canonical status for `error` (an errno), with "`what`: <its text>".
absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace fuseboard

#endif  // SERVER_COMMON_FILE_READER_H_
