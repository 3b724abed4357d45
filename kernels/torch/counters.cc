#include "kernels/torch/counters.h"

#include <cstdio>
#include <string>
#include <string_view>

namespace fuseboard::torch_binding {
namespace {

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape;
      std::snprintf(escape.data(), escape.size(), "\\u%04x", c);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

Counters& Counters::Instance() {
  static auto* const counters =
      new Counters;  // Autograd threads may count while the process exits.
  return *counters;
}

void Counters::AddFallback(Operation operation, const char* reason) {
  const std::lock_guard lock(mutex_);
  auto& reasons = fallback_[static_cast<size_t>(operation)];
  auto found = reasons.find(std::string_view(reason));
  if (found == reasons.end()) {
    found = reasons.try_emplace(reasons.size() < kMaxReasons ? reason : "other", 0).first;
  }
  ++found->second;
}

// NOTE: no iostreams in this library. Built with GCC 13 and loaded beside grpcio's own runtime, an
// ostringstream here ended the process (segmentation fault in a locale facet).
std::string Counters::ToJson() const {
  std::string json = "{";
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kOperationNames.size(); ++i) {
    if (i > 0) json += ", ";
    json += Quoted(kOperationNames[i]) + ": {\"fused\": " + std::to_string(fused_[i].load()) +
            ", \"fallback\": {";
    const char* separator = "";
    for (const auto& [reason, count] : fallback_[i]) {
      json += separator + Quoted(reason) + ": " + std::to_string(count);
      separator = ", ";
    }
    json += "}}";
  }
  return json + "}";
}

}  // namespace fuseboard::torch_binding
