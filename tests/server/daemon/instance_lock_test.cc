#include "server/daemon/instance_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class InstanceLockTest : public ::testing::Test {
 protected:
  InstanceLockTest() : path_(absl::StrCat(::testing::TempDir(), "/lock.", getpid())) {}
  ~InstanceLockTest() override { std::filesystem::remove(path_); }

  [[nodiscard]] std::string Content() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const std::string path_;
  const absl::Time started_at_ = absl::FromUnixSeconds(0);
};

TEST_F(InstanceLockTest, SecondHolderIsRefusedAndToldOfTheFirst) {
  const auto first = InstanceLock::Acquire(path_, started_at_);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(InstanceLock::Acquire(path_, started_at_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path_), HasSubstr(absl::StrCat("pid ", getpid())),
                             HasSubstr("started 1970-01-01T00:00:00Z"))));
}

TEST_F(InstanceLockTest, EndsWithItsHolderAndLeavesTheFile) {
  { ASSERT_THAT(InstanceLock::Acquire(path_, started_at_), IsOk()); }
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_THAT(InstanceLock::Acquire(path_, started_at_), IsOk());
}

TEST_F(InstanceLockTest, MoveKeepsTheLock) {
  std::optional<InstanceLock> second;
  {
    auto first = InstanceLock::Acquire(path_, started_at_);
    ASSERT_THAT(first, IsOk());
    second = *std::move(first);
  }
  EXPECT_THAT(InstanceLock::Acquire(path_, started_at_),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(InstanceLockTest, ReplacesWhatADeadHolderWrote) {
  std::ofstream(path_) << "pid 1 started 1999-01-01T00:00:00Z and a much longer line than ours\n";
  ASSERT_THAT(InstanceLock::Acquire(path_, started_at_), IsOk());
  EXPECT_EQ(Content(), absl::StrCat("pid ", getpid(), " started 1970-01-01T00:00:00Z\n"));
}

TEST_F(InstanceLockTest, FollowsNoLink) {
  const std::string victim = path_ + ".victim";
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(victim, path_);
  EXPECT_FALSE(InstanceLock::Acquire(path_, started_at_).ok());
  std::stringstream text;
  text << std::ifstream(victim).rdbuf();
  EXPECT_EQ(text.str(), "precious");
  std::filesystem::remove(victim);
}

TEST_F(InstanceLockTest, MissingFolderIsNamed) {
  EXPECT_THAT(InstanceLock::Acquire("/nonexistent/lock", started_at_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/lock")));
}

}  // namespace
}  // namespace fuseboard
