// A tensor of a kernel test: a host byte image with guard bytes around and between the rows, and
// the FbTensor view into it. Values go in and out as double, by conversions written for the tests,
// so that a fault in the kernels' own conversions shows.

#ifndef TESTS_TESTING_TEST_TENSOR_H_
#define TESTS_TESTING_TEST_TENSOR_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::testing {

int64_t DTypeBytes(int32_t dtype);

// The value of the dtype nearest to `value`, ties to even; infinity beyond its range.
double RoundToDType(int32_t dtype, double value);

// Where the elements of a tensor lie. Rows one after the other by default.
struct Layout {
  // In elements; -1: as long as a row. 0: all rows are one. For a vector: between its elements.
  int64_t row_stride = -1;
  int64_t offset = 0;  // Elements from a 256-byte boundary to the first: 1 is unaligned.
  // With more than two dimensions instead of row_stride: of each; empty: one after the other.
  std::vector<int64_t> strides = {};
};

class TestTensor {
 public:
  // Absent.
  TestTensor() = default;
  // [size] or [rows, cols], all bytes poisoned. More dimensions are rows of the last one, counted
  // with the first dimension outermost, wherever they lie.
  TestTensor(int32_t dtype, std::vector<int64_t> shape, Layout layout = {});

  bool absent() const { return shape_.empty(); }
  int32_t dtype() const { return dtype_; }
  int64_t rows() const;
  int64_t cols() const { return shape_.empty() ? 0 : shape_.back(); }
  const std::vector<int64_t>& shape() const { return shape_; }

  // An element; `row` is 0 for a vector. Set rounds to the dtype.
  double At(int64_t row, int64_t col) const;
  void Set(int64_t row, int64_t col, double value);
  TestTensor& Fill(const std::function<double(int64_t row, int64_t col)>& value);
  // Normal variates, the same for the same seed.
  TestTensor& FillNormal(uint32_t seed, double scale = 1.0, double mean = 0.0);

  // The view for memory at `base`, which holds a copy of image() and is 256-byte aligned.
  FbTensor View(void* base, int32_t device_type) const;
  std::vector<uint8_t>& image() { return image_; }
  const std::vector<uint8_t>& image() const { return image_; }

  // Whether all elements have the bits of the other's, which has the same shape and layout.
  bool HasBitsOf(const TestTensor& other) const;

  // Sets every byte.
  void Poison(uint8_t byte);
  // The number of bytes outside the elements that are not `byte`: 0 if nothing was written there.
  int64_t CountTouchedGuards(uint8_t byte) const;

 private:
  int64_t ByteOf(int64_t row, int64_t col) const;
  // Calls visit(first byte, bytes) for elements one after the other in memory, until all had a
  // turn.
  void ForEachRun(const std::function<void(int64_t at, int64_t bytes)>& visit) const;

  int32_t dtype_ = FB_F32;
  std::vector<int64_t> shape_;
  Layout layout_;
  std::vector<uint8_t> image_;
};

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_TEST_TENSOR_H_
