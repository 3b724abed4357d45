// The ProcessTable remembers the training processes that talk to this daemon: what they asked, what
// they were sent, what they applied and how far they are.
//
// A process counts as gone when it says so or has been silent for the liveness window, whatever its
// connections look like: a forked child may hold its socket open for hours. Gone ones are kept an
// hour for people to look at. Bounded: beyond `max_processes` the longest silent is forgotten.
// Thread-safe. Nothing here is durable: a restarted daemon learns of its processes again.

#ifndef SERVER_JOBS_PROCESS_TABLE_H_
#define SERVER_JOBS_PROCESS_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "fuseboard/v1/plan.pb.h"
#include "fuseboard/v1/resolver.pb.h"
#include "fuseboard/v1/status.pb.h"
#include "server/common/clock.h"

namespace fuseboard {

class ProcessTable {
 public:
  struct Options {
    absl::Duration liveness = absl::Seconds(30);
    absl::Duration keep_gone = absl::Hours(1);
    size_t max_processes = 4096;
  };

  // REQUIRES: `clock` outlives the table.
  ProcessTable(const Clock* clock, Options options);

  // Registers the process of `request` or, if its instance id is known, replaces its request and
  // keeps the rest. A sign of life. `plan` is what it is being sent.
  void Register(std::shared_ptr<const v1::ResolveRequest> request,
                std::shared_ptr<const v1::Plan> plan);

  // A newer plan was sent. Not a sign of life. Unknown ids are ignored.
  void RecordSent(absl::string_view instance_id, std::shared_ptr<const v1::Plan> plan);

  // Errors: NotFound (UNKNOWN_INSTANCE).
  absl::Status RecordAck(const v1::AckPlanRequest& ack);

  // Whether the process is known; if it is not, it must introduce itself again.
  bool RecordProgress(const v1::ReportProgressRequest& progress);

  // Whether the process is registered, gone or not.
  bool Knows(absl::string_view instance_id) const;

  // Sorted by job, rank, instance id.
  std::vector<v1::ProcessStatus> ListProcesses(bool include_gone) const;

  // The last request of a process; or of the lowest live rank of a job, its newest process first.
  //
  // Errors: NotFound (UNKNOWN_INSTANCE, UNKNOWN_JOB).
  absl::StatusOr<std::shared_ptr<const v1::ResolveRequest>> FindByInstance(
      absl::string_view instance_id) const;
  absl::StatusOr<std::shared_ptr<const v1::ResolveRequest>> FindByJob(
      absl::string_view job_name) const;

  // Requests of the live processes, sorted by job, rank, instance id.
  std::vector<std::shared_ptr<const v1::ResolveRequest>> LiveRequests() const;

  int LiveCount() const;

  // How long no process has been live; zero while one is. Before the first, since construction.
  absl::Duration IdleTime() const;

  // Modules of live processes whose newest plan runs the kernel of `operation`.
  int64_t ActiveSites(absl::string_view operation) const;

 private:
  struct Process {
    std::shared_ptr<const v1::ResolveRequest> request;
    std::shared_ptr<const v1::Plan> sent;
    v1::AckPlanRequest ack;  // Newest; instance_id is empty before the first.
    int64_t applied_revision = 0;
    int64_t applied_step = 0;
    v1::ReportProgressRequest progress;
    absl::Duration last_sign;  // On the monotonic scale.
    bool left = false;
  };

  bool IsGone(const Process& process, absl::Duration now) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void ForgetOld(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<const Process*> Sorted(bool include_gone) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::ProcessStatus ToStatus(const Process& process, absl::Duration now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  const Options options_;
  const absl::Duration created_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Process> processes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fuseboard

#endif  // SERVER_JOBS_PROCESS_TABLE_H_
