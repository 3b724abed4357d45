#include "tests/testing/test_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

namespace fuseboard::testing {
namespace {

// Keeps the alignment of what follows; longer than any vector access (64 bytes on AVX-512).
constexpr int64_t kGuardBytes = 256;
constexpr uint8_t kInitialByte = 0xa5;

struct Format {
  int mantissa_bits;  // Without the hidden one.
  int min_exponent;   // Of the smallest normal number, as a power of two.
  int max_exponent;
};

Format FormatOf(int32_t dtype) {
  switch (dtype) {
    case FB_F16:
      return {10, -14, 15};
    case FB_BF16:
      return {7, -126, 127};
    default:
      return {23, -126, 127};
  }
}

// Both by the bits of a double: tests spend most of their time in these conversions. The exponent
// of a subnormal double comes out below that of any dtype's, which is all that its callers ask.
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}
int ExponentOf(double value) {
  return static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7ff) - 1023;
}

uint16_t Encode16(int32_t dtype, double value) {
  const Format format = FormatOf(dtype);
  const int bias = format.max_exponent;
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto infinity = static_cast<uint16_t>((2 * bias + 1) << format.mantissa_bits);
  if (std::isnan(value)) return sign | infinity | 1 << (format.mantissa_bits - 1);
  const double rounded = std::fabs(RoundToDType(dtype, value));
  if (std::isinf(rounded)) return sign | infinity;
  const int exponent = std::max(ExponentOf(rounded), format.min_exponent);
  const int field = (exponent - format.min_exponent) << format.mantissa_bits;
  // With the hidden bit, which a subnormal lacks: it adds 1 to the exponent's field.
  const double mantissa = rounded * PowerOfTwo(format.mantissa_bits - exponent);
  return sign | static_cast<uint16_t>(field + static_cast<int>(mantissa));
}

double Decode16(int32_t dtype, uint16_t bits) {
  const Format format = FormatOf(dtype);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  if (exponent == 2 * format.max_exponent + 1) {
    return mantissa != 0 ? std::nan("") : sign * INFINITY;
  }
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int power = std::max(exponent, 1) - format.max_exponent - format.mantissa_bits;
  return sign * (hidden + mantissa) * PowerOfTwo(power);
}

}  // namespace

int64_t DTypeBytes(int32_t dtype) {
  switch (dtype) {
    case FB_F16:
    case FB_BF16:
      return 2;
    case FB_F64:
    case FB_I64:
      return 8;
    case FB_BOOL:
      return 1;
    default:
      return 4;
  }
}

double RoundToDType(int32_t dtype, double value) {
  if (dtype == FB_F64 || value == 0.0 || !std::isfinite(value)) return value;
  const Format format = FormatOf(dtype);
  const int exponent = std::max(ExponentOf(value), format.min_exponent);
  // A double of this size has no digits below the dtype's last one: the sum is rounded there.
  const double large = 1.5 * PowerOfTwo(exponent - format.mantissa_bits + 52);
  const double rounded = std::copysign((value + large) - large, value);
  const double limit = PowerOfTwo(format.max_exponent) * 2.0;
  return std::fabs(rounded) < limit ? rounded : std::copysign(INFINITY, value);
}

TestTensor::TestTensor(int32_t dtype, std::vector<int64_t> shape, Layout layout)
    : dtype_(dtype), shape_(std::move(shape)), layout_(std::move(layout)) {
  if (layout_.row_stride < 0) layout_.row_stride = shape_.size() == 1 ? 1 : cols();
  if (shape_.size() == 1) layout_.strides = {layout_.row_stride};
  if (shape_.size() == 2) layout_.strides = {layout_.row_stride, 1};
  if (layout_.strides.empty()) {
    layout_.strides.assign(shape_.size(), 1);
    for (size_t i = shape_.size(); i-- > 1;) {
      layout_.strides[i - 1] = layout_.strides[i] * shape_[i];
    }
  }
  int64_t span = 1;  // Elements from the first to the last.
  for (size_t i = 0; i < shape_.size(); ++i) {
    span = shape_[i] == 0 || span == 0 ? 0 : span + (shape_[i] - 1) * layout_.strides[i];
  }
  const int64_t bytes = (layout_.offset + span) * DTypeBytes(dtype_);
  image_.assign(static_cast<size_t>(bytes + 2 * kGuardBytes), kInitialByte);
}

