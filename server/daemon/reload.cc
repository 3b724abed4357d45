#include "server/daemon/reload.h"

#include <google/protobuf/text_format.h>

#include <array>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace fuseboard {
namespace {

constexpr std::array<absl::string_view, 4> kReloadable = {"catalog_dirs", "kernel_dirs",
                                                          "drain_seconds", "idle_exit_seconds"};

std::string Value(const v1::DaemonConfig& config, const google::protobuf::FieldDescriptor* field) {
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(config, field, -1, &text);
  return text;
}

}  // namespace

absl::Status CheckReloadable(const v1::DaemonConfig& current, const v1::DaemonConfig& next) {
  std::vector<std::string> changed;
  const google::protobuf::Descriptor* descriptor = v1::DaemonConfig::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    if (absl::c_linear_search(kReloadable, field->name())) continue;
    const std::string before = Value(current, field);
    const std::string after = Value(next, field);
    if (before != after) {
      changed.push_back(absl::StrCat(field->name(), " from ", before, " to ", after));
    }
  }
  if (changed.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("needs a restart to change ", absl::StrJoin(changed, "; ")));
}

}  // namespace fuseboard
