// One rope problem: its calls with filled tensors, and what they should give, in double.

#ifndef TESTS_KERNELS_ROPE_ROPE_CASE_H_
#define TESTS_KERNELS_ROPE_ROPE_CASE_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/abi/rope.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::rope {

inline constexpr int64_t kNoHeads = -1;  // The tensor is absent.

// Where the heads of a tensor lie: the order of batch, heads and positions in memory, elements
// between neighbouring rows, and the distance of the first element from a 256-byte boundary.
struct HeadLayout {
  std::string order = "bsh";  // As a view of a projection's result; "bhs" is dense.
  int64_t pad = 0;
  int64_t offset = 0;
  std::string expanded = {};  // Dimensions with stride 0.
};

struct Case {
  int64_t batch = 2;
  int64_t heads = 3;    // Or kNoHeads.
  int64_t k_heads = 2;  // Or kNoHeads.
  int64_t positions = 5;
  int64_t dim = 16;
  int64_t rotary_dim = 16;
  int32_t dtype = FB_F32;
  int32_t table_dtype = FB_F32;
  int32_t interleaved = 0;
  int32_t round_products = 0;
  bool per_pair = false;
  int64_t table_batch = 1;
  int64_t table_step = 1;    // Stride of the tables' columns.
  int64_t table_offset = 0;  // 1: unaligned.
  std::vector<int64_t> sections = {};
  HeadLayout in = {};
  HeadLayout out = {};

  std::string Name() const {
    return "batch " + std::to_string(batch) + ", heads " + std::to_string(heads) + " and " +
           std::to_string(k_heads) + ", positions " + std::to_string(positions) + ", rotary " +
           std::to_string(rotary_dim) + " of " + std::to_string(dim) + ", dtypes " +
           std::to_string(dtype) + " and " + std::to_string(table_dtype) + ", interleaved " +
           std::to_string(interleaved) + ", round " + std::to_string(round_products) + ", order " +
           in.order + ", offset " + std::to_string(in.offset) + ", pad " + std::to_string(in.pad);
  }

  FbRopeParams params() const {
    FbRopeParams result = {};
    result.struct_size = sizeof(FbRopeParams);
    result.interleaved = interleaved;
    result.round_products = round_products;
    result.rotary_dim = rotary_dim;
    for (size_t i = 0; i < sections.size(); ++i) result.sections[i] = sections[i];
    return result;
  }

  testing::TestTensor HeadsOf(int64_t count, const HeadLayout& layout) const {
    if (count == kNoHeads) return {};
    const int64_t sizes[] = {batch, count, positions};
    std::vector<int64_t> strides = {0, 0, 0, 1};
    int64_t next = dim + layout.pad;
    for (size_t i = 3; i-- > 0;) {
      const size_t at = std::string("bhs").find(layout.order[i]);
      if (layout.expanded.find(layout.order[i]) != std::string::npos) continue;
      strides[at] = next;
      next *= sizes[at];
    }
    return {dtype, {batch, count, positions, dim}, {.offset = layout.offset, .strides = strides}};
  }

  testing::TestTensor Table(uint32_t seed) const {
    const int64_t streams = sections.empty() ? 1 : 3;
    const int64_t width = per_pair ? rotary_dim / 2 : rotary_dim;
    const int64_t row = width * table_step;
    testing::TestTensor table(
        table_dtype, {streams, table_batch, positions, width},
        {.offset = table_offset,
         .strides = {row * positions * table_batch, row * positions, row, table_step}});
    return table.FillNormal(seed);
  }
};

inline testing::KernelCall CallOf(const Case& c, FbPhase phase, const FbRopeParams* params) {
  testing::KernelCall call = {
      phase,
      {c.HeadsOf(c.heads, c.in), c.HeadsOf(c.k_heads, c.in), c.Table(3), c.Table(4)},
      {c.HeadsOf(c.heads, c.out), c.HeadsOf(c.k_heads, c.out)},
      params};
  for (const uint32_t i : {0, 1}) {
    if (!call.inputs[i].absent()) call.inputs[i].FillNormal(i + 1);
  }
  return call;
}

// What a call makes of its input 0 or 1.
class Reference {
 public:
  Reference(const Case& c, const testing::KernelCall& call) : case_(c), call_(call) {}

  double operator()(int input, int64_t row, int64_t element) const {
    const testing::TestTensor& x = call_.inputs[input];
    const double self = x.At(row, element);
    if (element >= case_.rotary_dim) return self;
    const int64_t pairs = case_.rotary_dim / 2;
    const bool first = case_.interleaved != 0 ? element % 2 == 0 : element < pairs;
    const int64_t step = case_.interleaved != 0 ? 1 : pairs;
    const int64_t other = first ? element + step : element - step;
    const int64_t position = row % case_.positions;
    const int64_t batch = row / case_.positions / x.shape()[1];
    const bool inverse = call_.phase == FB_BACKWARD;
    const double cosine = Factor(2, batch, position, element);
    const double sine = Factor(3, batch, position, inverse ? other : element);
    const double turned = Round(x.At(row, other) * sine);
    return Round(self * cosine) + (first == inverse ? turned : -turned);
  }

 private:
  double Round(double value) const {
    const bool round = case_.round_products != 0 && case_.table_dtype == case_.dtype;
    return round ? testing::RoundToDType(case_.dtype, value) : value;
  }

  double Factor(int input, int64_t batch, int64_t position, int64_t element) const {
    const int64_t pairs = case_.rotary_dim / 2;
    const int64_t pair = case_.interleaved != 0 ? element / 2 : element % pairs;
    int64_t stream = 0;
    if (!case_.sections.empty()) {
      stream += pair >= case_.sections[0] ? 1 : 0;
      stream += pair >= case_.sections[0] + case_.sections[1] ? 1 : 0;
    }
    const int64_t table_batch = case_.table_batch == 1 ? 0 : batch;
    const int64_t row = (stream * case_.table_batch + table_batch) * case_.positions + position;
    return call_.inputs[input].At(row, case_.per_pair ? pair : element);
  }

  const Case& case_;
  const testing::KernelCall& call_;
};

}  // namespace fuseboard::rope

#endif  // TESTS_KERNELS_ROPE_ROPE_CASE_H_
