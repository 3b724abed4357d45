// Compares rms_norm, fused_add_rms_norm and layer_norm of bf16 rows that begin anywhere with f64 on
// device 0, their results of two runs with one another, and times them as shares of the copy rate
// of the same run.
//
//   unaligned_norm_tune [check|time ...]

#include <cstdlib>
#include <cstring>

#include "kernels/abi/layer_norm.h"
#include "kernels/abi/rms_norm.h"
#include "kernels/fused_add_rms_norm/fused_add_rms_norm_cuda.h"
#include "kernels/layer_norm/layer_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int64_t kElements = int64_t{1} << 26;
constexpr int64_t kSmallBytes = int64_t{64} << 20;

struct Bench {
  tuning::Rotating x{kBytes}, other{kBytes}, dy{kBytes}, out{kBytes}, sum{kBytes};
  tuning::Rotating weight{kSmallBytes}, bias{kSmallBytes}, dweight{kSmallBytes}, dbias{kSmallBytes};
  tuning::Rotating mean{kSmallBytes}, rstd{kSmallBytes}, workspace{int64_t{1} << 28};
  double copy_rate = tuning::CopyRate(out, x, kBytes);
};

enum class Operation { kRms, kAdd, kLayer };
constexpr const char* kNames[] = {"rms_norm", "fused_add_rms_norm", "layer_norm"};

struct Problem {
  Operation operation;
  bool forward;
  int64_t rows;
  int64_t hidden;
  int64_t offset;         // Of the matrices, in elements.
  int64_t weight_offset;  // Of weight and bias.
  bool looping = false;   // By the kernels that take rows element by element; not kAdd.
};

BFloat16* Of(const tuning::Rotating& r, int64_t offset = 0) {
  return reinterpret_cast<BFloat16*>(r.base()) + offset;
}

FbTensor Vector(void* base, int64_t size, int32_t dtype) {
  return {base, {size}, {1}, 1, dtype, FB_CUDA, 0};
}

int Run(const Bench& b, const Problem& p, int turn) {
  static constexpr FbRmsNormParams kRms = {sizeof(kRms), FB_CASTING_NONE, 1e-5, 0.0};
  static constexpr FbLayerNormParams kLayer = {sizeof(kLayer), 1e-5};
  const auto matrix = [&](const tuning::Rotating& of) {
    FbTensor t = of.Matrix(p.rows, p.hidden, FB_BF16, turn);
    t.data = static_cast<BFloat16*>(t.data) + p.offset;
    return t;
  };
  const auto vector = [&](const tuning::Rotating& of) {
    return Vector(Of(of, p.weight_offset), p.hidden, FB_BF16);
  };
  const FbTensor x = matrix(b.x), other = matrix(b.other), dy = matrix(b.dy), out = matrix(b.out);
  const FbTensor sum = matrix(b.sum), weight = vector(b.weight), bias = vector(b.bias);
  const FbTensor dweight = vector(b.dweight), dbias = vector(b.dbias);
  const FbTensor mean = Vector(b.mean.base(), p.rows, FB_F32);
  const FbTensor rstd = Vector(b.rstd.base(), p.rows, FB_F32);
  static const FbCall kCall = tuning::NewCall();
  FbCall call = kCall;
  const auto run = [&](const FbTensor* in, const FbTensor* to, const void* params, auto* launch) {
    call.inputs = in, call.outputs = to, call.params = params;
    if (!p.looping) return launch(&call, b.workspace.base());
    const rms_norm::Policy policy = rms_norm::SelectLooping(p.hidden);
    if (p.operation == Operation::kRms) {
      return p.forward ? rms_norm::LaunchForward(call, policy)
                       : rms_norm::LaunchBackward(call, policy, b.workspace.base());
    }
    return p.forward ? layer_norm::LaunchForward(call, policy)
                     : layer_norm::LaunchBackward(call, policy, b.workspace.base());
  };
  if (p.operation == Operation::kRms) {
    if (p.forward) {
      const FbTensor in[] = {x, weight}, to[] = {out, rstd};
      return run(in, to, &kRms, rms_norm::ForwardCuda);
    }
    const FbTensor in[] = {dy, x, weight, rstd}, to[] = {out, dweight};
    return run(in, to, &kRms, rms_norm::BackwardCuda);
  }
  if (p.operation == Operation::kAdd) {
    if (p.forward) {
      const FbTensor in[] = {x, other, weight}, to[] = {out, sum, rstd};
      return run(in, to, &kRms, fused_add_rms_norm::ForwardCuda);
    }
    const FbTensor in[] = {dy, other, x, weight, rstd}, to[] = {out, dweight};
    return run(in, to, &kRms, fused_add_rms_norm::BackwardCuda);
  }
  if (p.forward) {
    const FbTensor in[] = {x, weight, bias}, to[] = {out, mean, rstd};
    return run(in, to, &kLayer, layer_norm::ForwardCuda);
  }
  const FbTensor in[] = {dy, x, weight, mean, rstd}, to[] = {out, dweight, dbias};
  return run(in, to, &kLayer, layer_norm::BackwardCuda);
}

