// "Did you mean": the candidate closest to a mistyped name. Pure functions, any thread.

#ifndef SERVER_COMMAND_LINE_NEAR_NAME_H_
#define SERVER_COMMAND_LINE_NEAR_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fuseboard {

// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`
// (optimal string alignment): "rms_nrom" and "rms_norm" are 1 apart.
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `name`, or "" if none is within a third of its length (at least 1, so
// that "x" never suggests an unrelated word). Ties go to the first.
std::string NearName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace fuseboard

#endif  // SERVER_COMMAND_LINE_NEAR_NAME_H_
