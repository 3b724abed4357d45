#include "kernels/common/reciprocal.h"

#include <gtest/gtest.h>

namespace fuseboard {
namespace {

TEST(ReciprocalTest, QuotientsAreExact) {
  constexpr uint32_t kValues[] = {1,     2,     3,          5,          7,          40,
                                  4096,  65535, 65536,      1000000007, 0x7fffffff, 0x80000000,
                                  12345, 641,   0xfffffffe, 0xffffffff};
  for (const uint32_t value : kValues) {
    const Reciprocal reciprocal = ReciprocalOf(value);
    const auto expect = [&](uint32_t dividend) {
      ASSERT_EQ(reciprocal.Quotient(dividend), dividend / value) << dividend << " / " << value;
    };
    for (uint32_t i = 0; i < 10000; ++i) {
      expect(i);
      expect(0xffffffffu - i);
      // On either side of a multiple.
      expect(i * value);
      expect(i * value - 1);
      expect(i * 2654435761u);
    }
  }
}

}  // namespace
}  // namespace fuseboard