// What is around the tensors: NaN.
void Fill(const Bench& b, const Problem& p) {
  const int64_t count = p.rows * p.hidden;
  const auto fill = [](const tuning::Rotating& of, int64_t offset, int64_t n, float mean, float d,
                       uint32_t seed) {
    tuning::Check(cudaMemset(of.base(), 0xff, static_cast<size_t>(n + 64) * 2));
    tuning::FillBf16(Of(of, offset), n, mean, d, seed);
  };
  fill(b.x, p.offset, count, p.operation == Operation::kLayer ? 0.5f : 0.0f, 1.0f, 1);
  fill(b.other, p.offset, count, 0.0f, 1.0f, 2);
  fill(b.dy, p.offset, count, 0.0f, 1.0f, 3);
  fill(b.weight, p.weight_offset, p.hidden, 1.0f, 0.2f, 4);
  fill(b.bias, p.weight_offset, p.hidden, 0.0f, 0.2f, 5);
}

void CheckOne(const Bench& b, const Problem& p) {
  Fill(b, p);
  tuning::NormProblem problem = {};
  problem.x = Of(b.x, p.offset), problem.residual = Of(b.other, p.offset);
  problem.dy = Of(b.dy, p.offset), problem.weight = Of(b.weight, p.weight_offset);
  problem.bias = Of(b.bias, p.weight_offset);
  problem.rows = p.rows, problem.hidden = p.hidden;
  problem.center = p.operation == Operation::kLayer, problem.add = p.operation == Operation::kAdd;
  problem.forward = p.forward;
  const tuning::NormReference reference(problem, reinterpret_cast<float*>(b.mean.base()),
                                        reinterpret_cast<float*>(b.rstd.base()));
  const tuning::Rotating* outputs[] = {&b.out, &b.sum, &b.dweight, &b.dbias};
  const int64_t count = p.rows * p.hidden;
  uint64_t bits[2] = {};
  for (uint64_t& of_run : bits) {
    for (const auto* of : outputs) {
      const int64_t bytes = (of == &b.dweight || of == &b.dbias ? p.hidden : count) * 2 + 256;
      tuning::Check(cudaMemset(of->base(), 0xff, static_cast<size_t>(bytes)));
    }
    tuning::Check(Run(b, p, 0));
    tuning::Check(cudaDeviceSynchronize());
    for (const auto* of : outputs) {
      const int64_t bytes = (of == &b.dweight || of == &b.dbias ? p.hidden : count) * 2 + 256;
      of_run = of_run * 31 + tuning::BitsOf(of->base(), bytes);
    }
  }
  const double apart =
      reference.Apart({Of(b.out, p.offset), Of(b.sum, p.offset), Of(b.dweight, p.weight_offset),
                       Of(b.dbias, p.weight_offset)});
  // Nothing before or after the result is written.
  int written = 0;
  for (const int64_t at : {p.offset - 1, p.offset + count}) {
    uint16_t around = 0xffff;
    if (at >= 0) tuning::Check(cudaMemcpy(&around, Of(b.out, at), 2, cudaMemcpyDeviceToHost));
    written += around != 0xffff;
  }
  const bool ok = apart < 0.006 && bits[0] == bits[1] && written == 0;
  static int shown = 0;
  if (ok && ++shown % 16 != 0) return;
  std::printf("%s %s %s %lld x %lld from %lld, weight from %lld: %.4f%s%s\n", ok ? "ok  " : "FAIL",
              kNames[static_cast<int>(p.operation)], p.forward ? "forward" : "backward",
              static_cast<long long>(p.rows), static_cast<long long>(p.hidden),
              static_cast<long long>(p.offset), static_cast<long long>(p.weight_offset), apart,
              bits[0] == bits[1] ? "" : " two runs differ", written == 0 ? "" : " written beyond");
}

