#include "server/common/text_proto.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/common/file_reader.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

constexpr size_t kMaxErrors = 8;

class ErrorList : public google::protobuf::io::ErrorCollector {
 public:
  explicit ErrorList(absl::string_view name) : name_(name) {}

  // Positions come from zero; people count from one.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (errors_.size() < kMaxErrors) {
      errors_.push_back(absl::StrCat(name_, ":", line + 1, ":", column + 1, ": ", message));
    }
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    // What the parser only warns of (a deprecated field) is no error.
    static_cast<void>(line), static_cast<void>(column), static_cast<void>(message);
  }
  std::string Text() const { return absl::StrJoin(errors_, "; "); }

 private:
  const absl::string_view name_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::Status ParseTextProto(absl::string_view text, absl::string_view name,
                            google::protobuf::Message* message) {
  ErrorList errors(name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  // No legal file nests deeper than ten; the parser recurses, so a deep one could end the process.
  parser.SetRecursionLimit(32);
  message->Clear();
  if (!parser.ParseFromString(std::string(text), message)) {
    message->Clear();
    return absl::InvalidArgumentError(errors.Text());
  }
  return absl::OkStatus();
}

absl::Status LoadTextProto(const std::string& path, google::protobuf::Message* message,
                           int64_t max_bytes) {
  FB_ASSIGN_OR_RETURN(const FileContent content, ReadFile(path, max_bytes));
  return ParseTextProto(content.text, path, message);
}

}  // namespace fuseboard
