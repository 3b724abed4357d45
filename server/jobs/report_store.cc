#include "server/jobs/report_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

constexpr int kMaxKernelNames = 256;
constexpr int kDefaultLimit = 100;
constexpr int kMaxLimit = 1000;

absl::Status CheckMeasurement(absl::string_view field, bool present,
                              const v1::Measurement& measurement) {
  if (!present) return absl::OkStatus();
  const std::string name = absl::StrCat("window.", field);
  if (!std::isfinite(measurement.value()) || measurement.value() < 0) {
    return BadRequest(absl::StrCat(name, ".value"),
                      absl::StrCat(measurement.value(), ", want a number of at least 0"));
  }
  if (!v1::Method_IsValid(measurement.method()) || measurement.method() == v1::METHOD_UNSPECIFIED) {
    return BadRequest(absl::StrCat(name, ".method"),
                      absl::StrCat(measurement.method(), ", want how the number was got"));
  }
  if (measurement.samples() < 0) {
    return BadRequest(absl::StrCat(name, ".samples"),
                      absl::StrCat(measurement.samples(), ", want at least 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const v1::Window& window) {
  if (window.variant() != v1::VARIANT_NATIVE && window.variant() != v1::VARIANT_PLAN) {
    return BadRequest("window.variant", absl::StrCat(window.variant(), ", want native or plan"));
  }
  if (window.steps() < 1) {
    return BadRequest("window.steps", absl::StrCat(window.steps(), ", want at least 1"));
  }
  if (window.first_step() < 0) {
    return BadRequest("window.first_step", absl::StrCat(window.first_step(), ", want at least 0"));
  }
  if (window.dropped_records() < 0) {
    return BadRequest("window.dropped_records",
                      absl::StrCat(window.dropped_records(), ", want at least 0"));
  }
  if (window.kernels_size() > kMaxKernelNames) {
    return BadRequest("window.kernels", absl::StrCat(window.kernels_size(), " names, want at most ",
                                                     kMaxKernelNames));
  }
  FB_RETURN_IF_ERROR(CheckMeasurement("launches_per_step", window.has_launches_per_step(),
                                      window.launches_per_step()));
  FB_RETURN_IF_ERROR(CheckMeasurement("device_ms_per_step", window.has_device_ms_per_step(),
                                      window.device_ms_per_step()));
  FB_RETURN_IF_ERROR(
      CheckMeasurement("copies_per_step", window.has_copies_per_step(), window.copies_per_step()));
  FB_RETURN_IF_ERROR(CheckMeasurement("step_ms", window.has_step_ms(), window.step_ms()));
  return CheckMeasurement("peak_bytes", window.has_peak_bytes(), window.peak_bytes());
}

}  // namespace

ReportStore::ReportStore(const ProcessTable* processes, Options options)
    : processes_(processes), options_(options) {}

absl::Status ReportStore::Report(const v1::ReportWindowRequest& request) {
  FB_RETURN_IF_ERROR(CheckWindow(request.window()));
  FB_ASSIGN_OR_RETURN(const auto registered, processes_->FindByInstance(request.instance_id()));
  const v1::Job& job = registered->job();
  if (request.job_name() != job.name() || request.rank() != job.rank()) {
    return BadRequest("job_name", absl::StrCat("rank ", request.rank(), " of \"",
                                               request.job_name(), "\", but the process is rank ",
                                               job.rank(), " of \"", job.name(), "\""));
  }
  absl::MutexLock lock(&mutex_);
  const auto known = std::ranges::find_if(
      jobs_, [&](const JobReports& reports) { return reports.job_name == request.job_name(); });
  JobReports reports{request.job_name(), {}};
  if (known != jobs_.end()) {
    reports = std::move(*known);
    jobs_.erase(known);
  }
  reports.windows.push_front(request);
  if (reports.windows.size() > options_.windows_per_job) reports.windows.pop_back();
  jobs_.push_front(std::move(reports));
  if (jobs_.size() > options_.jobs) jobs_.pop_back();
  return absl::OkStatus();
}

absl::StatusOr<v1::ListReportsResponse> ReportStore::ListReports(
    const v1::ListReportsRequest& request) const {
  if (request.limit() < 0 || request.limit() > kMaxLimit) {
    return BadRequest("limit", absl::StrCat(request.limit(), ", want 0 to ", kMaxLimit));
  }
  const auto limit = static_cast<size_t>(request.limit() == 0 ? kDefaultLimit : request.limit());
  v1::ListReportsResponse response;
  std::vector<v1::ReportWindowRequest> windows;
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (const JobReports& reports : jobs_) {
      if (!request.job_name().empty() && reports.job_name != request.job_name()) continue;
      windows.insert(windows.end(), reports.windows.begin(), reports.windows.end());
      *response.add_savings() = ComputeSavings(reports.windows);
    }
  }
  // Within a job they are in order of arrival; a stable sort keeps that among equal times.
  std::ranges::stable_sort(windows, [](const auto& a, const auto& b) {
    return a.window().started_at_us() > b.window().started_at_us();
  });
  if (windows.size() > limit) windows.resize(limit);
  for (v1::ReportWindowRequest& window : windows) *response.add_windows() = std::move(window);
  std::sort(response.mutable_savings()->begin(), response.mutable_savings()->end(),
            [](const v1::Savings& a, const v1::Savings& b) { return a.job_name() < b.job_name(); });
  return response;
}

}  // namespace fuseboard