int64_t TestTensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape_.size(); ++i) rows *= shape_[i];
  return rows;
}

int64_t TestTensor::ByteOf(int64_t row, int64_t col) const {
  int64_t index = col * layout_.strides.back();
  for (size_t i = shape_.size() - 1; i-- > 1; row /= shape_[i]) {
    index += row % shape_[i] * layout_.strides[i];
  }
  if (shape_.size() > 1) index += row * layout_.strides[0];
  return kGuardBytes + (layout_.offset + index) * DTypeBytes(dtype_);
}

void TestTensor::ForEachRun(const std::function<void(int64_t at, int64_t bytes)>& visit) const {
  // A row whose elements are neighbours is one run.
  const bool dense = !shape_.empty() && layout_.strides.back() == 1;
  const int64_t length = dense ? cols() : 1;
  for (int64_t r = 0; r < rows(); ++r) {
    for (int64_t c = 0; c < cols(); c += length) visit(ByteOf(r, c), length * DTypeBytes(dtype_));
  }
}

double TestTensor::At(int64_t row, int64_t col) const {
  const uint8_t* at = image_.data() + ByteOf(row, col);
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype_) {
    case FB_F32:
      return read(float{});
    case FB_F64:
      return read(double{});
    case FB_I32:
      return read(int32_t{});
    case FB_I64:
      return static_cast<double>(read(int64_t{}));
    default:
      return Decode16(dtype_, read(uint16_t{}));
  }
}

void TestTensor::Set(int64_t row, int64_t col, double value) {
  uint8_t* at = image_.data() + ByteOf(row, col);
  const auto write = [at](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (dtype_) {
    case FB_F32:
      return write(static_cast<float>(value));
    case FB_F64:
      return write(value);
    case FB_I32:
      return write(static_cast<int32_t>(value));
    case FB_I64:
      return write(static_cast<int64_t>(value));
    default:
      return write(Encode16(dtype_, value));
  }
}

TestTensor& TestTensor::Fill(const std::function<double(int64_t, int64_t)>& value) {
  for (int64_t r = 0; r < rows(); ++r) {
    for (int64_t c = 0; c < cols(); ++c) Set(r, c, value(r, c));
  }
  return *this;
}

TestTensor& TestTensor::FillNormal(uint32_t seed, double scale, double mean) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(mean, scale);
  return Fill([&](int64_t, int64_t) { return normal(engine); });
}

FbTensor TestTensor::View(void* base, int32_t device_type) const {
  FbTensor view = {};
  view.ndim = absent() ? -1 : static_cast<int32_t>(shape_.size());
  view.dtype = dtype_;
  view.device_type = device_type;
  if (absent()) return view;
  view.data = static_cast<uint8_t*>(base) + kGuardBytes + layout_.offset * DTypeBytes(dtype_);
  std::ranges::copy(shape_, view.shape);
  std::ranges::copy(layout_.strides, view.stride);
  return view;
}

void TestTensor::Poison(uint8_t byte) { std::ranges::fill(image_, byte); }

bool TestTensor::HasBitsOf(const TestTensor& other) const {
  bool same = true;
  ForEachRun([&](int64_t at, int64_t bytes) {
    const uint8_t* here = image_.data() + at;
    same = same && std::memcmp(here, other.image_.data() + at, static_cast<size_t>(bytes)) == 0;
  });
  return same;
}

int64_t TestTensor::CountTouchedGuards(uint8_t byte) const {
  std::vector<uint8_t> expected = image_;
  std::ranges::fill(expected, byte);
  ForEachRun([&](int64_t at, int64_t bytes) {
    std::memcpy(expected.data() + at, image_.data() + at, static_cast<size_t>(bytes));
  });
  if (expected == image_) return 0;
  int64_t touched = 0;
  for (size_t i = 0; i < image_.size(); ++i) touched += image_[i] != expected[i] ? 1 : 0;
  return touched;
}

}  // namespace fuseboard::testing
