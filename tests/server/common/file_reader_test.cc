#include "server/common/file_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

// While it lives, this thread opens files as one who may not read all of them, even if the tests
// are run by root. Changes nothing for others: theirs is no such right.
class OrdinaryUser {
 public:
  OrdinaryUser() { setfsuid(65534); }
  ~OrdinaryUser() { setfsuid(geteuid()); }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
};

// Leaves a socket at `path`, as a daemon that was killed does.
void LeaveSocket(const std::string& path) {
  const int number = socket(AF_UNIX, SOCK_STREAM, 0);
  if (number < 0) FAIL() << "no socket";
  const OwnedFd fd(number);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(bind(number, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

class FileReaderTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("file");
};

TEST_F(FileReaderTest, AllBytesAreReadWhateverTheyAre) {
  // More than one read, and a zero byte in it.
  const std::string content = absl::StrCat(std::string(100'000, 'x'), std::string(1, '\0'), "\r\n");
  folder_.Write("file", content);
  const auto read = ReadFile(path_, 1 << 20);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->text, content);
  EXPECT_EQ(read->stat.st_size, static_cast<off_t>(content.size()));
  EXPECT_TRUE(S_ISREG(read->stat.st_mode));
}

TEST_F(FileReaderTest, EmptyFileIsAnEmptyText) {
  folder_.Write("file", "");
  const auto read = ReadFile(path_, 0);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->text, "");
}

TEST_F(FileReaderTest, MissingFileIsNotFound) {
  const std::string message = absl::StrCat(path_, ": No such file or directory");
  EXPECT_THAT(ReadFile(path_, 100), StatusIs(absl::StatusCode::kNotFound, message));
  EXPECT_THAT(OpenRegularFile(path_), StatusIs(absl::StatusCode::kNotFound, message));
}

TEST_F(FileReaderTest, FileBelowAFileIsAnErrorAndNotMerelyMissing) {
  folder_.Write("file", "");
  EXPECT_THAT(ReadFile(path_ + "/below", 100),
              StatusIs(absl::StatusCode::kFailedPrecondition, path_ + "/below: Not a directory"));
}

TEST_F(FileReaderTest, WhatIsNoRegularFileIsRefusedWithoutWaitingForIt) {
  ASSERT_EQ(mkfifo(folder_.Path("fifo").c_str(), 0644), 0);
  LeaveSocket(folder_.Path("socket"));
  for (const std::string& path :
       {folder_.path(), folder_.Path("fifo"), folder_.Path("socket"), std::string("/dev/null")}) {
    EXPECT_THAT(ReadFile(path, 100),
                StatusIs(absl::StatusCode::kFailedPrecondition, path + " is not a regular file"));
  }
}

TEST_F(FileReaderTest, SymbolicLinkIsFollowedUnlessRefused) {
  folder_.Write("file", "content");
  const std::string link = folder_.Path("link");
  std::filesystem::create_symlink("file", link);
  EXPECT_EQ(ReadFile(link, 100)->text, "content");
  EXPECT_THAT(ReadFile(link, 100, Symlinks::kRefuse),
              StatusIs(absl::StatusCode::kFailedPrecondition, link + " is a symbolic link"));
  EXPECT_THAT(ReadFile(path_, 100, Symlinks::kRefuse), IsOk());
}

TEST_F(FileReaderTest, LinkToNothingIsNotFoundUnlessLinksAreRefused) {
  std::filesystem::create_symlink("absent", path_);
  EXPECT_THAT(ReadFile(path_, 100),
              StatusIs(absl::StatusCode::kNotFound, path_ + ": No such file or directory"));
  EXPECT_THAT(ReadFile(path_, 100, Symlinks::kRefuse),
              StatusIs(absl::StatusCode::kFailedPrecondition, path_ + " is a symbolic link"));
}

TEST_F(FileReaderTest, ForbiddenFileIsPermissionDenied) {
  folder_.Write("file", "content");
  ASSERT_EQ(chmod(path_.c_str(), 0), 0);
  const OrdinaryUser user;
  EXPECT_THAT(ReadFile(path_, 100),
              StatusIs(absl::StatusCode::kPermissionDenied, path_ + ": Permission denied"));
}

TEST_F(FileReaderTest, FileOfExactlyTheLimitIsReadAndOneByteMoreIsTooLarge) {
  folder_.Write("file", "12345678");
  EXPECT_EQ(ReadFile(path_, 8)->text, "12345678");
  EXPECT_THAT(ReadFile(path_, 7), StatusIs(absl::StatusCode::kResourceExhausted,
                                           path_ + " has 8 bytes, want at most 7"));
}

TEST_F(FileReaderTest, FileThatHasMoreThanItsSizeSaidIsTooLarge) {
  // A file of /proc says that it has 0 bytes, as one does that grows after it was looked at.
  const std::string grown = "/proc/self/status";
  ASSERT_EQ(OpenRegularFile(grown)->stat.st_size, 0);
  EXPECT_THAT(ReadFile(grown, 16),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       MatchesRegex(grown + " has [0-9]+ bytes, want at most 16")));
  EXPECT_THAT(ReadFile(grown, 1 << 20), IsOk());
}

TEST_F(FileReaderTest, WhatIsOpenStaysTheFileThatItWas) {
  folder_.Write("file", "before");
  const auto file = OpenRegularFile(path_);
  ASSERT_THAT(file, IsOk());
  folder_.Write("other", "afterwards");
  ASSERT_EQ(std::rename(folder_.Path("other").c_str(), path_.c_str()), 0);
  std::string text(16, ' ');
  const ssize_t size = read(file->fd.get(), text.data(), text.size());
  EXPECT_EQ(size, file->stat.st_size);
  EXPECT_EQ(text.substr(0, 6), "before");
}

TEST_F(FileReaderTest, FolderIsListedSortedAndBySuffix) {
  for (const char* name : {"b.textpb", "a.textpb", "c.txt", "textpb", "a.textpb~"}) {
    folder_.Write(name, "");
  }
  const auto paths = ListFolder(folder_.path(), ".textpb");
  ASSERT_THAT(paths, IsOk());
  EXPECT_THAT(*paths, ElementsAre(folder_.Path("a.textpb"), folder_.Path("b.textpb")));
}

TEST_F(FileReaderTest, EmptySuffixListsEverythingButTheFolderItselfAndItsParent) {
  EXPECT_THAT(*ListFolder(folder_.path(), ""), IsEmpty());
  folder_.Write(".hidden", "");
  EXPECT_THAT(*ListFolder(folder_.path(), ""), ElementsAre(folder_.Path(".hidden")));
}

TEST_F(FileReaderTest, MissingFolderIsEmptyButAFileIsNoFolder) {
  EXPECT_THAT(*ListFolder(path_, ""), IsEmpty());
  folder_.Write("file", "");
  EXPECT_THAT(ListFolder(path_, ""),
              StatusIs(absl::StatusCode::kFailedPrecondition, path_ + ": Not a directory"));
}

TEST_F(FileReaderTest, ForbiddenFolderIsPermissionDenied) {
  ASSERT_EQ(chmod(folder_.path().c_str(), 0), 0);
  {
    const OrdinaryUser user;
    EXPECT_THAT(ListFolder(folder_.path(), ""), StatusIs(absl::StatusCode::kPermissionDenied,
                                                         folder_.path() + ": Permission denied"));
  }
  ASSERT_EQ(chmod(folder_.path().c_str(), 0700), 0);
}

TEST(OwnedFdTest, ClosesAtItsEndAndOnlyOnce) {
  const int number = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(number, 0);
  {
    OwnedFd first(number);
    OwnedFd second(std::move(first));
    EXPECT_EQ(second.get(), number);
    OwnedFd third;
    third = std::move(second);
    EXPECT_EQ(third.get(), number);
    EXPECT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
}

}  // namespace
}  // namespace fuseboard
