// SHA-256, by libcrypto (which gRPC links anyway), as 64 lower-case hex digits.

#ifndef SERVER_COMMON_SHA256_H_
#define SERVER_COMMON_SHA256_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fuseboard {

// Digest of `bytes`.
std::string Sha256(absl::string_view bytes);

// Digest of an open file from its beginning to its end. Leaves the file offset as it was.
//
// Errors: by errno if reading fails.
absl::StatusOr<std::string> Sha256OfFile(int fd);

// Whether `text` has the form of a digest.
bool IsSha256(absl::string_view text);

}  // namespace fuseboard

#endif  // SERVER_COMMON_SHA256_H_
