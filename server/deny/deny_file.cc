#include "server/deny/deny_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/common/file_reader.h"

namespace fuseboard {
namespace {

constexpr int64_t kMaxBytes = 64 << 10;

bool IsOperationOrAll(absl::string_view text) {
  if (text == "*") return true;
  return text.size() <= 64 && std::ranges::all_of(text, [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
         });
}

// Why the file must not be believed, or empty.
std::string Distrust(const std::string& path, const struct stat& stat, uid_t owner) {
  if (stat.st_uid != owner) {
    return absl::StrFormat("%s is ignored: its owner is uid %d, want %d", path, stat.st_uid, owner);
  }
  if ((stat.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::StrFormat("%s is ignored: its mode is %04o, others may write it", path,
                           stat.st_mode & 07777);
  }
  return "";
}

}  // namespace

bool DenyList::Contains(absl::string_view operation) const {
  return std::ranges::any_of(
      operations, [&](const std::string& denied) { return denied == "*" || denied == operation; });
}

std::vector<std::string> ParseDenyList(absl::string_view text, std::string* problem) {
  problem->clear();
  std::vector<std::string> operations;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (IsOperationOrAll(line)) {
      operations.emplace_back(line);
    } else if (problem->empty()) {
      *problem = absl::StrCat("line ", number, " is no operation: \"",
                              absl::CHexEscape(line.substr(0, 64)), "\"");
    }
  }
  std::ranges::sort(operations);
  operations.erase(std::ranges::unique(operations).begin(), operations.end());
  return operations;
}

DenyFile::DenyFile(std::string path, uid_t owner)
    : path_(std::move(path)),
      owner_(owner),
      list_(std::make_shared<const DenyList>(DenyList{path_, {}})) {}

std::shared_ptr<const DenyList> DenyFile::Poll() {
  absl::MutexLock lock(&mutex_);
  if (path_.empty()) return list_;
  std::vector<std::string> operations;
  const absl::StatusOr<FileContent> content = ReadFile(path_, kMaxBytes, Symlinks::kRefuse);
  if (content.ok()) {
    problem_ = Distrust(path_, content->stat, owner_);
    if (problem_.empty()) {
      operations = ParseDenyList(content->text, &problem_);
      if (!problem_.empty()) problem_ = absl::StrCat(path_, ": ", problem_);
    }
  } else if (absl::IsNotFound(content.status())) {
    problem_.clear();
  } else {
    problem_ = absl::StrCat(content.status().message(), "; the last list stays in force");
    return list_;
  }
  if (operations != list_->operations) {
    list_ = std::make_shared<const DenyList>(DenyList{path_, std::move(operations)});
  }
  return list_;
}

std::string DenyFile::Problem() const {
  absl::MutexLock lock(&mutex_);
  return problem_;
}

}  // namespace fuseboard
