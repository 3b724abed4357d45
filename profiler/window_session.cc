#include "profiler/window_session.h"

#include <array>
#include <utility>

namespace fuseboard::profiler {
namespace {

constexpr std::array<ActivityKind, 3> kKinds = {ActivityKind::kKernel, ActivityKind::kCopy,
                                                ActivityKind::kMemset};

Status NoWindow() { return InvalidArgumentError("no window is open"); }
Status WindowOpen() { return InvalidArgumentError("a window is already open"); }

Status Completeness(const WindowReport& report) {
  if (report.dropped_records == 0 && report.unfinished_records == 0) return OkStatus();
  return {StatusCode::kDataLoss,
          StrCat("window is incomplete: ", report.dropped_records, " records dropped, ",
                 report.unfinished_records, " unfinished")};
}

}  // namespace

WindowSession::~WindowSession() {
  std::scoped_lock lock(mutex_);
  if (state_ == State::kIdle) return;
  // Nobody is left to tell: an error here has no reader.
  DisableAll().IgnoreError();
  Close();
}

Status WindowSession::Check() {
  std::scoped_lock lock(mutex_);
  if (state_ != State::kIdle) return WindowOpen();
  return AskForOtherClients();
}

Status WindowSession::Start() {
  std::scoped_lock lock(mutex_);
  if (state_ != State::kIdle) return WindowOpen();
  if (Status asked = AskForOtherClients(); !asked.ok()) return asked;
  aggregator_ = std::make_unique<RecordAggregator>();
  Status started = api_->AttachSink(aggregator_.get());
  if (started.ok()) started = EnableAll();
  if (!started.ok()) {
    Close();
    return started;
  }
  state_ = State::kActive;
  return OkStatus();
}

Status WindowSession::Mark(std::string phase) {
  std::scoped_lock lock(mutex_);
  if (state_ != State::kActive) return NoWindow();
  const StatusOr<uint64_t> now_ns = api_->NowNs();
  if (!now_ns.ok()) return now_ns.status();
  return aggregator_->Mark(std::move(phase), *now_ns);
}

StatusOr<FinishedWindow> WindowSession::Stop() {
  std::scoped_lock lock(mutex_);
  if (state_ != State::kActive) return NoWindow();
  state_ = State::kDraining;
  // Held until the kinds are off, so that no other client can come in between.
  if (Status subscribed = api_->Subscribe(); !subscribed.ok()) {
    // Somebody came: the kinds are his now, and so may be part of our records.
    Close();
    return subscribed;
  }
  const Status drained = Drain();
  const Status released = api_->Unsubscribe();
  FinishedWindow finished{.report = aggregator_->Report(), .completeness = {}};
  Close();
  if (!drained.ok()) return drained;
  if (!released.ok()) return released;
  if (finished.report.totals.launches == 0) {
    return Status(StatusCode::kNotFound,
                  StrCat("window holds no kernel record (", finished.report.totals.copies,
                         " copies, ", finished.report.dropped_records, " dropped records)"));
  }
  finished.completeness = Completeness(finished.report);
  return finished;
}

Status WindowSession::Abandon(bool leave_enabled) {
  std::scoped_lock lock(mutex_);
  if (state_ != State::kActive) return NoWindow();
  Status disabled = leave_enabled ? OkStatus() : DisableAll();
  Close();
  return disabled;
}

Status WindowSession::AskForOtherClients() {
  if (Status subscribed = api_->Subscribe(); !subscribed.ok()) return subscribed;
  return api_->Unsubscribe();
}

Status WindowSession::EnableAll() {
  for (const ActivityKind kind : kKinds) {
    if (Status enabled = api_->Enable(kind); !enabled.ok()) {
      DisableAll().IgnoreError();  // The first error is the one to report.
      return enabled;
    }
  }
  return OkStatus();
}

Status WindowSession::DisableAll() {
  Status first;
  for (const ActivityKind kind : kKinds) first.Update(api_->Disable(kind));
  return first;
}

Status WindowSession::Drain() {
  Status first = api_->Flush();
  first.Update(DisableAll());
  const StatusOr<uint64_t> dropped = api_->TakeDropped();
  first.Update(dropped.status());
  if (dropped.ok()) aggregator_->AddDropped(*dropped);
  return first;
}

void WindowSession::Close() {
  api_->DetachSink();
  aggregator_.reset();
  state_ = State::kIdle;
}

}  // namespace fuseboard::profiler
