#include "tests/testing/fake_cupti.h"

#include <utility>

namespace fuseboard::testing {

using profiler::ActivityKind;
using profiler::ActivityRecord;
using profiler::OkStatus;
using profiler::Status;
using profiler::StatusOr;
using profiler::UnavailableError;

ActivityRecord Kernel(const char* name, uint64_t start_ns, uint64_t end_ns) {
  ActivityRecord record;
  record.kind = ActivityKind::kKernel;
  record.name = name;
  record.start_ns = start_ns;
  record.end_ns = end_ns;
  return record;
}

ActivityRecord Copy(uint64_t start_ns, uint64_t end_ns, uint64_t bytes) {
  ActivityRecord record;
  record.kind = ActivityKind::kCopy;
  record.start_ns = start_ns;
  record.end_ns = end_ns;
  record.bytes = bytes;
  return record;
}

ActivityRecord Memset(uint64_t start_ns, uint64_t end_ns) {
  ActivityRecord record;
  record.kind = ActivityKind::kMemset;
  record.start_ns = start_ns;
  record.end_ns = end_ns;
  return record;
}

Status FakeCupti::Subscribe() {
  if (Status failed = Call("Subscribe"); !failed.ok()) return failed;
  if (other_subscribed_ || subscribed_) {
    return UnavailableError("another profiler holds CUPTI: nsys");
  }
  subscribed_ = true;
  return OkStatus();
}

Status FakeCupti::Unsubscribe() {
  subscribed_ = false;
  return Call("Unsubscribe");
}

Status FakeCupti::AttachSink(profiler::RecordSink* sink) {
  sink_ = sink;
  return Call("AttachSink");
}

void FakeCupti::DetachSink() { sink_ = nullptr; }

Status FakeCupti::Enable(ActivityKind kind) {
  if (Status failed = Call("Enable"); !failed.ok()) return failed;
  enabled_.insert(kind);
  return OkStatus();
}

Status FakeCupti::Disable(ActivityKind kind) {
  enabled_.erase(kind);
  return Call("Disable");
}

Status FakeCupti::Flush() {
  for (const ActivityRecord& record : std::exchange(pending_, {})) {
    if (sink_ != nullptr) sink_->Add(record);
  }
  return Call("Flush");
}

StatusOr<uint64_t> FakeCupti::TakeDropped() {
  if (Status failed = Call("TakeDropped"); !failed.ok()) return failed;
  return std::exchange(dropped_, 0);
}

StatusOr<uint64_t> FakeCupti::NowNs() {
  if (Status failed = Call("NowNs"); !failed.ok()) return failed;
  return now_ns_;
}

void FakeCupti::Run(const ActivityRecord& record) {
  if (enabled_.contains(record.kind)) pending_.push_back(record);
}

void FakeCupti::FailNext(const std::string& call, Status status) {
  fail_call_ = call;
  fail_status_ = std::move(status);
}

Status FakeCupti::Call(const std::string& name) {
  calls_.push_back(name);
  if (name != fail_call_) return OkStatus();
  fail_call_.clear();
  return fail_status_;
}

}  // namespace fuseboard::testing
