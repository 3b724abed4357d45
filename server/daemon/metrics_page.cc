#include "server/daemon/metrics_page.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/switches/switches.h"

namespace fuseboard {
namespace {

// "RULE_KILL" to "kill".
std::string Label(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return absl::AsciiStrToLower(name);
}

absl::string_view StateOf(const v1::ProcessStatus& process) {
  if (process.gone()) return "gone";
  if (!process.plan_error().empty()) return "refused";
  return process.applied_revision() < process.sent_revision() ? "pending" : "applied";
}

// One saved quantity of all jobs. Absent where either side is; the label says how it was measured.
struct Quantity {
  const char* metric;
  const char* help;
  double unit;
  bool (v1::Savings::*has)() const;
  double (v1::Savings::*get)() const;
  const v1::Measurement& (v1::Window::*side)() const;
};

constexpr std::array<Quantity, 3> kQuantities = {{
    {"fuseboard_saved_launches_per_step",
     "Kernel launches or operators per step that fusing saves a job, newest native against newest "
     "fused window.",
     1, &v1::Savings::has_launches_per_step_saved, &v1::Savings::launches_per_step_saved,
     &v1::Window::launches_per_step},
    {"fuseboard_saved_peak_bytes", "Bytes of peak memory that fusing saves a job.", 1,
     &v1::Savings::has_peak_bytes_saved, &v1::Savings::peak_bytes_saved, &v1::Window::peak_bytes},
    {"fuseboard_saved_step_seconds", "Time per step that fusing saves a job.", 1e-3,
     &v1::Savings::has_step_ms_saved, &v1::Savings::step_ms_saved, &v1::Window::step_ms},
}};

MetricsWriter::Labels SavingLabels(const v1::Savings& savings, const Quantity& quantity) {
  return {
      {"job", savings.job_name()},
      {"method", Label(v1::Method_Name((savings.plan().*quantity.side)().method()), "METHOD_")}};
}

}  // namespace

std::string MetricsPage::Render() const {
  MetricsWriter writer;
  const Snapshot snapshot = config_.snapshots->Current();
  WriteNode(snapshot, &writer);
  WriteSwitches(snapshot, &writer);
  WriteLibraries(snapshot, &writer);
  WriteCalls(&writer);
  WriteProcesses(&writer);
  WriteTraining(&writer);
  WriteSavings(&writer);
  return writer.Text();
}

void MetricsPage::WriteNode(const Snapshot& snapshot, MetricsWriter* writer) const {
  writer->Family("fuseboard_build_info", MetricType::kGauge, "Version of the daemon; always 1.");
  writer->Sample({{"version", FB_VERSION}}, 1);
  writer->Family("fuseboard_start_time_seconds", MetricType::kGauge,
                 "When the daemon began, seconds since the Unix epoch.");
  writer->Sample({}, absl::ToDoubleSeconds(config_.started_at - absl::UnixEpoch()));
  writer->Family("fuseboard_revision", MetricType::kGauge,
                 "Revision of the configuration; comparable within one store only.");
  writer->Sample({{"store_id", snapshot.store_id}}, static_cast<double>(snapshot.revision()));
  writer->Family("fuseboard_store_up", MetricType::kGauge,
                 "1 if the last change could be made durable, 0 if it failed.");
  writer->Sample({{"kind", std::string(config_.store->kind())}},
                 config_.store->Health().ok() ? 1 : 0);
  writer->Family("fuseboard_problems", MetricType::kGauge,
                 "Problems that fusectl status lists, apart from a rejected reload.");
  writer->Sample({}, static_cast<double>(config_.snapshots->Problems().size()));
  writer->Family("fuseboard_config_reloads_total", MetricType::kCounter,
                 "Reloads asked for by SIGHUP, by result.");
  writer->Sample({{"result", "applied"}}, static_cast<double>(config_.reloads->applied.load()));
  writer->Sample({{"result", "rejected"}}, static_cast<double>(config_.reloads->rejected.load()));
}

void MetricsPage::WriteSwitches(const Snapshot& snapshot, MetricsWriter* writer) const {
  const auto in_force = [&snapshot](const auto& setting) {
    return !IsExpired(setting.expires_at_us(), snapshot.now);
  };
  const Switches& switches = *snapshot.switches;
  writer->Family("fuseboard_overrides_active", MetricType::kGauge,
                 "Overrides in force, by what they set.");
  for (const bool enabled : {false, true}) {
    const auto count = std::count_if(
        switches.overrides.begin(), switches.overrides.end(),
        [&](const v1::Override& each) { return in_force(each) && each.enabled() == enabled; });
    writer->Sample({{"state", enabled ? "on" : "off"}}, static_cast<double>(count));
  }
  writer->Family("fuseboard_kills_active", MetricType::kGauge, "Kills in force, by source.");
  writer->Sample(
      {{"source", "store"}},
      static_cast<double>(std::count_if(switches.kills.begin(), switches.kills.end(), in_force)));
  writer->Sample({{"source", "deny_file"}}, static_cast<double>(snapshot.deny->operations.size()));
}

void MetricsPage::WriteLibraries(const Snapshot& snapshot, MetricsWriter* writer) const {
  writer->Family("fuseboard_libraries", MetricType::kGauge,
                 "Libraries on this node, by whether they can be handed out.");
  std::map<std::string, int> broken;
  int good = 0;
  for (const Library& library : snapshot.libraries->libraries()) {
    if (library.error.empty()) {
      ++good;
    } else {
      ++broken[library.manifest.name()];
    }
  }
  int bad = 0;
  for (const auto& [name, count] : broken) bad += count;
  writer->Sample({{"state", "ok"}}, good);
  writer->Sample({{"state", "broken"}}, bad);
  writer->Family("fuseboard_library_errors", MetricType::kGauge,
                 "Versions of a library that cannot be handed out; fusectl kernels says why.");
  for (const auto& [name, count] : broken) writer->Sample({{"library", name}}, count);
}

void MetricsPage::WriteCalls(MetricsWriter* writer) const {
  writer->Family("fuseboard_rpc_duration_seconds", MetricType::kHistogram,
                 "Time of finished calls by method and code; a WatchPlan lasts as long as its "
                 "process.");
  for (const CallStats::Row& row : config_.calls->Read()) {
    writer->Histogram({{"method", row.method}, {"code", row.code}}, CallStats::Bounds(),
                      row.buckets, row.sum_seconds);
  }
  writer->Family("fuseboard_plan_watchers", MetricType::kGauge, "Open WatchPlan streams.");
  writer->Sample({}, config_.hub->WatchCount());
}

void MetricsPage::WriteProcesses(MetricsWriter* writer) const {
  std::map<absl::string_view, int> states = {
      {"applied", 0}, {"pending", 0}, {"refused", 0}, {"gone", 0}};
  std::map<std::tuple<std::string, std::string, std::string>, int64_t> sites;
  for (const v1::ProcessStatus& process : config_.processes->ListProcesses(true)) {
    ++states[StateOf(process)];
    if (process.gone()) continue;
    for (const v1::Decision& decision : process.decisions()) {
      const auto count = process.site_counts().find(decision.site_id());
      if (count == process.site_counts().end()) continue;
      sites[{decision.operation().empty() ? "none" : decision.operation(),
             Label(v1::DecisionKind_Name(decision.kind()), "DECISION_KIND_"),
             Label(v1::Rule_Name(decision.rule()), "RULE_")}] += count->second;
    }
  }
  writer->Family("fuseboard_processes", MetricType::kGauge,
                 "Training processes by state of their newest plan; gone ones of the last hour.");
  for (const auto& [state, count] : states) writer->Sample({{"state", std::string(state)}}, count);
  writer->Family("fuseboard_sites", MetricType::kGauge,
                 "Modules of connected processes by operation, decision and the rule that won.");
  for (const auto& [key, count] : sites) {
    writer->Sample({{"operation", std::get<0>(key)},
                    {"decision", std::get<1>(key)},
                    {"rule", std::get<2>(key)}},
                   static_cast<double>(count));
  }
}

void MetricsPage::WriteTraining(MetricsWriter* writer) const {
  config_.training->Prune([this](absl::string_view id) { return config_.processes->Knows(id); });
  const TrainingStats::Totals totals = config_.training->Read();
  writer->Family("fuseboard_resolves_total", MetricType::kCounter,
                 "Answers to Resolve: a kernel for at least one site, all native, or rejected.");
  for (const auto& [result, count] : totals.resolves) {
    writer->Sample({{"result", result}}, static_cast<double>(count));
  }
  writer->Family("fuseboard_plan_acks_total", MetricType::kCounter,
                 "Plans that processes applied or refused.");
  writer->Sample({{"result", "applied"}}, static_cast<double>(totals.acked));
  writer->Sample({{"result", "refused"}}, static_cast<double>(totals.nacked));
  writer->Family("fuseboard_fused_calls_total", MetricType::kCounter,
                 "Calls that ran a kernel library, as processes reported them.");
  for (const auto& [operation, calls] : totals.operations) {
    writer->Sample({{"operation", operation}}, static_cast<double>(calls.fused));
  }
  writer->Family("fuseboard_fallback_calls_total", MetricType::kCounter,
                 "Calls that fell back inside the operator, by reason.");
  for (const auto& [operation, calls] : totals.operations) {
    for (const auto& [reason, count] : calls.fallbacks) {
      writer->Sample({{"operation", operation}, {"reason", reason}}, static_cast<double>(count));
    }
  }
}

void MetricsPage::WriteSavings(MetricsWriter* writer) const {
  const absl::StatusOr<v1::ListReportsResponse> reports =
      config_.reports->ListReports(v1::ListReportsRequest());
  if (!reports.ok()) return;
  for (const Quantity& quantity : kQuantities) {
    writer->Family(quantity.metric, MetricType::kGauge, quantity.help);
    for (const v1::Savings& savings : reports->savings()) {
      if (!(savings.*quantity.has)()) continue;
      writer->Sample(SavingLabels(savings, quantity), (savings.*quantity.get)() * quantity.unit);
    }
  }
  writer->Family("fuseboard_saving_samples", MetricType::kGauge,
                 "Steps that each side of a saved quantity is the median of.");
  for (const Quantity& quantity : kQuantities) {
    for (const v1::Savings& savings : reports->savings()) {
      if (!(savings.*quantity.has)()) continue;
      for (const bool native : {true, false}) {
        const v1::Window& window = native ? savings.native() : savings.plan();
        writer->Sample(
            {{"job", savings.job_name()},
             {"quantity", std::string(absl::StripPrefix(quantity.metric, "fuseboard_saved_"))},
             {"side", native ? "native" : "fused"}},
            (window.*quantity.side)().samples());
      }
    }
  }
}

}  // namespace fuseboard
