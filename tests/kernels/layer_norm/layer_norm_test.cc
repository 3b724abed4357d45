#include "kernels/abi/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/kernel_harness.h"

namespace fuseboard::layer_norm {
namespace {

using testing::ExpectClose;
using testing::KernelCall;
using testing::Layout;
using testing::TestTensor;

constexpr int32_t kAbsentDType = -1;

struct Case {
  int64_t rows = 4;
  int64_t hidden = 8;
  int32_t dtype = FB_F32;
  int32_t weight_dtype = FB_F32;  // Or kAbsentDType.
  int32_t bias_dtype = FB_F32;    // Or kAbsentDType.
  double x_mean = 0.0;
  Layout x_layout = {};
  Layout y_layout = {};  // Of y and dx.

  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(hidden) + "] dtype " +
           std::to_string(dtype) + " weight " + std::to_string(weight_dtype) + " bias " +
           std::to_string(bias_dtype);
  }
  TestTensor X() const {
    return TestTensor(dtype, {rows, hidden}, x_layout).FillNormal(1, 1.0, x_mean);
  }
  TestTensor Y() const { return {dtype, {rows, hidden}, y_layout}; }
  static TestTensor Parameter(int32_t dtype, int64_t hidden, uint32_t seed, double mean) {
    if (dtype == kAbsentDType) return {};
    return TestTensor(dtype, {hidden}).FillNormal(seed, 0.5, mean);
  }
  TestTensor Weight() const { return Parameter(weight_dtype, hidden, 2, 1.0); }
  TestTensor Bias() const { return Parameter(bias_dtype, hidden, 4, 0.0); }
};

// What a call's inputs lead to, in double.
class Reference {
 public:
  Reference(const Case& c, const TestTensor& x, const TestTensor& weight)
      : case_(c), x_(x), weight_(weight) {
    for (int64_t r = 0; r < c.rows; ++r) {
      double sum = 0.0;
      for (int64_t i = 0; i < c.hidden; ++i) sum += x.At(r, i);
      const double mean = sum / static_cast<double>(c.hidden);
      double square = 0.0;
      for (int64_t i = 0; i < c.hidden; ++i) square += std::pow(x.At(r, i) - mean, 2);
      mean_.push_back(mean);
      rstd_.push_back(1.0 / std::sqrt(square / static_cast<double>(c.hidden) + kEps));
    }
  }

  static constexpr double kEps = 1e-5;
  double Mean(int64_t row) const { return mean_[row]; }
  double Rstd(int64_t row) const { return rstd_[row]; }
  double Normed(int64_t row, int64_t col) const {
    return (x_.At(row, col) - mean_[row]) * rstd_[row];
  }
  double Scale(int64_t col) const { return weight_.absent() ? 1.0 : weight_.At(0, col); }

  // dx [rows][hidden], dweight and dbias [hidden].
  struct Gradients {
    std::vector<std::vector<double>> dx;
    std::vector<double> dweight;
    std::vector<double> dbias;
  };
  Gradients Backward(const TestTensor& dy) const {
    const int64_t hidden = case_.hidden;
    Gradients out = {{}, std::vector<double>(hidden), std::vector<double>(hidden)};
    for (int64_t r = 0; r < case_.rows; ++r) {
      double g_mean = 0.0;
      double product_mean = 0.0;
      for (int64_t i = 0; i < hidden; ++i) {
        const double g = dy.At(r, i) * Scale(i);
        g_mean += g / static_cast<double>(hidden);
        product_mean += g * Normed(r, i) / static_cast<double>(hidden);
        out.dweight[i] += dy.At(r, i) * Normed(r, i);
        out.dbias[i] += dy.At(r, i);
      }
      std::vector<double> dx(hidden);
      for (int64_t i = 0; i < hidden; ++i) {
        dx[i] = rstd_[r] * (dy.At(r, i) * Scale(i) - g_mean - Normed(r, i) * product_mean);
      }
      out.dx.push_back(std::move(dx));
    }
    return out;
  }

 private:
  Case case_;
  const TestTensor& x_;
  const TestTensor& weight_;
  std::vector<double> mean_;
  std::vector<double> rstd_;
};

constexpr FbLayerNormParams kParams = {sizeof(FbLayerNormParams), Reference::kEps};

class LayerNormTest : public ::testing::TestWithParam<int> {
 protected:
  static const FbKernel& Kernel() { return testing::OpenKernel("layer_norm"); }

