#include "server/fusectl/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/testing/status_matchers.h"

namespace fuseboard::fusectl {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(const std::vector<std::string>& args) {
  const auto invocation = ParseArguments(args);
  EXPECT_THAT(invocation, StatusIs(absl::StatusCode::kInvalidArgument));
  return std::string(invocation.status().message());
}

TEST(ParseArgumentsTest, FlagsMayStandBeforeAndAfterTheCommand) {
  const auto invocation = ParseArguments(
      {"--address", "unix:/a", "disable", "--reason", "slow", "rms_norm", "--ttl=2h"});
  ASSERT_THAT(invocation, IsOk());
  EXPECT_EQ(invocation->command, CommandId::kDisable);
  EXPECT_EQ(invocation->operand, "rms_norm");
  EXPECT_EQ(invocation->options.address, "unix:/a");
  EXPECT_EQ(invocation->options.reason, "slow");
  EXPECT_EQ(invocation->options.ttl_seconds, 7200);
}

TEST(ParseArgumentsTest, ValueThatLooksLikeACommandIsNone) {
  const auto invocation = ParseArguments({"--author", "kill", "status"});
  EXPECT_THAT(invocation, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("status: unknown flag --author")));
}

TEST(ParseArgumentsTest, MutationsNeedAReason) {
  for (const char* command : {"enable", "disable", "reset", "kill", "unkill"}) {
    EXPECT_THAT(ErrorOf({command, "rms_norm"}), HasSubstr("needs --reason"));
    EXPECT_THAT(ErrorOf({command, "rms_norm", "--reason="}), HasSubstr("needs --reason"));
  }
}

TEST(ParseArgumentsTest, OperandsAreCounted) {
  EXPECT_EQ(ErrorOf({"disable", "--reason=x"}), "disable needs OPERATION");
  EXPECT_EQ(ErrorOf({"status", "now"}), "status does not take \"now\"");
  EXPECT_EQ(ErrorOf({"models", "llama", "qwen3"}), "models does not take \"qwen3\"");
  EXPECT_THAT(ParseArguments({"models"}), IsOk());
}

TEST(ParseArgumentsTest, ExplainNeedsExactlyOneProcess) {
  EXPECT_THAT(ErrorOf({"explain"}), HasSubstr("either --job NAME or --instance ID"));
  EXPECT_THAT(ErrorOf({"explain", "--job=a", "--instance=b"}), HasSubstr("either"));
}

TEST(ParseArgumentsTest, RevisionZeroIsNoExpectation) {
  EXPECT_THAT(ErrorOf({"kill", "x", "--reason=y", "--expect-revision=0"}),
              HasSubstr("--expect-revision"));
}

TEST(ParseArgumentsTest, HelpNeedsNothingElse) {
  EXPECT_THAT(ParseArguments({"--help"}), IsOk());
  EXPECT_THAT(ParseArguments({"disable", "--help"}), IsOk());
  EXPECT_THAT(HelpText(CommandId::kDisable), StartsWith("Usage: fusectl disable OPERATION"));
}

TEST(ScopeOfTest, NodeIsTheDefault) {
  EXPECT_EQ(ScopeOf({})->kind(), v1::SCOPE_KIND_NODE);
  Options options;
  options.fleet = true;
  EXPECT_EQ(ScopeOf(options)->kind(), v1::SCOPE_KIND_FLEET);
  options.job = "train";
  EXPECT_THAT(ScopeOf(options), StatusIs(absl::StatusCode::kInvalidArgument));
  options.fleet = false;
  EXPECT_EQ(ScopeOf(options)->name(), "train");
}

TEST(MutationOfTest, AuthorIsWhoeverCalledSudo) {
  setenv("SUDO_USER", "alice", 1);
  EXPECT_THAT(MutationOf({}).author(), StartsWith("alice@"));
  unsetenv("SUDO_USER");
  EXPECT_THAT(MutationOf({}).author(), HasSubstr("@"));
  Options options;
  options.author = "ci";
  EXPECT_EQ(MutationOf(options).author(), "ci");
}

}  // namespace
}  // namespace fuseboard::fusectl
