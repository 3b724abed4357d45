// The deny file: operations that are killed on this node whatever any store says. It is what
// reaches even a user's private daemon, so it is believed only if root alone can write it.
//
// One operation a line, "*" for all, "#" begins a comment. Poll reads it again when it changed.
// Absent is the same as empty. A file that is not to be trusted is ignored as a whole and reported;
// one that fails to be read after a good load leaves the last list in force. Thread-safe.

#ifndef SERVER_DENY_DENY_FILE_H_
#define SERVER_DENY_DENY_FILE_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace fuseboard {

struct DenyList {
  std::string path;                     // For reasons.
  std::vector<std::string> operations;  // Sorted, each once.
  // Whether `operation` is denied, itself or by "*".
  bool Contains(absl::string_view operation) const;
  bool DeniesAll() const { return Contains("*"); }
};

class DenyFile {
 public:
  // Empty path: nothing is ever denied. `owner` is the uid that must own the file.
  explicit DenyFile(std::string path, uid_t owner = 0);

  // Reads the file if it changed and returns the list in force; the same object while it is the
  // same list.
  std::shared_ptr<const DenyList> Poll();

  // What is wrong with the file, or empty.
  std::string Problem() const;

 private:
  const std::string path_;
  const uid_t owner_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<const DenyList> list_ ABSL_GUARDED_BY(mutex_);
  std::string problem_ ABSL_GUARDED_BY(mutex_);
};

// The operations that `text` names, sorted, each once. Lines that are no operation are left out and
// described in `problem`.
std::vector<std::string> ParseDenyList(absl::string_view text, std::string* problem);

}  // namespace fuseboard

#endif  // SERVER_DENY_DENY_FILE_H_
