#include "server/jobs/process_table.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"

namespace fuseboard {
namespace {

auto SortKey(const v1::Job& job) {
  return std::make_tuple(std::cref(job.name()), job.rank(), std::cref(job.instance_id()));
}

absl::Status UnknownInstance(absl::string_view instance_id) {
  return WithReason(
      absl::NotFoundError(absl::StrCat("no process has the instance id \"", instance_id, "\"")),
      kUnknownInstance, {{"instance_id", instance_id}});
}

}  // namespace

ProcessTable::ProcessTable(const Clock* clock, Options options)
    : clock_(clock), options_(options), created_(clock->Monotonic()) {}

void ProcessTable::Register(std::shared_ptr<const v1::ResolveRequest> request,
                            std::shared_ptr<const v1::Plan> plan) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  Process& process = processes_[request->job().instance_id()];
  process.request = std::move(request);
  process.sent = std::move(plan);
  process.last_sign = now;
  process.left = false;
  ForgetOld(now);
}

void ProcessTable::RecordSent(absl::string_view instance_id, std::shared_ptr<const v1::Plan> plan) {
  absl::MutexLock lock(&mutex_);
  const auto it = processes_.find(instance_id);
  if (it != processes_.end()) it->second.sent = std::move(plan);
}

absl::Status ProcessTable::RecordAck(const v1::AckPlanRequest& ack) {
  absl::MutexLock lock(&mutex_);
  const auto it = processes_.find(ack.instance_id());
  if (it == processes_.end()) return UnknownInstance(ack.instance_id());
  Process& process = it->second;
  process.last_sign = clock_->Monotonic();
  process.left = false;
  process.ack = ack;
  // A refused plan changes nothing: the one before it stays applied.
  if (!ack.error().empty()) return absl::OkStatus();
  process.applied_revision = ack.revision();
  process.applied_step = ack.applied_step();
  return absl::OkStatus();
}

bool ProcessTable::RecordProgress(const v1::ReportProgressRequest& progress) {
  absl::MutexLock lock(&mutex_);
  const auto it = processes_.find(progress.instance_id());
  if (it == processes_.end()) return false;
  it->second.last_sign = clock_->Monotonic();
  it->second.left = progress.leaving();
  it->second.progress = progress;
  return true;
}

bool ProcessTable::Knows(absl::string_view instance_id) const {
  absl::ReaderMutexLock lock(&mutex_);
  return processes_.contains(instance_id);
}

std::vector<v1::ProcessStatus> ProcessTable::ListProcesses(bool include_gone) const {
  const absl::Duration now = clock_->Monotonic();
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<v1::ProcessStatus> statuses;
  for (const Process* process : Sorted(include_gone)) {
    statuses.push_back(ToStatus(*process, now));
  }
  return statuses;
}

absl::StatusOr<std::shared_ptr<const v1::ResolveRequest>> ProcessTable::FindByInstance(
    absl::string_view instance_id) const {
  absl::ReaderMutexLock lock(&mutex_);
  const auto it = processes_.find(instance_id);
  if (it == processes_.end()) return UnknownInstance(instance_id);
  return it->second.request;
}

absl::StatusOr<std::shared_ptr<const v1::ResolveRequest>> ProcessTable::FindByJob(
    absl::string_view job_name) const {
  absl::ReaderMutexLock lock(&mutex_);
  const Process* best = nullptr;
  for (const Process* process : Sorted(/*include_gone=*/false)) {
    const v1::Job& job = process->request->job();
    if (job.name() != job_name) continue;
    const bool better = best == nullptr || (job.rank() == best->request->job().rank() &&
                                            process->last_sign > best->last_sign);
    if (better) best = process;
  }
  if (best == nullptr) {
    return WithReason(
        absl::NotFoundError(absl::StrCat("no running process belongs to a job \"", job_name, "\"")),
        kUnknownJob, {{"job", job_name}});
  }
  return best->request;
}

