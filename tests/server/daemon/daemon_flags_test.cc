#include "server/daemon/daemon_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "server/daemon/reload.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<v1::DaemonConfig> ConfigOf(const std::vector<std::string>& args,
                                          bool privileged = true) {
  const auto flags = ParseDaemonFlags(args);
  EXPECT_THAT(flags, IsOk());
  return MakeConfig(*flags, "/opt/fuseboard", privileged);
}

TEST(MakeConfigTest, DefaultsAreThoseOfTheSystemDaemon) {
  const auto config = ConfigOf({});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->home(), "/opt/fuseboard");
  EXPECT_EQ(config->state_dir(), "/var/lib/fuseboard");
  EXPECT_EQ(config->job_socket(), "/run/fuseboard/job.sock");
}

TEST(MakeConfigTest, SocketsLieInANamedStateFolderUnlessNamedThemselves) {
  const auto config = ConfigOf({"--state_dir=/s", "--admin_socket=/r/a.sock"});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->job_socket(), "/s/job.sock");
  EXPECT_EQ(config->admin_socket(), "/r/a.sock");
}

TEST(MakeConfigTest, UnprivilegedMustNameAStateFolder) {
  EXPECT_THAT(ConfigOf({}, /*privileged=*/false),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--state_dir")));
  EXPECT_THAT(ConfigOf({"--state_dir=/s"}, /*privileged=*/false), IsOk());
}

TEST(MakeConfigTest, FlagsWinOverTheFileAndListsAreReplaced) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/config.", getpid());
  std::ofstream(path) << "drain_seconds: 7 liveness_seconds: 8 kernel_dirs: \"/k\" "
                         "catalog_dirs: \"/c\"";
  const auto config = ConfigOf({"--config", path, "--drain_seconds=0", "--kernel_dir=/x",
                                "--kernel_dir=/y", "--http_address="});
  std::filesystem::remove(path);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->drain_seconds(), 0);
  EXPECT_EQ(config->liveness_seconds(), 8);
  EXPECT_THAT(config->kernel_dirs(), ElementsAre("/x", "/y"));
  EXPECT_THAT(config->catalog_dirs(), ElementsAre("/c"));
  EXPECT_EQ(config->http_address(), "");
}

TEST(ParseDaemonFlagsTest, RefusesOperands) {
  EXPECT_THAT(ParseDaemonFlags({"start"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"start\"")));
}

TEST(CheckReloadableTest, FourFieldsMayChange) {
  v1::DaemonConfig current;
  v1::DaemonConfig next;
  next.add_catalog_dirs("/c");
  next.add_kernel_dirs("/k");
  next.set_drain_seconds(1);
  next.set_idle_exit_seconds(2);
  EXPECT_THAT(CheckReloadable(current, next), IsOk());
}

TEST(CheckReloadableTest, OtherFieldsNeedARestartAndAreNamedWithBothValues) {
  v1::DaemonConfig current;
  current.set_job_socket("/a");
  v1::DaemonConfig next;
  next.set_job_socket("/b");
  next.set_drain_seconds(1);
  EXPECT_THAT(CheckReloadable(current, next),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("job_socket from \"/a\" to \"/b\""),
                             Not(HasSubstr("drain_seconds")))));
}

}  // namespace
}  // namespace fuseboard
