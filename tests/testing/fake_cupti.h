// CUPTI for tests: it plays back the records it was given, and keeps the process-wide state that
// the real one keeps (one subscription, kinds without an owner), so that a second client can be
// acted out.

#ifndef TESTS_TESTING_FAKE_CUPTI_H_
#define TESTS_TESTING_FAKE_CUPTI_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "profiler/cupti_api.h"

namespace fuseboard::testing {

// A record as CUPTI would hand it out; `name` must outlive the fake.
profiler::ActivityRecord Kernel(const char* name, uint64_t start_ns, uint64_t end_ns);
profiler::ActivityRecord Copy(uint64_t start_ns, uint64_t end_ns, uint64_t bytes);
profiler::ActivityRecord Memset(uint64_t start_ns, uint64_t end_ns);

class FakeCupti : public profiler::CuptiApi {
 public:
  profiler::Status Subscribe() override;
  profiler::Status Unsubscribe() override;
  profiler::Status AttachSink(profiler::RecordSink* sink) override;
  void DetachSink() override;
  profiler::Status Enable(profiler::ActivityKind kind) override;
  profiler::Status Disable(profiler::ActivityKind kind) override;
  profiler::Status Flush() override;
  profiler::StatusOr<uint64_t> TakeDropped() override;
  profiler::StatusOr<uint64_t> NowNs() override;

  // The GPU did this. Kept until the next flush, and only if the kind is enabled.
  void Run(const profiler::ActivityRecord& record);
  // CUPTI drops `count` records.
  void Drop(uint64_t count) { dropped_ += count; }
  void SetNow(uint64_t now_ns) { now_ns_ = now_ns; }

  // Another client takes, or gives back, the subscription.
  void OtherSubscribes() { other_subscribed_ = true; }
  void OtherUnsubscribes() { other_subscribed_ = false; }
  // The next call of this name fails.
  void FailNext(const std::string& call, profiler::Status status);

  [[nodiscard]] bool Subscribed() const { return subscribed_; }
  [[nodiscard]] bool HasSink() const { return sink_ != nullptr; }
  [[nodiscard]] const std::set<profiler::ActivityKind>& Enabled() const { return enabled_; }
  // Names of the calls so far, in order.
  [[nodiscard]] const std::vector<std::string>& Calls() const { return calls_; }

 private:
  profiler::Status Call(const std::string& name);

  bool subscribed_ = false;
  bool other_subscribed_ = false;
  profiler::RecordSink* sink_ = nullptr;
  std::set<profiler::ActivityKind> enabled_;
  std::vector<profiler::ActivityRecord> pending_;
  uint64_t dropped_ = 0;
  uint64_t now_ns_ = 1;
  std::string fail_call_;
  profiler::Status fail_status_;
  std::vector<std::string> calls_;
};

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_FAKE_CUPTI_H_