  void Forward(const Case& c) {
    SCOPED_TRACE(c.Name());
    KernelCall call = {FB_FORWARD,
                       {c.X(), c.Weight(), c.Bias()},
                       {c.Y(), TestTensor(FB_F32, {c.rows}), TestTensor(FB_F32, {c.rows})},
                       &kParams};
    testing::Run(Kernel(), GetParam(), &call);
    const Reference reference(c, call.inputs[0], call.inputs[1]);
    const TestTensor& bias = call.inputs[2];
    // A mean in f32 is off by up to 6e-8 of itself. E[x^2] - mean^2 would be off by 6e-8 mean^2.
    const double scale = 1.0 + c.x_mean / 100.0;
    ExpectClose(
        call.outputs[0],
        [&](int64_t row, int64_t col) {
          return reference.Normed(row, col) * reference.Scale(col) +
                 (bias.absent() ? 0.0 : bias.At(0, col));
        },
        scale);
    ExpectClose(
        call.outputs[1], [&](int64_t, int64_t row) { return reference.Mean(row); }, scale);
    ExpectClose(call.outputs[2], [&](int64_t, int64_t row) { return reference.Rstd(row); });
  }

  void Backward(const Case& c, const Layout& dy_layout) {
    SCOPED_TRACE(c.Name());
    const auto like = [&](int32_t dtype) {
      return dtype == kAbsentDType ? TestTensor() : TestTensor(dtype, {c.hidden});
    };
    KernelCall call = {FB_BACKWARD,
                       {TestTensor(c.dtype, {c.rows, c.hidden}, dy_layout).FillNormal(3), c.X(),
                        c.Weight(), TestTensor(FB_F32, {c.rows}), TestTensor(FB_F32, {c.rows})},
                       {c.Y(), like(c.weight_dtype), like(c.bias_dtype)},
                       &kParams};
    const Reference reference(c, call.inputs[1], call.inputs[2]);
    call.inputs[3].Fill([&](int64_t, int64_t row) { return reference.Mean(row); });
    call.inputs[4].Fill([&](int64_t, int64_t row) { return reference.Rstd(row); });
    testing::Run(Kernel(), GetParam(), &call);
    const auto want = reference.Backward(call.inputs[0]);
    ExpectClose(
        call.outputs[0], [&](int64_t row, int64_t col) { return want.dx[row][col]; }, 4.0);
    const double rows = 4.0 * static_cast<double>(c.rows);
    if (!call.outputs[1].absent()) {
      ExpectClose(
          call.outputs[1], [&](int64_t, int64_t col) { return want.dweight[col]; }, rows);
    }
    if (!call.outputs[2].absent()) {
      ExpectClose(
          call.outputs[2], [&](int64_t, int64_t col) { return want.dbias[col]; }, rows);
    }
  }
};

// No rows, one element, a width that no vector divides, several blocks, rows that share a block,
// rows of a cluster of several sizes.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 16},    {1, 1},     {3, 1000},  {5, 37},
                                                   {2, 4097},  {70, 128},  {3, 8192},  {3, 5128},
                                                   {3, 20488}, {2, 65536}, {2, 140000}};

TEST_P(LayerNormTest, BothPhasesAgreeWithDoubleOnAllDTypesAndShapes) {
  for (const auto& [rows, hidden] : kShapes) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      const Case c = {.rows = rows,
                      .hidden = hidden,
                      .dtype = dtype,
                      .weight_dtype = dtype,
                      .bias_dtype = dtype};
      Forward(c);
      Backward(c, {});
    }
  }
}

TEST_P(LayerNormTest, FewRowsAndMoreAreAddedUp) {
  // One kernel for few rows, in the widths that it takes; then a persistent grid.
  for (const int64_t hidden : {64, 1000, 4096, 8192}) {
    for (const int64_t rows : {64, 1030}) {
      if (rows > 64 && hidden > (GetParam() == FB_CUDA ? 1000 : 64)) continue;
      for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
        for (const int32_t bias : {dtype, kAbsentDType}) {
          Backward({.rows = rows,
                    .hidden = hidden,
                    .dtype = dtype,
                    .weight_dtype = hidden == 1000 ? kAbsentDType : dtype,
                    .bias_dtype = bias},
                   {});
        }
      }
    }
  }
}

TEST_P(LayerNormTest, ManyWideRowsPerClusterAreAddedUp) {
  // On an H200 30 clusters of 4 blocks, and 7 of 16 with rows in pieces. On a CPU a row is a row.
  const int64_t factor = GetParam() == FB_CUDA ? 15 : 1;
  for (const auto& [rows, hidden] :
       {std::pair<int64_t, int64_t>{26 * factor + 1, 20488}, {2 * factor + 1, 262136}}) {
    const Case c = {.rows = rows,
                    .hidden = hidden,
                    .dtype = FB_BF16,
                    .weight_dtype = FB_BF16,
                    .bias_dtype = FB_BF16};
    Forward(c);
    Backward(c, {});
  }
}

