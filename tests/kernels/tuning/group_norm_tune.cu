// Times the ways to cut groups that group_norm_policy.h could choose, on device 0, as a table:
// share of the copy rate measured in the same run, by least traffic (docs/kernels/group_norm.md).
// Its numbers go into the policy's comments.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/abi/group_norm.h"
#include "kernels/group_norm/group_norm_cuda.h"
#include "kernels/group_norm/group_norm_policy.h"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::group_norm {
namespace {

constexpr int64_t kBytes = int64_t{512}
                           << 20;  // Of each tensor: ten times the L2 cache of an H200.
constexpr int64_t kSmallBytes = int64_t{64} << 20;

struct Bench {
  tuning::Rotating x{kBytes, 0x3c};
  tuning::Rotating dy{kBytes, 0x3c};
  tuning::Rotating out{kBytes};
  tuning::Rotating parameters{kSmallBytes, 0x3c};
  tuning::Rotating statistics{kSmallBytes, 0x3c};
  tuning::Rotating gradients{kSmallBytes};
  tuning::Rotating workspace{kBytes};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(out, x, kBytes);
};

struct Problem {
  FbPhase phase;
  int64_t examples;
  int64_t channels;
  int64_t side;
  int64_t groups;
  int32_t dtype;

  int64_t elements() const { return side * side; }
  int64_t group_packs() const {
    return channels / groups * elements() * (dtype == FB_F32 ? 4 : 2) / 16;
  }
  // Whether blocks may hold groups.
  bool is_whole() const { return elements() % (dtype == FB_F32 ? 4 : 8) == 0; }
};

// The tensors of one turn.
struct Tensors {
  FbTensor inputs[5];
  FbTensor outputs[3];
  FbGroupNormParams params;

