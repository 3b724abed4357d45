#include "server/common/text_proto.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/common/file_reader.h"
#include "server/common/status_macros.h"
#include "server/common/utf8.h"

namespace fuseboard {
namespace {

constexpr size_t kMaxErrors = 8;
constexpr size_t kMaxShown = 64;  // Of a value in an error.

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
  // Errors quote the file, whose bytes may be any.
  std::string Text() const { return ToUtf8(absl::StrJoin(errors_, "; ")); }

 private:
  const absl::string_view name_;
  std::vector<std::string> errors_;
};

absl::Status CheckTexts(const google::protobuf::Message& message, absl::string_view name);

// The parser takes any byte in a text, but no receiver decodes a message with a text that is not
// UTF-8.
absl::Status CheckFieldTexts(const google::protobuf::Message& message,
                             const google::protobuf::FieldDescriptor& field,
                             absl::string_view name) {
  using Field = google::protobuf::FieldDescriptor;
  if (field.type() != Field::TYPE_STRING && field.cpp_type() != Field::CPPTYPE_MESSAGE) {
    return absl::OkStatus();
  }
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const int count = field.is_repeated() ? reflection.FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    if (field.cpp_type() == Field::CPPTYPE_MESSAGE) {
      FB_RETURN_IF_ERROR(CheckTexts(field.is_repeated()
                                        ? reflection.GetRepeatedMessage(message, &field, i)
                                        : reflection.GetMessage(message, &field),
                                    name));
      continue;
    }
    const std::string text = field.is_repeated() ? reflection.GetRepeatedString(message, &field, i)
                                                 : reflection.GetString(message, &field);
    if (IsUtf8(text)) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", field.name(), " is \"",
                                                   absl::CHexEscape(text.substr(0, kMaxShown)),
                                                   "\", want UTF-8"));
  }
  return absl::OkStatus();
}

absl::Status CheckTexts(const google::protobuf::Message& message, absl::string_view name) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    FB_RETURN_IF_ERROR(CheckFieldTexts(message, *field, name));
  }
  return absl::OkStatus();
}

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
  absl::Status texts = CheckTexts(*message, name);
  if (!texts.ok()) message->Clear();
  return texts;
}

absl::Status LoadTextProto(const std::string& path, google::protobuf::Message* message,
                           int64_t max_bytes) {
  FB_ASSIGN_OR_RETURN(const FileContent content, ReadFile(path, max_bytes));
  return ParseTextProto(content.text, path, message);
}

}  // namespace fuseboard
