#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/kernels/modulated_rms_norm/modulated_rms_norm_case.h"

namespace fuseboard::modulated_rms_norm {
namespace {

using rms_norm::kNoWeight;
using testing::ExpectClose;
using testing::KernelCall;

const FbKernel& Kernel() { return testing::OpenKernel("modulated_rms_norm"); }

class ModulatedRmsNormTest : public ::testing::TestWithParam<int> {
 protected:
  void Forward(const Case& c) const {
    SCOPED_TRACE(c.Name());
    const FbRmsNormParams params = c.norm.params();
    KernelCall call = ForwardCall(c, &params);
    testing::Run(Kernel(), GetParam(), &call);
    const rms_norm::Reference norm(c.norm, call.inputs[0], call.inputs[1]);
    const auto want = [&](int64_t row, int64_t col) {
      const int64_t group = c.GroupOf(row);
      return norm.Y(row, col) * (1.0 + call.inputs[2].At(group, col)) +
             call.inputs[3].At(group, col);
    };
    // The product and the shift may cancel.
    ExpectClose(call.outputs[0], want, 4.0, c.norm.x_dtype);
    ExpectClose(call.outputs[1], [&](int64_t, int64_t row) { return norm.Rstd(row); });
  }

  void Backward(const Case& c, const testing::Layout& dy_layout = {},
                const Wanted& wanted = {}) const {
    SCOPED_TRACE(c.Name());
    const FbRmsNormParams params = c.norm.params();
    KernelCall call = BackwardCall(c, &params, dy_layout, wanted);
    testing::Run(Kernel(), GetParam(), &call);
    const Gradients want = WantedGradients(c, call);
    const auto& [dx, dweight, dscale, dshift] =
        std::tie(call.outputs[0], call.outputs[1], call.outputs[2], call.outputs[3]);
    const auto rows_of = [](const Rows& rows) {
      return [&rows](int64_t row, int64_t col) { return rows[row][col]; };
    };
    const double group_rows =
        std::sqrt(static_cast<double>(c.norm.rows) / static_cast<double>(c.groups));
    if (!dx.absent()) ExpectClose(dx, rows_of(want.dx), 8.0);
    if (!dscale.absent()) {
      ExpectClose(dscale, rows_of(want.dscale), 4.0 * group_rows, c.norm.x_dtype);
    }
    if (!dshift.absent()) ExpectClose(dshift, rows_of(want.dshift), 4.0 * group_rows);
    if (dweight.absent()) return;
    ExpectClose(
        dweight, [&](int64_t, int64_t col) { return want.dweight[col]; },
        4.0 * std::sqrt(static_cast<double>(c.norm.rows)), c.norm.x_dtype);
  }
};

struct Shape {
  int64_t rows;
  int64_t hidden;
  int64_t groups;
};

// Every tensor of it bf16, the weight if there is one.
Case AllBf16(const Shape& shape, int32_t weight_dtype) {
  return {.norm = {.rows = shape.rows,
                   .hidden = shape.hidden,
                   .x_dtype = FB_BF16,
                   .weight_dtype = weight_dtype},
          .groups = shape.groups,
          .scale_dtype = FB_BF16,
          .shift_dtype = FB_BF16};
}

// No rows, one element; a row per row; one for all; a width that no vector divides; rows that share
// a block and do not fill it; slices of a group, the last one shorter; one block and several to a
// row.
constexpr Shape kShapes[] = {{0, 16, 2},    {1, 1, 1},    {6, 64, 6},    {5, 37, 1},
                             {6, 1000, 3},  {70, 128, 2}, {66, 4096, 6}, {2000, 64, 2},
                             {515, 256, 1}, {3, 16384, 3}};

TEST_P(ModulatedRmsNormTest, ForwardAgreesWithDouble) {
  for (const Shape& shape : kShapes) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA, FB_CASTING_NONE}) {
        Forward({.norm = {.rows = shape.rows,
                          .hidden = shape.hidden,
                          .x_dtype = dtype,
                          .weight_dtype = dtype,
                          .casting = casting,
                          .offset = casting == FB_CASTING_GEMMA ? 1.0 : 0.0},
                 .groups = shape.groups,
                 .scale_dtype = dtype,
                 .shift_dtype = dtype});
      }
    }
  }
}

// Slices of so many rows that, on a GPU of 132 multiprocessors, a block goes through them row by
// row.
TEST_P(ModulatedRmsNormTest, GradientsOfLongSlicesAgreeWithDouble) {
  if (GetParam() != FB_CUDA) GTEST_SKIP() << "16 million elements, for a grid of a GPU";
  // Rows of few packs and of more; slices of unlike lengths, which do not fill a block's last turn.
  for (const auto& [rows, hidden] : {std::pair<int64_t, int64_t>{16000, 1000}, {4402, 2056}}) {
    for (const int32_t weight : {kNoWeight, int32_t{FB_BF16}}) {
      Backward(AllBf16({rows, hidden, 2}, weight));
    }
  }
}