TEST_P(LayerNormTest, WideRowsMayBeginFarFromTheirMean) {
  // Sums are taken from the mean of the first elements of a row.
  for (const int64_t hidden : {20488, 140000}) {
    const Case c = {.rows = 3,
                    .hidden = hidden,
                    .dtype = FB_BF16,
                    .weight_dtype = FB_BF16,
                    .bias_dtype = FB_BF16};
    KernelCall call = {FB_FORWARD,
                       {c.X(), c.Weight(), c.Bias()},
                       {c.Y(), TestTensor(FB_F32, {c.rows}), TestTensor(FB_F32, {c.rows})},
                       &kParams};
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t col = 0; col < 4; ++col) call.inputs[0].Set(row, col, 500.0);
    }
    testing::Run(Kernel(), GetParam(), &call);
    const Reference reference(c, call.inputs[0], call.inputs[1]);
    // As a float the distance from 500 would be off by 1.5e-5.
    ExpectClose(
        call.outputs[1], [&](int64_t, int64_t row) { return reference.Mean(row); }, 1.0);
    ExpectClose(call.outputs[2], [&](int64_t, int64_t row) { return reference.Rstd(row); });
  }
}

TEST_P(LayerNormTest, ManyRowsPerBlockAreAddedUp) {
  const Case c = {
      .rows = 3000, .hidden = 64, .dtype = FB_BF16, .weight_dtype = FB_BF16, .bias_dtype = FB_BF16};
  Backward(c, {});
}

TEST_P(LayerNormTest, ALargeMeanLosesNoDigitsOfTheVariance) {
  Forward({.rows = 3, .hidden = 1024, .x_mean = 1000.0});
  Forward({.rows = 3, .hidden = 1001, .x_mean = 1000.0});
  Forward({.rows = 3, .hidden = 20488, .x_mean = 1000.0});  // Several blocks to a row.
  Forward({.rows = 3, .hidden = 100004, .x_mean = 1000.0});
}

TEST_P(LayerNormTest, RowsMayBeginAnywhere) {
  // All rows alike: 16-byte packs from some width on, up to a block to a row. With an offset all of
  // them begin elsewhere, and a mean far from 0 is taken off before the sums.
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t hidden : {1, 3, 7, 12, 131, 257, 517, 2881, 2882, 4097, 16383, 20491}) {
      if (hidden > 5000 && dtype == FB_F16) continue;
      for (const int64_t offset : {0, 1, 3}) {
        if (hidden > 5000 && offset == 3) continue;
        const Case c = {.rows = 11,
                        .hidden = hidden,
                        .dtype = dtype,
                        .weight_dtype = offset == 3 ? kAbsentDType : dtype,
                        .bias_dtype = hidden == 257 ? kAbsentDType : dtype,
                        .x_mean = offset == 1 ? 20.0 : 0.0,
                        .x_layout = {.offset = offset},
                        .y_layout = {.offset = offset}};
        Forward(c);
        Backward(c, {.offset = offset});
      }
    }
  }
}

TEST_P(LayerNormTest, ManyRowsThatBeginAnywhereAreAddedUp) {
  // On the GPU more rows than a persistent grid takes in one turn.
  const int64_t factor = GetParam() == FB_CUDA ? 16 : 1;
  for (const auto& [rows, hidden] :
       {std::pair<int64_t, int64_t>{401, 131}, {101, 1026}, {61, 2881}, {61, 3585}, {41, 5121}}) {
    for (const int32_t bias : {int32_t{FB_BF16}, kAbsentDType}) {
      Backward({.rows = rows * factor,
                .hidden = hidden,
                .dtype = FB_BF16,
                .weight_dtype = FB_BF16,
                .bias_dtype = bias},
               {});
    }
  }
}

TEST_P(LayerNormTest, WeightAndBiasMayBeMissingOrOfAnotherDType) {
  for (const int32_t weight : {kAbsentDType, int32_t{FB_F32}}) {
    for (const int32_t bias : {kAbsentDType, int32_t{FB_F16}}) {
      const Case c = {
          .rows = 9, .hidden = 96, .dtype = FB_BF16, .weight_dtype = weight, .bias_dtype = bias};
      Forward(c);
      Backward(c, {});
    }
  }
}

TEST_P(LayerNormTest, AnyStridesAndAlignments) {
  for (const int64_t hidden : {64, 200}) {
    const Case c = {.rows = 6,
                    .hidden = hidden,
                    .dtype = FB_BF16,
                    .x_layout = {.row_stride = hidden + 24, .offset = 1},
                    .y_layout = {.row_stride = hidden + 3}};
    Forward(c);
    Backward(c, {.row_stride = 0});
    Forward({.rows = 6, .hidden = hidden, .dtype = FB_BF16, .x_layout = {.row_stride = 0}});
  }
}

FB_INSTANTIATE_PER_DEVICE(LayerNormTest);

}  // namespace
}  // namespace fuseboard::layer_norm
