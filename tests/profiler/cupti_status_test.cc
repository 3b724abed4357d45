#include "profiler/cupti_status.h"

#include <gmock/gmock.h>

namespace fuseboard::profiler {
namespace {

using ::testing::HasSubstr;

TEST(CuptiStatusTest, SuccessIsOk) {
  EXPECT_TRUE(CuptiStatus(CUPTI_SUCCESS, "cuptiActivityEnable").ok());
}

TEST(CuptiStatusTest, AnotherSubscriberIsUnavailableAndNamed) {
  const Status status = CuptiStatus(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
                                    "cuptiSubscribe_v2", "CUPTI for Kineto");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "another profiler holds CUPTI: CUPTI for Kineto");
}

TEST(CuptiStatusTest, WithoutADriverCuptiCannotBeUsedHere) {
  const Status status = CuptiStatus(static_cast<CUptiResult>(999), "cuptiSubscribe_v2");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "cuptiSubscribe_v2 returned CUPTI error 999: no CUDA driver, or CUPTI cannot reach it");
}

TEST(CuptiStatusTest, AnUnprivilegedUserIsToldTheSetting) {
  const Status status = CuptiStatus(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "cuptiActivityEnable");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("NVreg_RestrictProfilingToAdminUsers"));
}

TEST(CuptiStatusTest, AnythingElseIsInternalWithItsNumber) {
  const Status status = CuptiStatus(CUPTI_ERROR_INVALID_KIND, "cuptiActivityEnable");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuptiActivityEnable returned CUPTI error"));
}

}  // namespace
}  // namespace fuseboard::profiler