TEST_P(ModulatedRmsNormTest, GradientsAgreeWithDouble) {
  for (const Shape& shape : kShapes) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      Backward({.norm = {.rows = shape.rows,
                         .hidden = shape.hidden,
                         .x_dtype = dtype,
                         .weight_dtype = dtype,
                         .casting = FB_CASTING_GEMMA,
                         .offset = 1.0},
                .groups = shape.groups,
                .scale_dtype = dtype,
                .shift_dtype = dtype});
    }
  }
}

// Of one dtype few rows have kernels of their own on a GPU. A row to a group; one group, of a row
// and of as many as its lanes have not; groups that share a warp and those of several, not a power
// of two of them; more groups than lanes; one and two packs to a thread, to the widest in bf16; a
// tile that the last columns do not fill.
TEST_P(ModulatedRmsNormTest, FewRowsAndTheirGradientsAgreeWithDouble) {
  constexpr Shape kFew[] = {{64, 256, 64}, {1, 1032, 1},  {100, 264, 1},  {64, 4096, 16},
                            {33, 1000, 3}, {45, 2056, 9}, {130, 512, 65}, {7, 4104, 7},
                            {12, 8192, 2}, {250, 16, 125}};
  for (const Shape& shape : kFew) {
    for (const int32_t weight : {kNoWeight, int32_t{FB_BF16}}) {
      const Case c = AllBf16(shape, weight);
      Forward(c);
      Backward(c);
      Backward(c, {.row_stride = 0});
    }
  }
}

// More rows than the kernel for few has, or wider ones: two rows to a block, of which the last has
// one, in each of its widths; a row of scale per row.
TEST_P(ModulatedRmsNormTest, ForwardOfMoreRowsAgreesWithDouble) {
  constexpr Shape kMore[] = {{519, 1032, 173}, {519, 4104, 3}, {6, 8200, 2}, {514, 1032, 514}};
  for (const Shape& shape : kMore) {
    for (const int32_t weight : {kNoWeight, int32_t{FB_BF16}}) {
      Forward(AllBf16(shape, weight));
    }
  }
}

// The widths of f32, whose packs are of fewer columns.
TEST_P(ModulatedRmsNormTest, FewRowsOfF32AgreeWithDouble) {
  constexpr Shape kFew[] = {{24, 4096, 3}, {40, 36, 40}, {70, 2052, 1}, {18, 1024, 9}};
  for (const Shape& shape : kFew) {
    for (const int32_t shift_dtype : {FB_F32, FB_BF16}) {
      const Case c = {.norm = {.rows = shape.rows, .hidden = shape.hidden},
                      .groups = shape.groups,
                      .shift_dtype = shift_dtype};
      Forward(c);
      Backward(c);
    }
  }
}

// Another dtype of scale than of x is left to the kernels for many rows, of which few rows are
// enough here.
TEST_P(ModulatedRmsNormTest, GradientsOfUnlikeDTypesAgreeWithDouble) {
  for (const Shape& shape : kShapes) {
    Backward({.norm = {.rows = shape.rows,
                       .hidden = shape.hidden,
                       .x_dtype = FB_BF16,
                       .weight_dtype = FB_BF16},
              .groups = shape.groups,
              .scale_dtype = FB_F16,
              .shift_dtype = FB_BF16});
  }
}

// On an H200 7 clusters of 16 blocks, whose slices are one piece or two, to 66 of 2: examples of
// one cluster and of several, clusters with examples and parts of them; examples of so few rows
// that the other kernels take them. On a CPU a row is a row.
TEST_P(ModulatedRmsNormTest, WideRowsAgreeWithDouble) {
  const int64_t factor = GetParam() == FB_CUDA ? 9 : 1;
  for (const Shape& shape : {Shape{64 * factor, 8200, factor},
                             {3 * factor, 16392, 1},
                             {30 * factor, 16392, 6 * factor},
                             {6 * factor, 20488, 2 * factor},
                             {4 * factor, 20488, 4 * factor},
                             {7 * factor, 131064, factor},
                             {5 * factor, 140000, factor}}) {
    for (const int32_t weight : {kNoWeight, int32_t{FB_BF16}}) {
      const Case c = AllBf16(shape, weight);
      Forward(c);
      Backward(c);
    }
  }
  for (const int32_t dtype : {FB_F32, FB_F16}) {
    for (const int64_t hidden : {8200, 70000}) {
      const Case c = {.norm = {.rows = 4 * factor,
                               .hidden = hidden,
                               .x_dtype = dtype,
                               .weight_dtype = dtype,
                               .casting = FB_CASTING_GEMMA,
                               .offset = 1.0},
                      .groups = factor,
                      .scale_dtype = dtype,
                      .shift_dtype = dtype};
      Forward(c);
      Backward(c);
    }
  }
}

