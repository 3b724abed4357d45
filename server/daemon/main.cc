// fuseboardd: reads flags and configuration, starts the daemon and waits for signals.
#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/daemon/daemon.h"
#include "server/daemon/daemon_flags.h"
#include "server/daemon/logger.h"

namespace fuseboard {
namespace {

constexpr int kExitCannotStart = 1;
constexpr int kExitUsage = 2;

// Nobody waits longer than this to see that a private daemon has become useless.
constexpr timespec kIdlePoll = {.tv_sec = 1, .tv_nsec = 0};

// Blocks the signals that WaitForEnd takes, before any thread exists that could get them instead.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // A client that vanishes while it is written to.
  return signals;
}

absl::Status Announce(const Daemon& daemon, const DaemonFlags& flags) {
  if (!flags.ready_fd.has_value()) return absl::OkStatus();
  const int fd = static_cast<int>(*flags.ready_fd);
  const std::string line = daemon.ReadyLine();
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write to --ready_fd=", fd));
  }
  close(fd);
  return absl::OkStatus();
}

void Reload(Daemon* daemon, const DaemonFlags& flags) {
  const absl::Status status =
      daemon->Reload(MakeConfig(flags, DefaultHome(), /*privileged=*/geteuid() == 0));
  if (status.ok()) {
    Log(LogLevel::kInfo, "reloaded");
  } else {
    Log(LogLevel::kError, absl::StrCat("reload rejected, nothing changed: ", status.message()));
  }
}

void WaitForEnd(Daemon* daemon, const DaemonFlags& flags, const sigset_t& signals) {
  while (true) {
    const int number = sigtimedwait(&signals, nullptr, &kIdlePoll);
    if (number == SIGHUP) {
      Reload(daemon, flags);
    } else if (number > 0) {
      Log(LogLevel::kInfo, absl::StrCat("draining on ", strsignal(number)));
      return;
    } else if (daemon->IdleTooLong()) {
      Log(LogLevel::kInfo, "draining: idle for idle_exit_seconds");
      return;
    }
  }
}

int Run(const DaemonFlags& flags) {
  const absl::StatusOr<v1::DaemonConfig> config =
      MakeConfig(flags, DefaultHome(), /*privileged=*/geteuid() == 0);
  if (!config.ok()) {
    Log(LogLevel::kError, config.status().message());
    return kExitUsage;
  }
  if (flags.check_config) {
    std::string text;
    google::protobuf::TextFormat::PrintToString(*config, &text);
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  if (flags.ready_fd.has_value() && fcntl(static_cast<int>(*flags.ready_fd), F_GETFD) < 0) {
    Log(LogLevel::kError, absl::StrCat("--ready_fd=", *flags.ready_fd, " is not open"));
    return kExitUsage;
  }
  umask(0077);
  const sigset_t signals = BlockSignals();
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(*config);
  absl::Status status = daemon.status();
  if (status.ok()) status = Announce(**daemon, flags);
  if (!status.ok()) {
    Log(LogLevel::kError, absl::StrCat("cannot start: ", status.message()));
    return kExitCannotStart;
  }
  Log(LogLevel::kInfo, absl::StrCat("fuseboardd " FB_VERSION " serves ", config->job_socket(),
                                    " and ", config->admin_socket()));
  WaitForEnd(daemon->get(), flags, signals);
  (*daemon)->Drain();
  daemon->reset();
  Log(LogLevel::kInfo, "ended");
  return 0;
}

int Main(const std::vector<std::string>& args) {
  const absl::StatusOr<DaemonFlags> flags = ParseDaemonFlags(args);
  if (!flags.ok()) {
    Log(LogLevel::kError, absl::StrCat(flags.status().message(), "; see --help"));
    return kExitUsage;
  }
  if (flags->help) {
    std::fputs(DaemonHelp().c_str(), stdout);
    return 0;
  }
  if (flags->version) {
    std::puts("fuseboardd " FB_VERSION);
    return 0;
  }
  return Run(*flags);
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) {
  return fuseboard::Main(std::vector<std::string>(argv + 1, argv + argc));
}
