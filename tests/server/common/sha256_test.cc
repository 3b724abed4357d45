#include "server/common/sha256.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/common/file_reader.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;

constexpr absl::string_view kOfNothing =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// Messages of FIPS 180 and of NIST's examples for it, with their digests.
std::vector<std::pair<std::string, std::string>> NistVectors() {
  return {
      {"", std::string(kOfNothing)},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
       "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
}

class Sha256OfFileTest : public ::testing::Test {
 protected:
  OpenFile Open(const std::string& content) {
    auto file = OpenRegularFile(folder_.Write("file", content));
    EXPECT_THAT(file, IsOk());
    return *std::move(file);
  }

  const TemporaryFolder folder_;
};

TEST(Sha256Test, DigestsAreThoseOfNist) {
  for (const auto& [message, digest] : NistVectors()) EXPECT_EQ(Sha256(message), digest);
}

TEST(Sha256Test, ZeroBytesCount) {
  EXPECT_EQ(Sha256(std::string(1, '\0')),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
}

TEST(Sha256Test, FormIsSixtyFourLowerCaseHexDigits) {
  EXPECT_TRUE(IsSha256(kOfNothing));
  const std::string digest(kOfNothing);
  EXPECT_FALSE(IsSha256(""));
  EXPECT_FALSE(IsSha256(digest.substr(1)));
  EXPECT_FALSE(IsSha256(digest + "0"));
  EXPECT_FALSE(IsSha256("E" + digest.substr(1)));
  EXPECT_FALSE(IsSha256("g" + digest.substr(1)));
  EXPECT_FALSE(IsSha256(" " + digest.substr(1)));
  EXPECT_FALSE(IsSha256(std::string(64, '\0')));
}

TEST_F(Sha256OfFileTest, FileHasTheDigestOfItsContent) {
  for (const auto& [message, digest] : NistVectors()) {
    EXPECT_EQ(*Sha256OfFile(Open(message).fd.get()), digest);
  }
}

TEST_F(Sha256OfFileTest, FileOfMoreThanOneBufferIsReadWhole) {
  constexpr size_t kBuffer = size_t{1} << 20;
  for (const size_t size : {kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer + 12345}) {
    std::string content(size, 'x');
    content.back() = 'y';
    EXPECT_EQ(*Sha256OfFile(Open(content).fd.get()), Sha256(content)) << size;
  }
}

TEST_F(Sha256OfFileTest, BeginsAtTheBeginningAndLeavesTheOffset) {
  const OpenFile file = Open("abc");
  ASSERT_EQ(lseek(file.fd.get(), 2, SEEK_SET), 2);
  EXPECT_EQ(*Sha256OfFile(file.fd.get()), Sha256("abc"));
  EXPECT_EQ(lseek(file.fd.get(), 0, SEEK_CUR), 2);
}

TEST_F(Sha256OfFileTest, WhatWasAppendedSinceItWasOpenedCounts) {
  const OpenFile file = Open("ab");
  std::ofstream(folder_.Path("file"), std::ios::app) << "c";
  EXPECT_EQ(*Sha256OfFile(file.fd.get()), Sha256("abc"));
}

TEST_F(Sha256OfFileTest, FileThatCannotBeReadIsAnErrorThatSaysWhy) {
  EXPECT_THAT(Sha256OfFile(-1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         "cannot read for its digest: Bad file descriptor"));
  const OwnedFd folder(open(folder_.path().c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(Sha256OfFile(folder.get()), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                   "cannot read for its digest: Is a directory"));
}

TEST_F(Sha256OfFileTest, MissingFileIsNotFoundWhenItIsOpened) {
  const std::string path = folder_.Path("absent");
  EXPECT_THAT(OpenRegularFile(path), StatusIs(absl::StatusCode::kNotFound,
                                              absl::StrCat(path, ": No such file or directory")));
}

}  // namespace
}  // namespace fuseboard