// On an H200 66 clusters, each of which has every 66th row.
TEST_P(ModulatedRmsNormTest, ManyWideRowsOfAnExampleAgreeWithDouble) {
  if (GetParam() != FB_CUDA) GTEST_SKIP() << "16 million elements, for a grid of a GPU";
  Forward(AllBf16({2000, 8200, 2}, FB_BF16));
}

TEST_P(ModulatedRmsNormTest, WideRowsMayLieApartAndEachGradientBeAlone) {
  for (const int64_t stride : {0, 16400, 16408, 16403}) {
    const Case c = {.norm = {.rows = 36,
                             .hidden = 16400,
                             .x_dtype = FB_BF16,
                             .weight_dtype = FB_BF16,
                             .x_layout = {.row_stride = 16400 + 24},
                             .y_layout = {.row_stride = 16400 + 8}},
                    .groups = 4,
                    .scale_dtype = FB_BF16,
                    .shift_dtype = FB_BF16,
                    .scale_layout = {.row_stride = stride}};
    Forward(c);
    Backward(c, {.row_stride = 0});
    Backward(c, {}, {.dx = true, .dweight = false, .dscale = false, .dshift = false});
    Backward(c, {}, {.dx = true, .dweight = true, .dscale = false, .dshift = false});
    Backward(c, {}, {.dx = true, .dweight = false, .dscale = true, .dshift = false});
    Backward(c, {}, {.dx = true, .dweight = false, .dscale = false, .dshift = true});
    Backward(c, {}, {.dx = false, .dweight = true, .dscale = true, .dshift = true});
  }
}

TEST_P(ModulatedRmsNormTest, AnyMixOfDTypesAndNoWeight) {
  for (const int32_t x : {FB_F32, FB_F16, FB_BF16}) {
    for (const int32_t weight : {kNoWeight, int32_t{FB_F32}, int32_t{FB_BF16}}) {
      for (const int32_t scale : {FB_F32, FB_F16, FB_BF16}) {
        const Case c = {.norm = {.rows = 12, .hidden = 96, .x_dtype = x, .weight_dtype = weight},
                        .groups = 4,
                        .scale_dtype = scale,
                        .shift_dtype = FB_BF16};
        Forward(c);
        Backward(c);
      }
    }
  }
}

TEST_P(ModulatedRmsNormTest, AnyStridesAndAlignments) {
  for (const int64_t hidden : {64, 200}) {
    for (const int64_t scale_stride : {int64_t{0}, hidden, hidden + 8, hidden + 3}) {
      const Case c = {.norm = {.rows = 8,
                               .hidden = hidden,
                               .x_dtype = FB_BF16,
                               .weight_dtype = FB_BF16,
                               .x_layout = {.row_stride = hidden + 24},
                               .y_layout = {.row_stride = hidden + 8}},
                      .groups = 4,
                      .scale_dtype = FB_BF16,
                      .shift_dtype = FB_BF16,
                      .scale_layout = {.row_stride = scale_stride}};
      Forward(c);
      Backward(c, {.row_stride = 0});
      Case unaligned = c;
      unaligned.norm.x_layout.offset = 1;
      unaligned.norm.y_layout.row_stride = hidden + 3;
      Forward(unaligned);
      Backward(unaligned);
    }
  }
}

TEST_P(ModulatedRmsNormTest, EachGradientAloneIsWhatItIsWithTheOthers) {
  for (const int64_t groups : {1, 3, 48}) {
    for (const int64_t hidden : {40, 64}) {
      const Case c = {.norm = {.rows = 48, .hidden = hidden}, .groups = groups};
      Backward(c, {}, {.dx = true, .dweight = false, .dscale = false, .dshift = false});
      Backward(c, {}, {.dx = false, .dweight = true, .dscale = false, .dshift = false});
      Backward(c, {}, {.dx = false, .dweight = false, .dscale = true, .dshift = false});
      Backward(c, {}, {.dx = false, .dweight = false, .dscale = false, .dshift = true});
      Backward(c, {}, {.dx = false, .dweight = true, .dscale = true, .dshift = false});
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(ModulatedRmsNormTest);

}  // namespace
}  // namespace fuseboard::modulated_rms_norm
