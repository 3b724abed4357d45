#include "server/command_line/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() {
    flags_.Add("state_dir", "DIR", "Where things are.", &state_dir_);
    flags_.Add("limit", "N", "How many.", &limit_);
    flags_.Add("dir", "DIR", "Another one.", &dirs_);
    flags_.AddDuration("ttl", "How long.", &ttl_);
    flags_.AddSwitch("dry-run", "Only look.", &dry_run_);
  }

  std::string ErrorOf(const std::vector<std::string>& args) {
    const auto result = flags_.Parse(args);
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument));
    return std::string(result.status().message());
  }

  FlagSet flags_;
  std::optional<std::string> state_dir_;
  std::optional<int64_t> limit_;
  std::vector<std::string> dirs_;
  std::optional<double> ttl_;
  bool dry_run_ = false;
};

TEST_F(FlagSetTest, ReadsBothFormsAndKeepsOperandsInOrder) {
  const auto operands =
      flags_.Parse({"first", "--state_dir", "/a b", "--limit=7", "--dry_run", "second"});
  ASSERT_THAT(operands, IsOk());
  EXPECT_THAT(*operands, ElementsAre("first", "second"));
  EXPECT_EQ(state_dir_, "/a b");
  EXPECT_EQ(limit_, 7);
  EXPECT_TRUE(dry_run_);
  EXPECT_EQ(ttl_, std::nullopt);
}

TEST_F(FlagSetTest, DashesAndUnderscoresInNamesAreTheSame) {
  ASSERT_THAT(flags_.Parse({"--state-dir=/a"}), IsOk());
  EXPECT_EQ(state_dir_, "/a");
}

TEST_F(FlagSetTest, EmptyValueIsAValue) {
  ASSERT_THAT(flags_.Parse({"--state_dir="}), IsOk());
  EXPECT_EQ(state_dir_, "");
}

TEST_F(FlagSetTest, RepeatedFlagAppends) {
  ASSERT_THAT(flags_.Parse({"--dir=a", "--dir=b"}), IsOk());
  EXPECT_THAT(dirs_, ElementsAre("a", "b"));
}

TEST_F(FlagSetTest, EverythingAfterTwoDashesIsAnOperand) {
  const auto operands = flags_.Parse({"--", "--limit=x"});
  ASSERT_THAT(operands, IsOk());
  EXPECT_THAT(*operands, ElementsAre("--limit=x"));
}

TEST_F(FlagSetTest, UnknownFlagSuggestsTheNearest) {
  EXPECT_EQ(ErrorOf({"--state_dri=/a"}), "unknown flag --state_dri; did you mean --state_dir?");
  EXPECT_EQ(ErrorOf({"--unrelated"}), "unknown flag --unrelated");
}

TEST_F(FlagSetTest, BadValuesNameFlagValueAndWant) {
  EXPECT_EQ(ErrorOf({"--limit=many"}), "--limit has value \"many\", want a whole number");
  EXPECT_EQ(ErrorOf({"--limit"}), "--limit needs a value: N");
  EXPECT_EQ(ErrorOf({"--dry-run=yes"}), "--dry-run takes no value");
  EXPECT_THAT(ErrorOf({"--ttl=-3m"}), HasSubstr("--ttl has value \"-3m\""));
}

TEST_F(FlagSetTest, HelpHasEveryFlagWithinEightyColumns) {
  FlagSet set;
  std::optional<std::string> value;
  const std::string a(30, 'a');
  const std::string b(50, 'b');
  set.Add("long", "TEXT", absl::StrCat(a, " ", b, " c"), &value);
  EXPECT_EQ(set.Help(), absl::StrCat("  --long TEXT\n      ", a, "\n      ", b, " c\n"));
}

TEST(ParseDurationSecondsTest, KnowsTheUnits) {
  EXPECT_EQ(*ParseDurationSeconds("90"), 90);
  EXPECT_EQ(*ParseDurationSeconds("0.5s"), 0.5);
  EXPECT_EQ(*ParseDurationSeconds("30m"), 1800);
  EXPECT_EQ(*ParseDurationSeconds("2h"), 7200);
  EXPECT_EQ(*ParseDurationSeconds("1d"), 86400);
}

TEST(ParseDurationSecondsTest, RefusesWhatIsNoDuration) {
  for (const char* text : {"", "m", "-1s", "inf", "nan", "3 weeks", "1h30m"}) {
    EXPECT_THAT(ParseDurationSeconds(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace fuseboard
