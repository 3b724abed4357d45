#include <google/protobuf/util/json_util.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/command_line/near_name.h"
#include "server/fusectl/commands.h"

namespace fuseboard::fusectl {

bool WantsJson(const Invocation& invocation) {
  return invocation.options.output.value_or("table") == "json";
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // Fails only for an Any of an unknown type; no message of ours holds one.
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : absl::StrCat(R"({"error": ")", status.ToString(), "\"}\n");
}

absl::Status SuggestNear(const absl::Status& status, absl::string_view name,
                         const std::vector<std::string>& candidates) {
  if (!absl::IsNotFound(status) || absl::StrContains(status.message(), "did you mean")) {
    return status;
  }
  const std::string near = NearName(name, candidates);
  if (near.empty()) return status;
  return absl::NotFoundError(absl::StrCat(status.message(), "; did you mean ", near, "?"));
}

}  // namespace fuseboard::fusectl