std::vector<std::shared_ptr<const v1::ResolveRequest>> ProcessTable::LiveRequests() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<std::shared_ptr<const v1::ResolveRequest>> requests;
  for (const Process* process : Sorted(/*include_gone=*/false)) {
    requests.push_back(process->request);
  }
  return requests;
}

int ProcessTable::LiveCount() const {
  absl::ReaderMutexLock lock(&mutex_);
  return static_cast<int>(Sorted(/*include_gone=*/false).size());
}

absl::Duration ProcessTable::IdleTime() const {
  const absl::Duration now = clock_->Monotonic();
  absl::ReaderMutexLock lock(&mutex_);
  absl::Duration ended = created_;
  for (const auto& [id, process] : processes_) {
    if (!IsGone(process, now)) return absl::ZeroDuration();
    ended = std::max(ended,
                     process.last_sign + (process.left ? absl::ZeroDuration() : options_.liveness));
  }
  return now - ended;
}

int64_t ProcessTable::ActiveSites(absl::string_view operation) const {
  absl::ReaderMutexLock lock(&mutex_);
  int64_t modules = 0;
  for (const Process* process : Sorted(/*include_gone=*/false)) {
    if (process->sent == nullptr) continue;
    // The plan's decisions are in the order of the request's sites, unless a newer request came.
    const int sites = std::min(process->sent->decisions_size(), process->request->sites_size());
    for (int i = 0; i < sites; ++i) {
      const v1::Decision& decision = process->sent->decisions(i);
      if (decision.kind() == v1::DECISION_KIND_KERNEL && decision.operation() == operation) {
        modules += process->request->sites(i).count();
      }
    }
  }
  return modules;
}

bool ProcessTable::IsGone(const Process& process, absl::Duration now) const {
  return process.left || now - process.last_sign > options_.liveness;
}

void ProcessTable::ForgetOld(absl::Duration now) {
  for (auto it = processes_.begin(); it != processes_.end();) {
    const bool old = IsGone(it->second, now) && now - it->second.last_sign > options_.keep_gone;
    if (old) {
      processes_.erase(it++);
    } else {
      ++it;
    }
  }
  while (processes_.size() > options_.max_processes) {
    processes_.erase(std::ranges::min_element(processes_, [](const auto& a, const auto& b) {
      return a.second.last_sign < b.second.last_sign;
    }));
  }
}

std::vector<const ProcessTable::Process*> ProcessTable::Sorted(bool include_gone) const {
  const absl::Duration now = clock_->Monotonic();
  std::vector<const Process*> sorted;
  for (const auto& [id, process] : processes_) {
    const bool old = now - process.last_sign > options_.keep_gone;
    if (!IsGone(process, now) || (include_gone && !old)) sorted.push_back(&process);
  }
  std::ranges::sort(sorted, [](const Process* a, const Process* b) {
    return SortKey(a->request->job()) < SortKey(b->request->job());
  });
  return sorted;
}

v1::ProcessStatus ProcessTable::ToStatus(const Process& process, absl::Duration now) const {
  v1::ProcessStatus status;
  *status.mutable_job() = process.request->job();
  *status.mutable_environment() = process.request->environment();
  status.set_model_type(process.request->model_type());
  status.set_step(process.progress.step());
  status.set_silent_seconds(absl::ToDoubleSeconds(now - process.last_sign));
  status.set_gone(IsGone(process, now));
  status.set_applied_revision(process.applied_revision);
  status.set_applied_step(process.applied_step);
  status.set_plan_error(process.ack.error());
  *status.mutable_refusals() = process.ack.refusals();
  *status.mutable_counters() = process.progress.counters();
  if (process.sent != nullptr) {
    status.set_sent_revision(process.sent->revision());
    *status.mutable_decisions() = process.sent->decisions();
  }
  for (const v1::Site& site : process.request->sites()) {
    (*status.mutable_site_counts())[site.site_id()] = site.count();
    (*status.mutable_site_names())[site.site_id()] = site.qualified_name();
  }
  return status;
}

}  // namespace fuseboard
