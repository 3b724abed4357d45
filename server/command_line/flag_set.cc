#include "server/command_line/flag_set.h"

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/command_line/near_name.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

constexpr size_t kHelpWidth = 80;
constexpr size_t kHelpIndent = 6;

std::string Canonical(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

absl::Status BadValue(absl::string_view name, absl::string_view value, absl::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " has value \"", value, "\", want ", want));
}

void AppendWrapped(absl::string_view text, std::string* out) {
  size_t column = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column != 0 && column + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(out, "\n");
      column = 0;
    }
    absl::StrAppend(out, column == 0 ? std::string(kHelpIndent, ' ') : " ", word);
    column += word.size() + (column == 0 ? kHelpIndent : 1);
  }
  absl::StrAppend(out, "\n");
}

}  // namespace

absl::StatusOr<double> ParseDurationSeconds(absl::string_view text) {
  absl::string_view digits = text;
  double unit = 1;
  if (absl::ConsumeSuffix(&digits, "d")) {
    unit = 86400;
  } else if (absl::ConsumeSuffix(&digits, "h")) {
    unit = 3600;
  } else if (absl::ConsumeSuffix(&digits, "m")) {
    unit = 60;
  } else {
    absl::ConsumeSuffix(&digits, "s");
  }
  double value = 0;
  if (!absl::SimpleAtod(digits, &value) || !std::isfinite(value) || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a duration such as 90s, 30m, 2h or 1d"));
  }
  return value * unit;
}

void FlagSet::Add(std::string name, std::string placeholder, std::string help,
                  std::optional<std::string>* target) {
  flags_.push_back(
      {std::move(name), std::move(placeholder), std::move(help), [target](absl::string_view value) {
         *target = std::string(value);
         return absl::OkStatus();
       }});
}

void FlagSet::Add(std::string name, std::string placeholder, std::string help,
                  std::optional<int64_t>* target) {
  auto set = [target, name](absl::string_view value) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(value, &number)) return BadValue(name, value, "a whole number");
    *target = number;
    return absl::OkStatus();
  };
  flags_.push_back({std::move(name), std::move(placeholder), std::move(help), std::move(set)});
}

void FlagSet::Add(std::string name, std::string placeholder, std::string help,
                  std::optional<double>* target) {
  auto set = [target, name](absl::string_view value) {
    double number = 0;
    if (!absl::SimpleAtod(value, &number) || !std::isfinite(number)) {
      return BadValue(name, value, "a number");
    }
    *target = number;
    return absl::OkStatus();
  };
  flags_.push_back({std::move(name), std::move(placeholder), std::move(help), std::move(set)});
}

void FlagSet::Add(std::string name, std::string placeholder, std::string help,
                  std::vector<std::string>* target) {
  flags_.push_back(
      {std::move(name), std::move(placeholder), std::move(help), [target](absl::string_view value) {
         target->emplace_back(value);
         return absl::OkStatus();
       }});
}

void FlagSet::AddDuration(std::string name, std::string help, std::optional<double>* seconds) {
  auto set = [seconds, name](absl::string_view value) {
    absl::StatusOr<double> parsed = ParseDurationSeconds(value);
    if (!parsed.ok()) return BadValue(name, value, "a duration such as 90s, 30m, 2h or 1d");
    *seconds = *parsed;
    return absl::OkStatus();
  };
  flags_.push_back({std::move(name), "DURATION", std::move(help), std::move(set)});
}

void FlagSet::AddSwitch(std::string name, std::string help, bool* target) {
  flags_.push_back({std::move(name), "", std::move(help), [target](absl::string_view) {
                      *target = true;
                      return absl::OkStatus();
                    }});
}

absl::StatusOr<const FlagSet::Flag*> FlagSet::Find(absl::string_view name) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (Canonical(flag.name) == Canonical(name)) return &flag;
    names.push_back(flag.name);
  }
  std::string message = absl::StrCat("unknown flag --", name);
  const std::string near = NearName(name, names);
  if (!near.empty()) absl::StrAppend(&message, "; did you mean --", near, "?");
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<std::vector<std::string>> FlagSet::Parse(
    const std::vector<std::string>& args) const {
  std::vector<std::string> operands;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      operands.insert(operands.end(), args.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                      args.end());
      break;
    }
    if (!absl::StartsWith(args[i], "--")) {
      operands.push_back(args[i]);
      continue;
    }
    const size_t equals = args[i].find('=');
    const bool has_value = equals != std::string::npos;
    const std::string name = args[i].substr(2, has_value ? equals - 2 : std::string::npos);
    absl::StatusOr<const Flag*> flag = Find(name);
    if (!flag.ok()) return flag.status();
    const bool is_switch = (*flag)->placeholder.empty();
    std::string value;
    if (has_value) {
      if (is_switch) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      value = args[i].substr(equals + 1);
    } else if (!is_switch) {
      if (i + 1 == args.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " needs a value: ", (*flag)->placeholder));
      }
      value = args[++i];
    }
    FB_RETURN_IF_ERROR((*flag)->set(value));
  }
  return operands;
}

std::string FlagSet::Help() const {
  std::string out;
  for (const Flag& flag : flags_) {
    absl::StrAppend(&out, "  --", flag.name, flag.placeholder.empty() ? "" : " ", flag.placeholder,
                    "\n");
    AppendWrapped(flag.help, &out);
  }
  return out;
}

}  // namespace fuseboard
