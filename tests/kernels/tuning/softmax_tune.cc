// Times the ways to cut rows that softmax_policy.h could choose, on device 0, as a table: share of
// the copy rate measured in the same run, by least traffic (docs/kernels/softmax.md). Its numbers
// go into the policy's comments.

#include <algorithm>

#include "kernels/softmax/softmax_cuda.h"
#include "kernels/softmax/softmax_policy.h"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::softmax {
namespace {

constexpr int64_t kBytes = int64_t{512}
                           << 20;  // Of each tensor: ten times the L2 cache of an H200.

struct Bench {
  tuning::Rotating x{kBytes, 0x3c};
  tuning::Rotating dy{kBytes};
  tuning::Rotating y{kBytes};
  tuning::Rotating dx{kBytes};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

struct Problem {
  FbPhase phase;
  int64_t rows;
  int64_t cols;
  int32_t dtype;
};

double TimeUs(const Bench& bench, const Problem& p, const Policy& policy) {
  return tuning::MedianUs([&](int turn) {
    FbCall call = bench.call;
    const FbTensor x = bench.x.Matrix(p.rows, p.cols, p.dtype, turn);
    const FbTensor inputs[] = {
        p.phase == FB_FORWARD ? x : bench.dy.Matrix(p.rows, p.cols, p.dtype, turn), x};
    const FbTensor output = bench.y.Matrix(p.rows, p.cols, p.dtype, turn);
    call.inputs = inputs;
    call.outputs = &output;
    call.num_inputs = p.phase == FB_FORWARD ? 1 : 2;
    call.num_outputs = 1;
    return p.phase == FB_FORWARD ? LaunchForward(call, policy) : LaunchBackward(call, policy);
  });
}

void Print(const Bench& bench, const Problem& p, const Policy& policy, bool chosen) {
  const double us = TimeUs(bench, p, policy);
  if (us == 0.0) return;
  const int64_t element_bytes = p.dtype == FB_F32 ? 4 : 2;
  const int64_t bytes = p.rows * p.cols * element_bytes * (p.phase == FB_FORWARD ? 2 : 3);
  std::printf(
      "%-8s %-4s %7lld x %-7lld packs %d threads %4d rows %2d cluster %d  %8.1f us %5.1f %%%s\n",
      p.phase == FB_FORWARD ? "forward" : "backward", p.dtype == FB_F32 ? "f32" : "bf16",
      static_cast<long long>(p.rows), static_cast<long long>(p.cols), policy.packs,
      policy.threads_per_row, policy.rows_per_block, policy.cluster, us,
      100.0 * static_cast<double>(bytes) / us / bench.copy_rate, chosen ? "  <- policy" : "");
}

void Tune(const Bench& bench, const Problem& p) {
  const bool forward = p.phase == FB_FORWARD;
  const RowShape row = {.packs = p.cols * (p.dtype == FB_F32 ? 4 : 2) / 16, .has_edges = false};
  const int sm = bench.call.sm;
  const Policy chosen = forward ? SelectForward(sm, row) : SelectBackward(sm, row);
  std::vector<Policy> seen = {chosen};
  Print(bench, p, chosen.packs == 0 ? SelectLooping(p.cols) : chosen, true);
  for (const int packs : {1, 2, 4, 8}) {
    for (const int threads : {32, 64, 128, 256, 512, 1024}) {
      for (const int block : {32, 128, 256}) {
        Policy policy =
            FitRow(row, {packs, threads, row.packs > 512 ? MaxClusterOf(sm) : 1, block});
        policy.shared_dy = !forward && packs == 8;
        const int block_threads = policy.threads_per_row * policy.rows_per_block;
        bool fits = policy.packs != 0 && block_threads <= (forward && packs < 8 ? 512 : 1024);
        // What there are no kernels for.
        if (policy.shared_dy && policy.rows_per_block > 1) fits = false;
        if (policy.cluster > 1 && packs < (forward ? 8 : 4)) fits = false;
        if (!fits || std::ranges::find(seen, policy) != seen.end()) continue;
        seen.push_back(policy);
        Print(bench, p, policy, false);
      }
    }
  }
}

// A forward and the backward that follows it, which finds in the L2 cache what the forward wrote
// last; of one dy, as a benchmark has it.
void PrintBoth(const Bench& bench, int64_t rows, int64_t cols) {
  const double us = tuning::MedianUs([&](int turn) {
    const FbTensor x = bench.x.Matrix(rows, cols, FB_BF16, turn);
    const FbTensor y = bench.y.Matrix(rows, cols, FB_BF16, turn);
    const FbTensor backward_inputs[] = {bench.dy.Matrix(rows, cols, FB_BF16, 0), y};
    const FbTensor dx = bench.dx.Matrix(rows, cols, FB_BF16, turn);
    FbCall call = bench.call;
    call.inputs = &x;
    call.outputs = &y;
    call.num_inputs = call.num_outputs = 1;
    const int error = ForwardCuda(&call, nullptr);
    call.inputs = backward_inputs;
    call.outputs = &dx;
    call.num_inputs = 2;
    return error != 0 ? error : BackwardCuda(&call, nullptr);
  });
  const auto bytes = static_cast<double>(rows * cols * 10);
  std::printf("both     bf16 %7lld x %-7lld %8.1f us %5.1f %%\n", static_cast<long long>(rows),
              static_cast<long long>(cols), us, 100.0 * bytes / us / bench.copy_rate);
}

void TuneAll() {
  const Bench bench;
  for (const int64_t cols : {2048, 4096, 8192, 16384}) PrintBoth(bench, (1 << 25) / cols, cols);
  for (const int64_t cols : {32768, 131072}) PrintBoth(bench, (1 << 26) / cols, cols);
  PrintBoth(bench, 2048, 50257);
  PrintBoth(bench, 64, 4096);
  constexpr int64_t kElements = int64_t{1} << 26;
  for (const int32_t dtype : {FB_BF16, FB_F32}) {
    for (const int64_t cols :
         {64, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 128256, 262144}) {
      for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
        Tune(bench, {phase, kElements / cols, cols, dtype});
      }
    }
  }
}

}  // namespace
}  // namespace fuseboard::softmax

int main() { fuseboard::softmax::TuneAll(); }
