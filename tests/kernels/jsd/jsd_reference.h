// jsd of an element in double.

#ifndef TESTS_KERNELS_JSD_JSD_REFERENCE_H_
#define TESTS_KERNELS_JSD_JSD_REFERENCE_H_

#include <algorithm>
#include <cmath>

#include "tests/kernels/common/row_loss_suite.h"

namespace fuseboard::jsd {

// 0 where f32 has none.
inline double Probability(double logarithm) {
  const double p = std::exp(logarithm);
  return p < 0x1p-150 ? 0.0 : p;
}

// p * difference, 0 where p is.
inline double Term(double p, double difference) { return p == 0.0 ? 0.0 : p * difference; }

inline row_loss::Terms Reference(double beta, double x, double y) {
  const double p = Probability(y);
  const double q = Probability(x);
  if (beta == 0.0) {
    return {Term(p, y - x), -p, Term(p, std::fabs(y) + std::fabs(x)), 0.0};
  }
  if (beta == 1.0) {
    const double size = Term(q, std::fabs(y) + std::fabs(x));
    return {Term(q, x - y), Term(q, x - y) + q, size, size + q};
  }
  // By the larger of the two, as both probabilities may underflow in their mixture.
  const double top = std::max(x, y);
  const double m =
      std::isinf(top) ? top
                      : top + std::log(beta * std::exp(y - top) + (1.0 - beta) * std::exp(x - top));
  const double of_target = Term(beta * p, y - m);
  const double of_input = Term((1.0 - beta) * q, x - m);
  // The logarithm of the mixture over the larger one is rounded in steps of 6e-8, and so is its
  // distance to the gap, which it nearly equals where beta leaves only the smaller one.
  const double gap = std::isfinite(x - y) ? std::fabs(x - y) : 0.0;
  const double gradient_size = q * (0.05 + 0.02 * gap);
  return {of_target + of_input, of_input,
          std::fabs(of_target) + std::fabs(of_input) + 0.05 * p + gradient_size, gradient_size};
}

}  // namespace fuseboard::jsd

#endif  // TESTS_KERNELS_JSD_JSD_REFERENCE_H_
