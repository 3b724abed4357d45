#include "profiler/activity_decoder.h"

#include <gtest/gtest.h>

namespace fuseboard::profiler {
namespace {

template <typename T>
const CUpti_Activity& AsActivity(const T& record) {
  return reinterpret_cast<const CUpti_Activity&>(record);
}

TEST(ActivityDecoderTest, ReadsAKernel) {
  CUpti_ActivityKernel10 kernel = {};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.start = 100;
  kernel.end = 130;
  kernel.deviceId = 3;
  kernel.name = "add";
  const auto record = DecodeActivity(AsActivity(kernel));
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->kind, ActivityKind::kKernel);
  EXPECT_EQ(record->start_ns, 100U);
  EXPECT_EQ(record->end_ns, 130U);
  EXPECT_EQ(record->device_id, 3U);
  EXPECT_FALSE(record->from_graph);
  EXPECT_STREQ(record->name, "add");
}

TEST(ActivityDecoderTest, KnowsAKernelOfAGraphByItsNode) {
  CUpti_ActivityKernel10 kernel = {};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.graphNodeId = 7;
  const auto record = DecodeActivity(AsActivity(kernel));
  ASSERT_TRUE(record.has_value());
  EXPECT_TRUE(record->from_graph);
}

TEST(ActivityDecoderTest, ReadsCopiesAndMemsets) {
  CUpti_ActivityMemcpy6 copy = {};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.bytes = 4096;
  copy.start = 5;
  copy.end = 9;
  const auto copied = DecodeActivity(AsActivity(copy));
  ASSERT_TRUE(copied.has_value());
  EXPECT_EQ(copied->kind, ActivityKind::kCopy);
  EXPECT_EQ(copied->bytes, 4096U);
  EXPECT_EQ(copied->end_ns, 9U);

  CUpti_ActivityMemset4 memset = {};
  memset.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  memset.bytes = 64;
  const auto filled = DecodeActivity(AsActivity(memset));
  ASSERT_TRUE(filled.has_value());
  EXPECT_EQ(filled->kind, ActivityKind::kMemset);
}

TEST(ActivityDecoderTest, PassesOverKindsThatAreNotCounted) {
  CUpti_Activity other = {};
  other.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  EXPECT_FALSE(DecodeActivity(other).has_value());
}

}  // namespace
}  // namespace fuseboard::profiler
