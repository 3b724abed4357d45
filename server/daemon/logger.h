// One line per event on stderr: "2026-11-30T03:54:02.123456Z INFO  listening on ...". Any thread;
// lines never interleave, because each is one write(2). Not for the path of a call: the daemon logs
// where an error stops travelling, once.

#ifndef SERVER_DAEMON_LOGGER_H_
#define SERVER_DAEMON_LOGGER_H_

#include "absl/strings/string_view.h"

namespace fuseboard {

enum class LogLevel { kInfo, kWarning, kError };

// Line breaks and other control characters of `message` are escaped, so that no input can forge a
// line.
void Log(LogLevel level, absl::string_view message);

}  // namespace fuseboard

#endif  // SERVER_DAEMON_LOGGER_H_
