// One measuring window after another: idle -> active -> draining -> idle.
//
// Thread-safe. It decides when CUPTI is touched, and in which order:
//
// - The subscription is taken as a question only ("is somebody there?") and given back at once. It
// is
//   not held while steps run: Kineto up to torch 2.13 subscribes at its first profile and, refused
//   once, stays CPU-only for the rest of the process. A user who starts torch.profiler inside our
//   window must get his trace; the window is what fails.
// - So another client can come during the window. Stop asks again before it switches anything off,
// for
//   the enabled kinds carry no owner, and switching them off would silence the other client.
// - GRAPH_TRACE is never enabled (it crashed a process whose graph had been instantiated earlier),
// and
//   cuptiFinalize is never called.

#ifndef PROFILER_WINDOW_SESSION_H_
#define PROFILER_WINDOW_SESSION_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "profiler/cupti_api.h"
#include "profiler/record_aggregator.h"
#include "profiler/status.h"

namespace fuseboard::profiler {

struct FinishedWindow {
  WindowReport report;
  // DataLoss if records were dropped or unfinished: counts are then lower bounds.
  Status completeness;
};

class WindowSession {
 public:
  // REQUIRES: `api` outlives the session.
  explicit WindowSession(CuptiApi* api) : api_(api) {}
  ~WindowSession();

  WindowSession(const WindowSession&) = delete;
  WindowSession& operator=(const WindowSession&) = delete;

  // Whether a window could be opened now.
  //
  // Errors: Unavailable, FailedPrecondition, Internal as CuptiApi; InvalidArgument while one is
  // open.
  Status Check();

  // Opens a window. After an error nothing is left enabled. Errors: as Check.
  Status Start();

  // What is launched from here on belongs to `phase`.
  //
  // Errors: InvalidArgument if no window is open; ResourceExhausted after
  // RecordAggregator::kMaxMarks.
  Status Mark(std::string phase);

  // Closes the window, whatever it returns. REQUIRES: the device is synchronised.
  //
  // Errors: InvalidArgument if no window is open; NotFound if it holds no kernel; Unavailable if
  // another client came; Internal.
  StatusOr<FinishedWindow> Stop();

  // Closes the window without a report. With `leave_enabled`, CUPTI's settings stay: another client
  // owns them now. Errors: InvalidArgument if no window is open.
  Status Abandon(bool leave_enabled);

 private:
  enum class State { kIdle, kActive, kDraining };

  // REQUIRES of all five: mutex_ is held.
  Status AskForOtherClients();
  Status EnableAll();
  Status DisableAll();
  Status Drain();
  void Close();

  CuptiApi* const api_;
  std::mutex mutex_;  // Guards all below.
  State state_ = State::kIdle;
  std::unique_ptr<RecordAggregator> aggregator_;
};

}  // namespace fuseboard::profiler

#endif  // PROFILER_WINDOW_SESSION_H_
