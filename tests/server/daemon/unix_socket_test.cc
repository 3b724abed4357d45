#include "server/daemon/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::testing::HasSubstr;

class UnixSocketTest : public ::testing::Test {
 protected:
  UnixSocketTest() : folder_(absl::StrCat("/tmp/fb-unix-socket-", getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~UnixSocketTest() override { std::filesystem::remove_all(folder_); }

  static mode_t ModeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(stat(path.c_str(), &found), 0);
    return found.st_mode & 07777U;
  }

  const std::string folder_;
};

TEST_F(UnixSocketTest, FolderGetsItsModeWhateverTheUmask) {
  const mode_t old = umask(0077);
  EXPECT_THAT(EnsureFolder(folder_ + "/a/b", 0711), IsOk());
  umask(old);
  EXPECT_EQ(ModeOf(folder_ + "/a/b"), 0711);
  EXPECT_EQ(ModeOf(folder_ + "/a"), 0755);
}

TEST_F(UnixSocketTest, ExistingFolderKeepsItsMode) {
  std::filesystem::create_directory(folder_ + "/a");
  ASSERT_EQ(chmod((folder_ + "/a").c_str(), 0750), 0);
  EXPECT_THAT(EnsureFolder(folder_ + "/a", 0700), IsOk());
  EXPECT_EQ(ModeOf(folder_ + "/a"), 0750);
}

TEST_F(UnixSocketTest, FileInPlaceOfAFolderIsNamed) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THAT(EnsureFolder(folder_ + "/file", 0700),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not a folder")));
}

TEST_F(UnixSocketTest, StaleSocketIsRemovedAndNothingElse) {
  const std::string path = folder_ + "/s";
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) FAIL() << "no socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  EXPECT_THAT(RemoveStaleSocket(path), IsOk());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(RemoveStaleSocket(path), IsOk());  // Nothing there is as good.

  std::ofstream(path) << "precious";
  EXPECT_THAT(RemoveStaleSocket(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not a socket")));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(UnixSocketTest, ModeOfAMissingSocketIsAnErrorThatNamesIt) {
  EXPECT_THAT(SetSocketMode(folder_ + "/none", 0600),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

}  // namespace
}  // namespace fuseboard
