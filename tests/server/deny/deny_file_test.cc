#include "server/deny/deny_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/common/file_reader.h"
#include "tests/testing/sample_node.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DenyFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> Write(const std::string& text) {
    folder_.Write("deny", text);
    chmod(path_.c_str(), 0644);
    return file_.Poll()->operations;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("deny");
  DenyFile file_{path_, getuid()};
};

TEST_F(DenyFileTest, AbsentIsTheSameAsEmpty) {
  EXPECT_THAT(file_.Poll()->operations, IsEmpty());
  EXPECT_EQ(file_.Problem(), "");
}

TEST_F(DenyFileTest, NamesAreReadWithoutCommentsSortedEachOnce) {
  EXPECT_THAT(Write("# all\n swiglu # slow\r\n\nrms_norm\nswiglu"),
              ElementsAre("rms_norm", "swiglu"));
  EXPECT_TRUE(file_.Poll()->Contains("swiglu"));
  EXPECT_FALSE(file_.Poll()->Contains("geglu"));
  EXPECT_FALSE(file_.Poll()->DeniesAll());
}

TEST_F(DenyFileTest, StarDeniesEverything) {
  EXPECT_THAT(Write("*\n"), ElementsAre("*"));
  EXPECT_TRUE(file_.Poll()->Contains("geglu"));
}

TEST_F(DenyFileTest, ChangesAreSeenAndRemovalLiftsTheDenial) {
  Write("rms_norm");
  EXPECT_THAT(Write("swiglu"), ElementsAre("swiglu"));
  EXPECT_EQ(file_.Poll(), file_.Poll());
  std::filesystem::remove(path_);
  EXPECT_THAT(file_.Poll()->operations, IsEmpty());
}

TEST_F(DenyFileTest, MalformedLineIsToldAndTheOthersHold) {
  EXPECT_THAT(Write("rms_norm\nRms Norm\n"), ElementsAre("rms_norm"));
  EXPECT_EQ(file_.Problem(), path_ + ": line 2 is no operation: \"Rms Norm\"");
}

TEST_F(DenyFileTest, FileThatOthersMayWriteIsIgnoredAsAWhole) {
  Write("rms_norm");
  chmod(path_.c_str(), 0666);
  EXPECT_THAT(file_.Poll()->operations, IsEmpty());
  EXPECT_EQ(file_.Problem(), path_ + " is ignored: its mode is 0666, others may write it");
}

TEST_F(DenyFileTest, FileOfAnotherOwnerIsIgnoredAsAWhole) {
  Write("rms_norm");
  DenyFile other(path_, getuid() + 1);
  EXPECT_THAT(other.Poll()->operations, IsEmpty());
  EXPECT_EQ(other.Problem(), absl::StrCat(path_, " is ignored: its owner is uid ", getuid(),
                                          ", want ", getuid() + 1));
}

TEST_F(DenyFileTest, UnreadableAfterAGoodLoadKeepsTheLastList) {
  Write("rms_norm");
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/dev/null", path_);
  EXPECT_THAT(file_.Poll()->operations, ElementsAre("rms_norm"));
  EXPECT_THAT(file_.Problem(), HasSubstr("is a symbolic link; the last list stays in force"));
}

TEST_F(DenyFileTest, SocketInItsPlaceIsNotTheSameAsAbsent) {
  Write("rms_norm");
  std::filesystem::remove(path_);
  const int number = socket(AF_UNIX, SOCK_STREAM, 0);
  if (number < 0) FAIL() << "no socket";
  const OwnedFd fd(number);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(number, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(file_.Poll()->operations, ElementsAre("rms_norm"));
  EXPECT_EQ(file_.Problem(), path_ + " is not a regular file; the last list stays in force");
}

}  // namespace
}  // namespace fuseboard
