#include "server/common/sha256.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "server/common/file_reader.h"

namespace fuseboard {
namespace {

class Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }
  void Add(const void* bytes, size_t count) { EVP_DigestUpdate(context_.get(), bytes, count); }
  std::string Finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string Sha256(absl::string_view bytes) {
  Hasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  return hasher.Finish();
}

absl::StatusOr<std::string> Sha256OfFile(int fd) {
  // 1 MiB: a library of 100 MB is a hundred reads.
  std::vector<char> buffer(size_t{1} << 20);
  Hasher hasher;
  int64_t offset = 0;
  while (true) {
    const ssize_t count = pread(fd, buffer.data(), buffer.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "cannot read for its digest");
    if (count == 0) return hasher.Finish();
    hasher.Add(buffer.data(), static_cast<size_t>(count));
    offset += count;
  }
}

bool IsSha256(absl::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

}  // namespace fuseboard
