// jsd: the generalised Jensen-Shannon divergence of log-probabilities, element by element, and its
// sum over each row.
//
//   P = exp(target), Q = exp(input), M = beta P + (1 - beta) Q
//   0 < beta < 1   loss = beta P (target - log M) + (1 - beta) Q (input - log M)
//                  d loss / d input = (1 - beta) Q (input - log M)
//   beta = 0       loss = P (target - input), KL(P || Q);   d loss / d input = -P
//   beta = 1       loss = Q (input - target), KL(Q || P);   d loss / d input = Q (input - target +
//   1)
// The ends are not the limits of what is between them, which are 0, but of that over beta and over
// 1 - beta. A probability of 0 (a logarithm of -inf, or an exponential that underflows) adds 0 to
// loss and gradient wherever its own factor is 0; so it is infinite only at the ends, where the
// divergence is. Two equal elements have a loss of exactly 0.
//
// Forward   inputs  0 input [rows, cols]: log-probabilities of the model that is trained;
//                   1 target [rows, cols]: log-probabilities; 2 scale; 3 label
//           outputs 0 loss; 1 losses; 2 dinput
// Backward  inputs  0 dloss; 1 input; 2 target; 3 label
//           outputs 0 dinput
// and all else about the tensors as in kernels/abi/kl_div.h.
//
// Forward from logits, which a forward with two outputs is: the loss of x = log_softmax(input /
// temperature) and y = log_softmax(target / temperature), and its gradient by the logits.
//           inputs  0 input [rows, cols]: logits; 1 target [rows, cols]: logits; 2 scale; 3 label
//           outputs 0 loss
//                   1 dinput: scale_r * d loss_r / d logits_r, dtype of input, optional; in the
//                   memory of input (in place), or in none of it
// A row of logits with NaN or +inf in it, or of -inf alone, has a loss and a gradient of NaN;
// elsewhere a logit of -inf is a probability of 0.

#ifndef KERNELS_ABI_JSD_H_
#define KERNELS_ABI_JSD_H_

#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  double beta;           // In [0, 1]: the weight of target in the mixture.
  int64_t ignore_index;  // Read only if there is a label.
  double temperature;    // More than 0. Looked at only by a forward from logits.
} FbJsdParams;

#endif  // KERNELS_ABI_JSD_H_
