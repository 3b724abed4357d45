#include "server/daemon/daemon_flags.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/command_line/flag_set.h"
#include "server/common/status_macros.h"
#include "server/config/daemon_config.h"

namespace fuseboard {
namespace {

void AddPathFlags(FlagSet* set, DaemonFlags* flags) {
  set->Add("config", "FILE",
           "Configuration file, text Protobuf of fuseboard.v1.DaemonConfig. Flags win over it. "
           "Default: none.",
           &flags->config);
  set->Add("home", "DIR",
           "Root of the installation: bin, lib/fuseboard, share/fuseboard. Default: "
           "$FUSEBOARD_HOME, else the parent of this program's folder.",
           &flags->home);
  set->Add("state_dir", "DIR",
           "Folder of the store and the lock file, created with mode 0700. Default: "
           "/var/lib/fuseboard. Required when not root.",
           &flags->state_dir);
  set->Add("job_socket", "PATH",
           "Unix socket for training processes, mode 0666. Default: job.sock in the state_dir if "
           "that is named, else /run/fuseboard/job.sock.",
           &flags->job_socket);
  set->Add("admin_socket", "PATH",
           "Unix socket for operators, mode 0600. Default: admin.sock in the state_dir if that is "
           "named, else /run/fuseboard/admin.sock.",
           &flags->admin_socket);
  set->Add("catalog_dir", "DIR",
           "Further folder of catalogue files, after share/fuseboard/catalog of home. May be "
           "given several times; then replaces the file's catalog_dirs.",
           &flags->catalog_dirs);
  set->Add("kernel_dir", "DIR",
           "Further folder of kernel libraries, after lib/fuseboard/kernels of home. May be given "
           "several times; then replaces the file's kernel_dirs.",
           &flags->kernel_dirs);
  set->Add("deny_file", "FILE",
           "Lists operations that are killed on this node whatever any store says; believed only "
           "if root alone can write it. Default: /run/fuseboard/deny.",
           &flags->deny_file);
}

void AddFlags(FlagSet* set, DaemonFlags* flags) {
  AddPathFlags(set, flags);
  set->Add("http_address", "HOST:PORT",
           "Where /metrics, /livez and /readyz are served; port 0 takes a free one, an empty "
           "value serves no HTTP. Default: 127.0.0.1:9464.",
           &flags->http_address);
  set->Add("liveness_seconds", "SECONDS",
           "Silence after which a process counts as gone, 1 to 3600. Default: 30.",
           &flags->liveness_seconds);
  set->Add("drain_seconds", "SECONDS",
           "Time that open calls have to finish on SIGTERM, 0 to 300. Default: 5.",
           &flags->drain_seconds);
  set->Add("idle_exit_seconds", "SECONDS",
           "End when no process has been connected for this long; 0: never. Default: 0.",
           &flags->idle_exit_seconds);
  set->Add("max_request_bytes", "BYTES", "Largest request, 4 KiB to 256 MiB. Default: 4 MiB.",
           &flags->max_request_bytes);
  set->Add("ready_fd", "FD",
           "When serving, write one line of JSON (job_socket, admin_socket, http_address, pid, "
           "version) to this inherited descriptor and close it.",
           &flags->ready_fd);
  set->AddSwitch("check_config", "Check the configuration, print it with its defaults, and exit.",
                 &flags->check_config);
  set->AddSwitch("help", "This text.", &flags->help);
  set->AddSwitch("version", "Prints the version.", &flags->version);
}

void Overlay(const DaemonFlags& flags, v1::DaemonConfig* config) {
  if (flags.home) config->set_home(*flags.home);
  if (flags.state_dir) config->set_state_dir(*flags.state_dir);
  if (flags.job_socket) config->set_job_socket(*flags.job_socket);
  if (flags.admin_socket) config->set_admin_socket(*flags.admin_socket);
  if (flags.http_address) config->set_http_address(*flags.http_address);
  if (!flags.catalog_dirs.empty()) {
    config->mutable_catalog_dirs()->Assign(flags.catalog_dirs.begin(), flags.catalog_dirs.end());
  }
  if (!flags.kernel_dirs.empty()) {
    config->mutable_kernel_dirs()->Assign(flags.kernel_dirs.begin(), flags.kernel_dirs.end());
  }
  if (flags.deny_file) config->set_deny_file(*flags.deny_file);
  if (flags.liveness_seconds) config->set_liveness_seconds(*flags.liveness_seconds);
  if (flags.drain_seconds) config->set_drain_seconds(*flags.drain_seconds);
  if (flags.idle_exit_seconds) config->set_idle_exit_seconds(*flags.idle_exit_seconds);
  if (flags.max_request_bytes) config->set_max_request_bytes(*flags.max_request_bytes);
}

}  // namespace

absl::StatusOr<DaemonFlags> ParseDaemonFlags(const std::vector<std::string>& args) {
  DaemonFlags flags;
  FlagSet set;
  AddFlags(&set, &flags);
  FB_ASSIGN_OR_RETURN(const std::vector<std::string> operands, set.Parse(args));
  if (!operands.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", operands[0], "\""));
  }
  return flags;
}

std::string DaemonHelp() {
  DaemonFlags ignored;
  FlagSet set;
  AddFlags(&set, &ignored);
  return absl::StrCat(
      "fuseboardd: hands fused training kernels to the processes of this node\n\n"
      "Usage: fuseboardd [flags]\n\n"
      "Runs in the foreground and logs to stderr. SIGTERM and SIGINT drain and end with status 0;\n"
      "SIGHUP reads the catalogue, the libraries and the file's catalog_dirs, kernel_dirs,\n"
      "drain_seconds and idle_exit_seconds again, all of it or, if anything is wrong, nothing.\n"
      "Exit status: 0 drained, idle or checked; 1 cannot start; 2 wrong flag or configuration.\n\n"
      "Flags:\n",
      set.Help());
}

absl::StatusOr<v1::DaemonConfig> MakeConfig(const DaemonFlags& flags,
                                            absl::string_view default_home, bool privileged) {
  v1::DaemonConfig config;
  if (flags.config.has_value()) {
    FB_ASSIGN_OR_RETURN(config, LoadConfig(*flags.config));
  }
  Overlay(flags, &config);
  if (!config.state_dir().empty()) {
    if (config.job_socket().empty()) {
      config.set_job_socket(absl::StrCat(config.state_dir(), "/job.sock"));
    }
    if (config.admin_socket().empty()) {
      config.set_admin_socket(absl::StrCat(config.state_dir(), "/admin.sock"));
    }
  } else if (!privileged) {
    return absl::FailedPreconditionError(
        "not root and no state_dir given: name a folder of yours with --state_dir");
  }
  ApplyDefaults(default_home, &config);
  FB_RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

std::string DefaultHome() {
  const char* home = std::getenv("FUSEBOARD_HOME");
  if (home != nullptr && *home != '\0') return home;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path().string();
}

}  // namespace fuseboard
