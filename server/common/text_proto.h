// Loads text Protobuf files: configuration, catalogue, manifests.
//
// A file holds as a whole or not at all: one syntax error, unknown field, wrong type or integer out
// of its type's range refuses it, with the position; so does a text that is not UTF-8, with the
// field. An empty file is a message with no field set.

#ifndef SERVER_COMMON_TEXT_PROTO_H_
#define SERVER_COMMON_TEXT_PROTO_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fuseboard {

// Ten times the size of a catalogue of all that transformers has, and nothing that hurts to parse.
inline constexpr int64_t kMaxTextProtoBytes = int64_t{8} << 20;

// Parses `text` into `message`, which is cleared first. `name` stands in errors.
//
// Errors: InvalidArgument "<name>:<line>:<column>: <what>", all of them, at most 8, joined by "; ";
// or "<name>: <field> is ..., want UTF-8".
absl::Status ParseTextProto(absl::string_view text, absl::string_view name,
                            google::protobuf::Message* message);

// Reads and parses a file.
//
// Errors: as ReadFile and ParseTextProto.
absl::Status LoadTextProto(const std::string& path, google::protobuf::Message* message,
                           int64_t max_bytes = kMaxTextProtoBytes);

}  // namespace fuseboard

#endif  // SERVER_COMMON_TEXT_PROTO_H_
