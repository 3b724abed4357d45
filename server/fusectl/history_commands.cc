// What operators set and did: overrides, audit.
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fuseboard/v1/control.grpc.pb.h"
#include "server/fusectl/commands.h"
#include "server/fusectl/format.h"
#include "server/fusectl/table.h"

namespace fuseboard::fusectl {

absl::Status RunOverrides(const Invocation& invocation, Connection* daemon, std::string* out) {
  const auto overrides =
      daemon->Call(&v1::Control::Stub::ListOverrides, v1::ListOverridesRequest());
  if (!overrides.ok()) return overrides.status();
  const auto kills = daemon->Call(&v1::Control::Stub::ListKills, v1::ListKillsRequest());
  if (!kills.ok()) return kills.status();
  if (WantsJson(invocation)) {
    absl::StrAppend(out, "{\"overrides\": ", ToJson(*overrides), ", \"kills\": ", ToJson(*kills),
                    "}\n");
    return absl::OkStatus();
  }
  Table table({{"OPERATION"},
               {"STATE"},
               {"SCOPE"},
               {"EXPIRES"},
               {"REVISION", Align::kRight},
               {"SINCE"},
               {"AUTHOR"},
               {"REASON"}});
  const absl::Time now = absl::Now();
  const auto add = [&table, now](const auto& setting, const std::string& state) {
    table.AddRow({setting.operation(), state, FormatScope(setting.scope()),
                  FormatExpiry(setting.expires_at_us(), now), absl::StrCat(setting.revision()),
                  FormatTimeUs(setting.created_at_us()), setting.author(), setting.reason()});
  };
  for (const v1::Kill& kill : kills->kills()) add(kill, "killed");
  for (const v1::Override& override : overrides->overrides()) {
    add(override, override.enabled() ? "on" : "off");
  }
  absl::StrAppend(out, table.Empty() ? "no override and no kill\n" : table.ToString());
  return absl::OkStatus();
}

absl::Status RunAudit(const Invocation& invocation, Connection* daemon, std::string* out) {
  v1::ListAuditRequest request;
  request.set_limit(static_cast<int32_t>(invocation.options.limit.value_or(0)));
  const auto response = daemon->Call(&v1::Control::Stub::ListAudit, request);
  if (!response.ok()) return response.status();
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  Table table({{"REVISION", Align::kRight},
               {"TIME"},
               {"ACTION"},
               {"OPERATION"},
               {"SCOPE"},
               {"BEFORE"},
               {"AFTER"},
               {"AUTHOR"},
               {"REASON"}});
  for (const v1::AuditRecord& record : response->records()) {
    table.AddRow({absl::StrCat(record.revision()), FormatTimeUs(record.at_us()), record.action(),
                  record.operation(), FormatScope(record.scope()), record.before(), record.after(),
                  record.author(), record.reason()});
  }
  absl::StrAppend(out, table.Empty() ? "no change on record\n" : table.ToString());
  return absl::OkStatus();
}

}  // namespace fuseboard::fusectl
