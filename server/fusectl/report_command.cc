#include <array>

#include "absl/strings/str_cat.h"
#include "fuseboard/v1/profile.grpc.pb.h"
#include "server/fusectl/commands.h"
#include "server/fusectl/format.h"
#include "server/fusectl/table.h"

namespace fuseboard::fusectl {
namespace {

using Formatter = std::string (*)(double);

std::string FormatMs(double ms) { return absl::StrCat(FormatNumber(ms), " ms"); }

// One quantity of a window; "" if it was not measured.
std::string Value(bool present, const v1::Measurement& measurement, Formatter format) {
  return present ? format(measurement.value()) : "";
}

std::string Origin(bool present, const v1::Measurement& measurement) {
  if (!present) return "";
  return absl::StrCat(FormatMethod(measurement.method()), ", ", measurement.samples(), " steps");
}

struct Quantity {
  const char* name;
  Formatter format;
  bool (v1::Window::*has)() const;
  const v1::Measurement& (v1::Window::*get)() const;
};

constexpr std::array<Quantity, 5> kQuantities = {{
    {"launches/step", &FormatNumber, &v1::Window::has_launches_per_step,
     &v1::Window::launches_per_step},
    {"device time/step", &FormatMs, &v1::Window::has_device_ms_per_step,
     &v1::Window::device_ms_per_step},
    {"copies/step", &FormatNumber, &v1::Window::has_copies_per_step, &v1::Window::copies_per_step},
    {"step time", &FormatMs, &v1::Window::has_step_ms, &v1::Window::step_ms},
    {"peak memory", &FormatBytes, &v1::Window::has_peak_bytes, &v1::Window::peak_bytes},
}};

// The difference is shown only where both sides were measured in the same way.
std::string Saved(const v1::Savings& savings, const Quantity& quantity) {
  if (!(savings.native().*quantity.has)() || !(savings.plan().*quantity.has)()) return "";
  const v1::Measurement& native = (savings.native().*quantity.get)();
  const v1::Measurement& plan = (savings.plan().*quantity.get)();
  if (native.method() != plan.method()) return "";
  std::string text = quantity.format(native.value() - plan.value());
  if (native.value() > 0) {
    absl::StrAppend(
        &text, " (",
        FormatNumber(static_cast<int>(1000 * (native.value() - plan.value()) / native.value()) /
                     10.0),
        " %)");
  }
  return text;
}

void AppendSavings(const v1::Savings& savings, std::string* out) {
  absl::StrAppend(out, savings.job_name(), " on ",
                  savings.device_name().empty() ? "an unnamed device" : savings.device_name(),
                  "\n");
  Table table({{"  QUANTITY"},
               {"NATIVE", Align::kRight},
               {"FUSED", Align::kRight},
               {"SAVED", Align::kRight},
               {"NATIVE MEASURED BY"},
               {"FUSED MEASURED BY"}});
  for (const Quantity& quantity : kQuantities) {
    const bool native = (savings.native().*quantity.has)();
    const bool plan = (savings.plan().*quantity.has)();
    const v1::Measurement& native_value = (savings.native().*quantity.get)();
    const v1::Measurement& plan_value = (savings.plan().*quantity.get)();
    table.AddRow({absl::StrCat("  ", quantity.name), Value(native, native_value, quantity.format),
                  Value(plan, plan_value, quantity.format), Saved(savings, quantity),
                  Origin(native, native_value), Origin(plan, plan_value)});
  }
  absl::StrAppend(out, table.ToString(), "\n");
}

}  // namespace

absl::Status RunReport(const Invocation& invocation, Connection* daemon, std::string* out) {
  v1::ListReportsRequest request;
  request.set_job_name(invocation.options.job.value_or(""));
  request.set_limit(static_cast<int32_t>(invocation.options.limit.value_or(0)));
  const auto response = daemon->Call(&v1::Profile::Stub::ListReports, request);
  if (!response.ok()) return response.status();
  if (WantsJson(invocation)) {
    *out += ToJson(*response);
    return absl::OkStatus();
  }
  for (const v1::Savings& savings : response->savings()) AppendSavings(savings, out);
  Table table({{"JOB"},
               {"RANK", Align::kRight},
               {"VARIANT"},
               {"STEPS"},
               {"LAUNCHES/STEP", Align::kRight},
               {"STEP TIME", Align::kRight},
               {"PEAK MEMORY", Align::kRight},
               {"REVISION", Align::kRight},
               {"STARTED"},
               {"NOTE"}});
  for (const v1::ReportWindowRequest& report : response->windows()) {
    const v1::Window& window = report.window();
    std::string note = window.error();
    if (note.empty() && window.dropped_records() > 0) {
      note = absl::StrCat("incomplete: ", window.dropped_records(), " records dropped");
    }
    table.AddRow({report.job_name(), absl::StrCat(report.rank()),
                  window.variant() == v1::VARIANT_NATIVE ? "native" : "fused",
                  absl::StrCat(window.first_step(), "..", window.first_step() + window.steps() - 1),
                  Value(window.has_launches_per_step(), window.launches_per_step(), &FormatNumber),
                  Value(window.has_step_ms(), window.step_ms(), &FormatMs),
                  Value(window.has_peak_bytes(), window.peak_bytes(), &FormatBytes),
                  absl::StrCat(window.revision()), FormatTimeUs(window.started_at_us()), note});
  }
  absl::StrAppend(out, table.Empty() ? "no window has been reported\n" : table.ToString());
  return absl::OkStatus();
}

}  // namespace fuseboard::fusectl
