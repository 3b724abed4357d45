// Parses the flags of one command and prints their help. One set per command: fusectl's commands
// each have their own, which one global set of flags could not say. No globals; not thread-safe.
//
//   FlagSet flags;
//   flags.Add("state_dir", "DIR", "Folder of the store.", &state_dir);
//   FB_ASSIGN_OR_RETURN(std::vector<std::string> operands, flags.Parse(args));

#ifndef SERVER_COMMAND_LINE_FLAG_SET_H_
#define SERVER_COMMAND_LINE_FLAG_SET_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fuseboard {

class FlagSet {
 public:
  // Adds a flag that takes a value, shown as `placeholder` in the help. `*target` is written only
  // if the flag is given, and must outlive Parse. "-" and "_" in names are the same to Parse.
  void Add(std::string name, std::string placeholder, std::string help,
           std::optional<std::string>* target);
  void Add(std::string name, std::string placeholder, std::string help,
           std::optional<int64_t>* target);
  void Add(std::string name, std::string placeholder, std::string help,
           std::optional<double>* target);
  // May be given several times; each value is appended.
  void Add(std::string name, std::string placeholder, std::string help,
           std::vector<std::string>* target);
  // A duration such as "90", "90s", "30m" or "2h", in seconds.
  void AddDuration(std::string name, std::string help, std::optional<double>* seconds);
  // A switch without a value.
  void AddSwitch(std::string name, std::string help, bool* target);

  // Reads "--name value", "--name=value" and switches; what is not a flag, and all that follows
  // "--", is returned in order.
  // Errors: InvalidArgument that names the flag, with the nearest one if it is unknown.
  absl::StatusOr<std::vector<std::string>> Parse(const std::vector<std::string>& args) const;

  // One paragraph per flag, in the order added, wrapped at 80 columns.
  [[nodiscard]] std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string placeholder;  // Empty: a switch.
    std::string help;
    std::function<absl::Status(absl::string_view)> set;
  };

  [[nodiscard]] absl::StatusOr<const Flag*> Find(absl::string_view name) const;

  std::vector<Flag> flags_;
};

// "90", "90s", "30m", "2h", "1d" in seconds. Errors: InvalidArgument.
absl::StatusOr<double> ParseDurationSeconds(absl::string_view text);

}  // namespace fuseboard

#endif  // SERVER_COMMAND_LINE_FLAG_SET_H_