void CheckAll(const Bench& b) {
  for (const auto operation : {Operation::kRms, Operation::kAdd, Operation::kLayer}) {
    for (const bool forward : {true, false}) {
      for (const int64_t hidden :
           {1, 7, 12, 33, 40, 100, 257, 517, 1027, 2882, 4097, 5121, 9001, 16383, 20001, 40001}) {
        const int64_t many = hidden < 300 ? 3001 : hidden < 6000 ? 450 : 300;
        for (const int64_t rows : {int64_t{3}, many}) {
          CheckOne(b, {operation, forward, rows, hidden, hidden % 5, hidden % 3});
        }
      }
    }
  }
  std::printf("checked\n");
}

void TimeAll(const Bench& b) {
  for (const auto operation : {Operation::kRms, Operation::kAdd, Operation::kLayer}) {
    for (const bool forward : {true, false}) {
      for (const int64_t hidden :
           {33, 65, 129, 257, 513, 1025, 2049, 2880, 2881, 3584, 4096, 4097, 4098, 5120, 8193}) {
        Problem p = {operation, forward, hidden < 2880 ? kElements / hidden : 16384, hidden, 0, 0};
        const double us = tuning::MedianUs([&](int turn) { return Run(b, p, turn); }, 20);
        const int tensors = operation == Operation::kAdd ? 4 : forward ? 2 : 3;
        const auto bytes = static_cast<double>(p.rows * hidden * 2 * tensors);
        std::printf("%-18s %-8s H %5lld %8.1f us %5.1f %%", kNames[static_cast<int>(operation)],
                    forward ? "forward" : "backward", static_cast<long long>(hidden), us,
                    100.0 * bytes / us / b.copy_rate);
        p.looping = true;
        if (hidden % 2 == 1 && operation != Operation::kAdd) {
          std::printf("  looping %8.1f us",
                      tuning::MedianUs([&](int turn) { return Run(b, p, turn); }, 5));
        }
        std::printf("\n");
      }
    }
  }
}

int Main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    return argc < 2 || std::any_of(argv + 1, argv + argc,
                                   [&](const char* arg) { return std::strcmp(arg, what) == 0; });
  };
  const Bench b;
  tuning::Check(rms_norm::LoadForwardKernels() + rms_norm::LoadBackwardKernels());
  tuning::Check(fused_add_rms_norm::LoadForwardKernels() +
                fused_add_rms_norm::LoadBackwardKernels());
  tuning::Check(layer_norm::LoadForwardKernels() + layer_norm::LoadBackwardKernels());
  if (wants("check")) CheckAll(b);
  for (const auto* of : {&b.x, &b.other, &b.dy, &b.weight, &b.bias}) of->FillBf16(0.0f);
  if (wants("time")) TimeAll(b);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
