#include "server/rpc/status_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/status.pb.h"
#include "server/common/error_reason.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::testing::EndsWith;

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  EXPECT_TRUE(DetailsOf(status).details(0).UnpackTo(&info));
  return info;
}

TEST(StatusConversionTest, OkStaysOkBothWays) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_THAT(FromGrpcStatus(grpc::Status::OK), IsOk());
}

TEST(StatusConversionTest, EveryCodeKeepsItsNumberAndComesBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(wire.error_code(), code);
    EXPECT_EQ(wire.error_message(), "why");
    EXPECT_EQ(DetailsOf(wire).code(), code);
    EXPECT_EQ(FromGrpcStatus(wire).code(), status.code());
  }
}

TEST(StatusConversionTest, ReasonAndMetadataTravel) {
  const absl::Status status = WithReason(absl::NotFoundError("no kernel rms_nrom"), kUnknownKernel,
                                         {{"kernel", "rms_nrom"}});
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(InfoOf(wire).reason(), "UNKNOWN_KERNEL");
  EXPECT_EQ(InfoOf(wire).domain(), "fuseboard.dev");
  EXPECT_EQ(InfoOf(wire).metadata().at("kernel"), "rms_nrom");
  EXPECT_EQ(FromGrpcStatus(wire), status);
}

TEST(StatusConversionTest, StatusWithoutReasonGetsTheNameOfItsCode) {
  const grpc::Status wire = ToGrpcStatus(absl::NotFoundError("gone"));
  EXPECT_EQ(InfoOf(wire).reason(), "NOT_FOUND");
  EXPECT_EQ(InfoOf(wire).domain(), "fuseboard.dev");
}

TEST(StatusConversionTest, LongMessageIsCutBetweenCharacters) {
  // "é" is two bytes: a cut at 2048 of 1 + 2n bytes falls inside one.
  std::string text = "x";
  for (int i = 0; i < 3000; ++i) text += "é";
  const std::string message = ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_EQ(message.size(), 2047 + 3);
  EXPECT_THAT(message, EndsWith("é..."));
}

TEST(StatusConversionTest, OversizedMetadataIsLeftOutAndTheReasonStays) {
  const grpc::Status wire = ToGrpcStatus(WithReason(absl::InvalidArgumentError("bad"), kBadRequest,
                                                    {{"value", std::string(9000, 'x')}}));
  EXPECT_EQ(InfoOf(wire).reason(), "BAD_REQUEST");
  EXPECT_TRUE(InfoOf(wire).metadata().empty());
  EXPECT_LT(wire.error_details().size(), 4096);
}

TEST(StatusConversionTest, DetailsThatAreNoStatusAreLeftOut) {
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "why", "\xff\xff not a message"));
  EXPECT_EQ(status, absl::AbortedError("why"));
}

}  // namespace
}  // namespace fuseboard
