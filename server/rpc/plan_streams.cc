#include "server/rpc/plan_streams.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "server/rpc/status_conversion.h"

namespace fuseboard {

// gRPC runs OnDone after the last other reaction, on a thread of its own, never inside StartWrite
// or Finish; so the mutex may be held across both.
class PlanStreams::Stream : public grpc::ServerWriteReactor<v1::WatchPlanResponse> {
 public:
  explicit Stream(PlanStreams* owner) : owner_(owner), start_(absl::Now()) {}

  void Watch(const v1::WatchPlanRequest& request) {
    std::unique_ptr<PlanWatch> watch = owner_->hub_->Watch(request, [this] { Pump(); });
    {
      absl::MutexLock lock(&mutex_);
      watch_ = std::move(watch);
    }
    Pump();
  }

  // Finishes the stream once the message under way is out.
  void End(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (ending_) return;
    ending_ = true;
    end_ = std::move(status);
    if (!writing_) Finish(ToGrpcStatus(end_));
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok && !ending_) {
        ending_ = true;
        end_ = absl::CancelledError("the caller is gone");
      }
      if (ending_) {
        Finish(ToGrpcStatus(end_));
        return;
      }
    }
    Pump();
  }

  void OnCancel() override { End(absl::CancelledError("cancelled by the caller")); }

  void OnDone() override {
    std::unique_ptr<PlanWatch> watch;
    absl::StatusCode code = absl::StatusCode::kUnknown;
    {
      absl::MutexLock lock(&mutex_);
      watch = std::move(watch_);
      code = end_.code();
    }
    watch.reset();  // Waits for a Pump that is just running; hence without the mutex.
    owner_->stats_->Record("Resolver/WatchPlan", code, absl::Now() - start_);
    owner_->Remove(this);
    delete this;
  }

 private:
  // Starts to write the newest plan, if there is one and nothing is under way.
  void Pump() {
    absl::MutexLock lock(&mutex_);
    if (watch_ == nullptr || writing_ || ending_) return;
    const std::shared_ptr<const v1::Plan> plan = watch_->TakePlan();
    if (plan == nullptr) return;
    *response_.mutable_plan() = *plan;
    writing_ = true;
    StartWrite(&response_);
  }

  PlanStreams* const owner_;
  const absl::Time start_;

  absl::Mutex mutex_;
  std::unique_ptr<PlanWatch> watch_ ABSL_GUARDED_BY(mutex_);
  v1::WatchPlanResponse response_ ABSL_GUARDED_BY(mutex_);  // gRPC reads it while writing_.
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerWriteReactor<v1::WatchPlanResponse>* PlanStreams::Open(
    const v1::WatchPlanRequest& request, absl::Status refusal) {
  auto* stream = new Stream(this);  // Deletes itself in OnDone.
  {
    absl::MutexLock lock(&mutex_);
    streams_.insert(stream);
    if (refusal.ok()) refusal = end_;
  }
  if (refusal.ok()) {
    stream->Watch(request);
  } else {
    stream->End(refusal);
  }
  return stream;
}

void PlanStreams::EndAll(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  end_ = status;
  // A stream removes itself under this mutex before it is deleted.
  for (Stream* stream : streams_) stream->End(status);
}

void PlanStreams::Remove(Stream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

}  // namespace fuseboard
