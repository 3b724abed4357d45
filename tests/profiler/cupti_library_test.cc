#include "profiler/cupti_library.h"

#include <gmock/gmock.h>

#include "tests/testing/fake_cupti.h"

namespace fuseboard::profiler {
namespace {

using ::fuseboard::testing::FakeCupti;
using ::fuseboard::testing::Kernel;
using ::testing::HasSubstr;

TEST(CuptiLibraryTest, EveryReasonHasItsCode) {
  EXPECT_EQ(CodeOf(OkStatus()), FB_CUPTI_OK);
  EXPECT_EQ(CodeOf(UnavailableError("")), FB_CUPTI_BUSY);
  EXPECT_EQ(CodeOf(FailedPreconditionError("")), FB_CUPTI_UNAVAILABLE);
  EXPECT_EQ(CodeOf(DataLossError("")), FB_CUPTI_INCOMPLETE);
  EXPECT_EQ(CodeOf(NotFoundError("")), FB_CUPTI_EMPTY);
  EXPECT_EQ(CodeOf(InvalidArgumentError("")), FB_CUPTI_BAD_STATE);
  EXPECT_EQ(CodeOf(ResourceExhaustedError("")), FB_CUPTI_INTERNAL);
  EXPECT_EQ(CodeOf(InternalError("")), FB_CUPTI_INTERNAL);
}

TEST(CuptiLibraryTest, StopHandsOutTheReportAndAnErrorNone) {
  FakeCupti cupti;
  CuptiLibrary library(&cupti);
  ASSERT_TRUE(library.StartWindow().ok());
  ASSERT_TRUE(library.Mark("step 1").ok());
  cupti.Run(Kernel("gemm", 10, 20));
  const char* report = nullptr;
  ASSERT_TRUE(library.StopWindow(&report).ok());
  ASSERT_NE(report, nullptr);
  EXPECT_THAT(report, HasSubstr(R"({"name":"gemm","count":1,"device_ns":10})"));

  ASSERT_TRUE(library.StartWindow().ok());
  EXPECT_EQ(CodeOf(library.StopWindow(&report)), FB_CUPTI_EMPTY);
  EXPECT_EQ(report, nullptr);
}

TEST(CuptiLibraryTest, AnIncompleteWindowHasACodeAndAReport) {
  FakeCupti cupti;
  CuptiLibrary library(&cupti);
  ASSERT_TRUE(library.StartWindow().ok());
  cupti.Run(Kernel("gemm", 10, 20));
  cupti.Drop(2);
  const char* report = nullptr;
  EXPECT_EQ(CodeOf(library.StopWindow(&report)), FB_CUPTI_INCOMPLETE);
  ASSERT_NE(report, nullptr);
  EXPECT_THAT(report, HasSubstr(R"("dropped_records":2)"));
}

TEST(CuptiLibraryTest, LongOrMissingPhaseNamesAreTaken) {
  FakeCupti cupti;
  CuptiLibrary library(&cupti);
  ASSERT_TRUE(library.StartWindow().ok());
  ASSERT_TRUE(library.Mark(nullptr).ok());
  ASSERT_TRUE(library.Mark(std::string(200, 'p').c_str()).ok());
  cupti.Run(Kernel("gemm", 10, 20));
  const char* report = nullptr;
  ASSERT_TRUE(library.StopWindow(&report).ok());
  EXPECT_THAT(report, HasSubstr("\"" + std::string(63, 'p') + "\""));
}

}  // namespace
}  // namespace fuseboard::profiler
