// How fusectl writes values for people: with units, and "" for what is not known. Pure functions.

#ifndef SERVER_FUSECTL_FORMAT_H_
#define SERVER_FUSECTL_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "fuseboard/v1/plan.pb.h"
#include "fuseboard/v1/profile.pb.h"

namespace fuseboard::fusectl {

// "512 B", "1.5 KiB", "16.2 GiB"; negative values keep their sign.
std::string FormatBytes(double bytes);

// "0.4 s", "59 s", "12 min", "3.5 h", "2.0 d".
std::string FormatSeconds(double seconds);

// "2026-11-30 03:54:02 UTC"; "" for 0.
std::string FormatTimeUs(int64_t us_since_epoch);

// "in 29 min", "expired", or "never" for 0.
std::string FormatExpiry(int64_t expires_at_us, absl::Time now);

// "node", "fleet", "job llama-ft".
std::string FormatScope(const v1::Scope& scope);

// "native", "composite", "kernel".
std::string FormatKind(v1::DecisionKind kind);

// "catalogue default", "kill", ...
std::string FormatRule(v1::Rule rule);

// "cupti", "operator count", ...
std::string FormatMethod(v1::Method method);

// At most three decimals, without trailing zeros.
std::string FormatNumber(double value);

}  // namespace fuseboard::fusectl

#endif  // SERVER_FUSECTL_FORMAT_H_