  Tensors(const Bench& bench, const Problem& p, int turn) {
    const auto image = [&](const tuning::Rotating& memory) {
      FbTensor tensor = memory.Matrix(p.examples * p.channels, p.elements(), p.dtype, turn);
      tensor.ndim = 3;
      tensor.shape[0] = p.examples;
      tensor.shape[1] = p.channels;
      tensor.shape[2] = p.elements();
      tensor.stride[0] = p.channels * p.elements();
      tensor.stride[1] = p.elements();
      tensor.stride[2] = 1;
      return tensor;
    };
    const auto vector = [](const tuning::Rotating& memory, int64_t size, int64_t at,
                           int32_t dtype) {
      return FbTensor{memory.base() + at * kSmallBytes / 2, {size}, {1}, 1, dtype, FB_CUDA, 0};
    };
    const bool forward = p.phase == FB_FORWARD;
    const int64_t all_groups = p.examples * p.groups;
    const FbTensor statistics[] = {vector(bench.statistics, all_groups, 0, FB_F32),
                                   vector(bench.statistics, all_groups, 1, FB_F32)};
    const auto parameter = [&](const tuning::Rotating& memory, int64_t at) {
      return vector(memory, p.channels, at, p.dtype);
    };
    params = {sizeof(FbGroupNormParams), p.groups, 1e-5};
    if (forward) {
      inputs[0] = image(bench.x);
      inputs[1] = parameter(bench.parameters, 0);
      inputs[2] = parameter(bench.parameters, 1);
      outputs[1] = statistics[0];
      outputs[2] = statistics[1];
    } else {
      inputs[0] = image(bench.dy);
      inputs[1] = image(bench.x);
      inputs[2] = parameter(bench.parameters, 0);
      inputs[3] = statistics[0];
      inputs[4] = statistics[1];
      outputs[1] = parameter(bench.gradients, 0);
      outputs[2] = parameter(bench.gradients, 1);
    }
    outputs[0] = image(bench.out);
  }
};

// With packs == 0 as the library would launch it.
double TimeUs(const Bench& bench, const Problem& p, const Policy& policy) {
  return tuning::MedianUs([&](int turn) -> int {
    const Tensors tensors(bench, p, turn);
    FbCall call = bench.call;
    call.inputs = tensors.inputs;
    call.outputs = tensors.outputs;
    call.num_inputs = p.phase == FB_FORWARD ? 3 : 5;
    call.num_outputs = 3;
    call.params = &tensors.params;
    const bool forward = p.phase == FB_FORWARD;
    void* const workspace = bench.workspace.base();
    if (policy.packs == 0) {
      return forward ? ForwardCuda(&call, workspace) : BackwardCuda(&call, workspace);
    }
    return forward ? LaunchForward(call, policy) : LaunchBackward(call, policy, workspace);
  });
}

void Print(const Bench& bench, const Problem& p, const Policy& policy, bool chosen) {
  const double us = TimeUs(bench, p, policy);
  if (us == 0.0) return;
  const bool forward = p.phase == FB_FORWARD;
  const double bytes = static_cast<double>(p.examples * p.channels * p.elements()) *
                       (p.dtype == FB_F32 ? 4 : 2) * (forward ? 2 : 3);
  std::printf(
      "%-8s %-4s %5lld x %4lld x %4lld^2 groups %4lld  packs %d threads %4d groups %2d cluster %d  "
      "%8.1f us %5.1f %%%s\n",
      forward ? "forward" : "backward", p.dtype == FB_F32 ? "f32" : "bf16",
      static_cast<long long>(p.examples), static_cast<long long>(p.channels),
      static_cast<long long>(p.side), static_cast<long long>(p.groups), policy.packs,
      policy.threads, policy.groups_per_block, policy.cluster, us,
      100.0 * bytes / us / bench.copy_rate, chosen ? "  <- policy" : "");
}

void Tune(const Bench& bench, const Problem& p) {
  const bool forward = p.phase == FB_FORWARD;
  const int sm = bench.call.sm;
  const int64_t packs_of_group = p.group_packs();
  const Policy chosen = !p.is_whole() ? Policy{}
                        : forward     ? SelectForward(sm, packs_of_group)
                                      : SelectBackward(sm, packs_of_group);
  Print(bench, p, chosen, true);
  if (!p.is_whole()) return;
  std::vector<Policy> seen = {chosen};
  for (const int packs : forward ? std::vector{4, 8} : std::vector{2, 4}) {
    for (const int threads : {32, 64, 128, 256, 384, 512, 1024}) {
      const Policy policy =
          FitGroup(packs_of_group, packs, threads, threads >= 64 ? MaxClusterOf(sm) : 1);
      const bool fits = policy.packs != 0 && policy.threads <= (packs == 4 && forward ? 512 : 1024);
      if (!fits || std::ranges::find(seen, policy) != seen.end()) continue;
      seen.push_back(policy);
      Print(bench, p, policy, false);
    }
  }
}

struct Image {
  int64_t examples;
  int64_t channels;
  int64_t side;
  int64_t groups;
};

void TuneAll() {
  const Bench bench;
  // The peers' shape; the blocks of image models; one channel per group; sides that no pack
  // divides; groups beyond a cluster.
  constexpr Image kImages[] = {{32, 512, 64, 32},   {16, 320, 64, 32},  {32, 640, 32, 32},
                               {64, 1280, 16, 32},  {256, 1280, 8, 32}, {64, 64, 64, 64},
                               {32, 512, 56, 32},   {128, 512, 28, 32}, {512, 512, 14, 32},
                               {1024, 1024, 7, 32}, {4, 128, 256, 32},  {1, 128, 512, 32},
                               {1, 64, 1024, 8}};
  for (const int32_t dtype : {FB_BF16, FB_F32}) {
    for (const Image& image : kImages) {
      for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
        Tune(bench, {phase, image.examples, image.channels, image.side, image.groups, dtype});
      }
    }
  }
}

}  // namespace
}  // namespace fuseboard::group_norm

int main() { fuseboard::group_norm::TuneAll(); }
