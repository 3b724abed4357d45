// Checks a request to resolve before anything is done with it. Pure.

#ifndef SERVER_RESOLVER_REQUEST_CHECK_H_
#define SERVER_RESOLVER_REQUEST_CHECK_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "fuseboard/v1/resolver.pb.h"

namespace fuseboard {

inline constexpr int kMaxSites = 4096;
inline constexpr int kMaxSiteFields = 64;  // Attributes, children, parameters: each.
inline constexpr int kMaxOptOuts = 256;
inline constexpr int kMaxTextBytes = 4096;  // Any one string of a request.
inline constexpr int kMaxRank = 1 << 20;

// Errors: InvalidArgument (BAD_REQUEST) that names the field, its value and what is wanted;
// ResourceExhausted (TOO_LARGE) beyond the limits above.
absl::Status CheckRequest(const v1::ResolveRequest& request);

// Whether `name` is 1 to 128 characters of [A-Za-z0-9._:/-].
bool IsJobName(absl::string_view name);

}  // namespace fuseboard

#endif  // SERVER_RESOLVER_REQUEST_CHECK_H_
