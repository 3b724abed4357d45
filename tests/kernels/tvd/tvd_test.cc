#include "kernels/abi/tvd.h"

#include <gtest/gtest.h>

#include "tests/kernels/common/row_loss_suite.h"

namespace fuseboard::tvd {
namespace {

using row_loss::Case;
using row_loss::Suite;
using row_loss::Terms;
using testing::KernelCall;
using testing::TestTensor;

Terms Distance(double x, double y) {
  const double sign = (x > y ? 0.5 : 0.0) - (x < y ? 0.5 : 0.0);
  return {0.5 * std::fabs(x - y), sign, 0.0, 0.0};
}

class TvdTest : public ::testing::TestWithParam<int> {
 protected:
  Suite Probabilities() const { return {{"tvd", &params_, {true, true}, Distance}, GetParam()}; }

 private:
  FbTvdParams params_ = {sizeof(FbTvdParams), row_loss::kIgnoredLabel};
};

TEST_P(TvdTest, BothPhasesAgreeWithDoubleOnAllDTypesAndShapes) {
  row_loss::ExpectAllShapes(Probabilities());
}

TEST_P(TvdTest, RowsMayLieAnywhere) { row_loss::ExpectAllLayouts(Probabilities()); }

TEST_P(TvdTest, IgnoredRowsAreZeroAndNotRead) { row_loss::ExpectLabelsToBeObeyed(Probabilities()); }

TEST_P(TvdTest, RowsAreCountedBeyondSixteenBits) { row_loss::ExpectManyRows(Probabilities()); }

TEST_P(TvdTest, EqualElementsHaveNeitherLossNorGradient) {
  const Suite suite = Probabilities();
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case c = {.rows = 2, .cols = 300, .dtype = dtype};
    KernelCall call = suite.ForwardCall(c);
    call.inputs[1] = call.inputs[0];
    call.outputs[0] = TestTensor(FB_F32, {2});
    call.outputs[2] = TestTensor(dtype, {2, 300});
    suite.Run(&call);
    testing::ExpectClose(
        call.outputs[0], [](auto, auto) { return 0.0; }, 0.0);
    testing::ExpectClose(
        call.outputs[2], [](auto, auto) { return 0.0; }, 0.0);
  }
}

FB_INSTANTIATE_PER_DEVICE(TvdTest);

}  // namespace
}  // namespace fuseboard::tvd
