// The ReportStore keeps the newest measurement windows of each job in memory and says what they
// prove: the difference between a job's newest native and newest plan window of one rank.
//
// A number exists only if both sides measured it in the same way, without error and without dropped
// records; otherwise it is absent. Bounded in jobs and windows; the oldest go first. Thread-safe.

#ifndef SERVER_JOBS_REPORT_STORE_H_
#define SERVER_JOBS_REPORT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "fuseboard/v1/profile.pb.h"
#include "server/jobs/process_table.h"

namespace fuseboard {

class ReportStore {
 public:
  struct Options {
    size_t windows_per_job = 64;
    size_t jobs = 256;
  };

  // REQUIRES: `processes` outlives the store.
  ReportStore(const ProcessTable* processes, Options options);

  // Keeps a finished window.
  //
  // Errors: InvalidArgument (BAD_REQUEST) for a malformed window, naming the field; NotFound
  // (UNKNOWN_INSTANCE) if the process is not registered.
  absl::Status Report(const v1::ReportWindowRequest& request);

  // Windows, newest first, and the savings of each job asked for, by job name.
  //
  // Errors: InvalidArgument (BAD_REQUEST) if the limit is not 0 to 1000.
  absl::StatusOr<v1::ListReportsResponse> ListReports(const v1::ListReportsRequest& request) const;

 private:
  struct JobReports {
    std::string job_name;
    std::deque<v1::ReportWindowRequest> windows;  // Newest first.
  };

  const ProcessTable* const processes_;
  const Options options_;

  mutable absl::Mutex mutex_;
  // The job that reported last is first.
  std::deque<JobReports> jobs_ ABSL_GUARDED_BY(mutex_);
};

// What the windows of one job (newest first) prove, for the lowest rank that has both variants, or
// else for the lowest that has one. REQUIRES: `windows` is not empty.
v1::Savings ComputeSavings(const std::deque<v1::ReportWindowRequest>& windows);

}  // namespace fuseboard

#endif  // SERVER_JOBS_REPORT_STORE_H_
