#include "server/fusectl/format.h"

#include <gtest/gtest.h>

#include "server/common/error_reason.h"
#include "server/fusectl/exit_code.h"

namespace fuseboard::fusectl {
namespace {

TEST(FormatTest, BytesHaveBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(-2147483648.0), "-2.0 GiB");
}

TEST(FormatTest, SecondsGrowIntoLargerUnits) {
  EXPECT_EQ(FormatSeconds(0.42), "0.4 s");
  EXPECT_EQ(FormatSeconds(59), "59 s");
  EXPECT_EQ(FormatSeconds(1800), "30 min");
  EXPECT_EQ(FormatSeconds(12600), "3.5 h");
  EXPECT_EQ(FormatSeconds(172800), "2.0 d");
}

TEST(FormatTest, TimesAndExpiriesSayWhatZeroMeans) {
  EXPECT_EQ(FormatTimeUs(0), "");
  EXPECT_EQ(FormatTimeUs(1'000'000), "1970-01-01 00:00:01 UTC");
  const absl::Time now = absl::FromUnixSeconds(100);
  EXPECT_EQ(FormatExpiry(0, now), "never");
  EXPECT_EQ(FormatExpiry(100'000'000, now), "expired");
  EXPECT_EQ(FormatExpiry(1'900'000'000, now), "in 30 min");
}

TEST(FormatTest, NamesOfTheProtoBecomeWords) {
  v1::Scope scope;
  scope.set_kind(v1::SCOPE_KIND_JOB);
  scope.set_name("train");
  EXPECT_EQ(FormatScope(scope), "job train");
  EXPECT_EQ(FormatKind(v1::DECISION_KIND_NATIVE), "native");
  EXPECT_EQ(FormatKind(v1::DECISION_KIND_UNSPECIFIED), "");
  EXPECT_EQ(FormatRule(v1::RULE_OPT_OUT), "opt out");
  EXPECT_EQ(FormatMethod(v1::METHOD_OPERATOR_COUNT), "operator count");
}

TEST(FormatTest, NumbersLoseTrailingZerosOnly) {
  EXPECT_EQ(FormatNumber(100), "100");
  EXPECT_EQ(FormatNumber(2.5), "2.5");
  EXPECT_EQ(FormatNumber(0.1234), "0.123");
  EXPECT_EQ(FormatNumber(-0.0001), "0");
}

TEST(ExitCodeTest, DaemonThatAnswersIsReachable) {
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("connect")), ExitCode::kUnreachable);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("late")), ExitCode::kUnreachable);
  EXPECT_EQ(ExitCodeOf(WithReason(absl::UnavailableError("disk full"), kStore)), ExitCode::kError);
}

TEST(ExitCodeTest, EachKindHasItsNumber) {
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::OkStatus())), 0);
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::InternalError("x"))), 1);
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::NotFoundError("x"))), 4);
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::AbortedError("x"))), 5);
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::FailedPreconditionError("x"))), 5);
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::InvalidArgumentError("x"))), 6);
  EXPECT_EQ(static_cast<int>(ExitCodeOf(absl::PermissionDeniedError("x"))), 7);
}

}  // namespace
}  // namespace fuseboard::fusectl
