// Times the ways to cut rope that rope_policy.h could choose, on device 0: Llama 3 8B's q and k
// (batch 4, 4,096 positions, 32 and 8 heads of 128, bf16), for heads inside positions (a
// projection's view) and outside (dense), half and interleaved, tables in bf16 and f32.
// Milliseconds and share of the copy rate measured in the same run, by least traffic. The tensors
// are three times the L2 cache of an H200. Its numbers go into the policy's comments.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/common/launch.cuh"
#include "kernels/rope/rope.cuh"
#include "kernels/rope/rope_packed.cuh"
#include "tests/kernels/tuning/bf16_bits.cuh"

namespace fuseboard::rope {
namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kPositions = 4096;
constexpr int64_t kQHeads = 32;
constexpr int64_t kKHeads = 8;
constexpr int64_t kDim = 128;
constexpr int kLanes = 8;
constexpr int64_t kQBytes = kBatch * kPositions * kQHeads * kDim * 2;
constexpr int64_t kKBytes = kBatch * kPositions * kKHeads * kDim * 2;
constexpr int kRepeats = 21;

void Check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(EXIT_FAILURE);
}

void* Allocate(int64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  Check(cudaMemset(memory, 0x3e, static_cast<size_t>(bytes)));
  return memory;
}

double MedianMs(const std::function<void()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 3; ++i) {
    Check(cudaEventRecord(begin));
    run();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0.0f;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

struct Bench {
  void* in[2] = {Allocate(kQBytes), Allocate(kKBytes)};
  void* out[2] = {Allocate(kQBytes), Allocate(kKBytes)};
  void* cos = Allocate(kPositions * kDim * 4);
  void* sin = Allocate(kPositions * kDim * 4);
  double copy_rate = 0;  // Bytes per millisecond.

  Bench() {
    const double ms =
        MedianMs([&] { Check(cudaMemcpyAsync(out[0], in[0], kQBytes, cudaMemcpyDeviceToDevice)); });
    copy_rate = 2.0 * static_cast<double>(kQBytes) / ms;
    for (int i = 0; i < 2; ++i) {
      tuning::FillBits(in[i], i == 0 ? kQBytes : kKBytes, 1 + i);
    }
    tuning::FillBits(cos, kPositions * kDim * 2, 3);
    tuning::FillBits(sin, kPositions * kDim * 2, 4);
    std::printf("copy %.3f TB/s\n", copy_rate / 1e9);
  }
};

struct Variant {
  bool tokens_inside;
  bool wide_tables;
  bool round_products;
};

Heads HeadsAt(void* base, int64_t count, bool tokens_inside) {
  if (tokens_inside) {
    return {base, count, count * kPositions * kDim, kPositions * kDim, kDim};
  }
  return {base, count, count * kPositions * kDim, kDim, count * kDim};
}

Call CallFor(const Bench& bench, const Variant& variant, bool interleaved) {
  Call call = {};
  const int64_t counts[] = {kQHeads, kKHeads};
  for (int i = 0; i < 2; ++i) {
    call.in[i] = HeadsAt(bench.in[i], counts[i], variant.tokens_inside);
    call.out[i] = HeadsAt(bench.out[i], counts[i], variant.tokens_inside);
  }
  call.dtype = FB_BF16;
  Rotation& r = call.rotation;
  r.cos = {bench.cos, 0, 0, kDim, 1};
  r.sin = {bench.sin, 0, 0, kDim, 1};
  r.batch = kBatch;
  r.positions = kPositions;
  r.dim = kDim;
  r.pairs = kDim / 2;
  r.section_end[0] = r.section_end[1] = r.pairs;
  r.table_dtype = variant.wide_tables ? FB_F32 : FB_BF16;
  r.interleaved = interleaved;
  r.round_products = variant.round_products;
  return call;
}

void Print(const Bench& bench, const Variant& variant, const char* form, const char* cut,
           double ms) {
  const double bytes = 2.0 * static_cast<double>(kQBytes + kKBytes);
  std::printf("%-11s %-16s tables %-4s %-5s %s  %.4f ms %5.1f %%\n", form,
              variant.tokens_inside ? "positions inside" : "heads inside",
              variant.wide_tables ? "f32" : "bf16", variant.round_products ? "round" : "", cut, ms,
              100 * bytes / bench.copy_rate / ms);
}

template <typename C>
std::string NameOf() {
  return "threads " + std::to_string(C::kThreads) + " unroll " + std::to_string(C::kUnroll) +
         " blocks/sm " + std::to_string(C::kBlocksPerSm);
}

template <bool kWithin, typename C>
void Time(const Bench& bench, const Variant& variant) {
  const Call call = CallFor(bench, variant, kWithin);
  Plan plan = {};
  plan.slots = SlotsOf(call.rotation, kLanes);
  plan.table_runs = HasTableRuns(call.rotation, kLanes);
  plan.tokens_inside = variant.tokens_inside;
  const Policy policy = SelectPolicy<C>(plan.slots, kQHeads + kKHeads, kPositions);
  plan.tiles = TilesOf(policy, kBatch, kPositions);
  plan.batch_tiles = ReciprocalOf(static_cast<uint32_t>(plan.tiles.per_batch));
  const int inner = plan.tokens_inside ? policy.token_lanes : policy.head_lanes;
  const int outer = plan.tokens_inside ? policy.head_lanes : policy.token_lanes;
  const LaunchShape shape = {.blocks = plan.tiles.count,
                             .threads = dim3(policy.slots, inner, outer)};
  const double ms = MedianMs(
      [&] { Check(LaunchKernel(RopeKernel<BFloat16, kLanes, kWithin, C>, shape, call, plan)); });
  Print(bench, variant, kWithin ? "interleaved" : "half", NameOf<C>().c_str(), ms);
}

template <typename C>
void TimePackedVariant(const Bench& bench, const Variant& variant) {
  const Call call = CallFor(bench, variant, false);
  PackedPlan plan;
  if (!CutPacked<C>(call.rotation, call.in, kLanes, &plan)) return;
  const LaunchShape shape = {.blocks = plan.side[0].blocks + plan.side[1].blocks,
                             .threads = dim3(C::kThreads)};
  const double ms =
      MedianMs([&] { Check(LaunchKernel(RopePackedKernel<BFloat16, C>, shape, call, plan)); });
  Print(bench, variant, "packed", NameOf<C>().c_str(), ms);
}

// Two floats at a time: where products are rounded.
template <typename C>
void TimePacked(const Bench& bench) {
  TimePackedVariant<C>(bench, {false, false, true});
  TimePackedVariant<C>(bench, {true, false, true});
}

// The bits are those of the kernel that works in floats.
void CheckPacked(const Bench& bench) {
  for (const bool tokens_inside : {false, true}) {
    Time<false, Cut<256, 4, 2>>(bench, {tokens_inside, false, true});
    void* expected = Allocate(kQBytes);
    Check(cudaMemcpy(expected, bench.out[0], kQBytes, cudaMemcpyDeviceToDevice));
    Check(cudaMemset(bench.out[0], 0xff, kQBytes));
    TimePackedVariant<Cut<256, 4, 4>>(bench, {tokens_inside, false, true});
    tuning::Difference().Print(bench.out[0], expected, kQBytes / 2, "q");
    Check(cudaFree(expected));
  }
}

template <typename C>
void TimeVariants(const Bench& bench) {
  for (const Variant& variant : {Variant{false, false, true},
                                 {false, false, false},
                                 {false, true, false},
                                 {true, false, true}}) {
    Time<false, C>(bench, variant);
    Time<true, C>(bench, variant);
  }
}

// The register limit of each: 64, 80 or 128 at `kResident` threads on a multiprocessor.
template <int kThreads, int kUnroll>
void TimeResidents(const Bench& bench) {
  TimeVariants<Cut<kThreads, kUnroll, 512 / kThreads>>(bench);
  TimeVariants<Cut<kThreads, kUnroll, 768 / kThreads>>(bench);
  TimeVariants<Cut<kThreads, kUnroll, 1024 / kThreads>>(bench);
}

template <int kThreads>
void TimeUnrolls(const Bench& bench) {
  TimeResidents<kThreads, 1>(bench);
  TimeResidents<kThreads, 2>(bench);
  TimeResidents<kThreads, 4>(bench);
  TimeResidents<kThreads, 5>(bench);
}

}  // namespace
}  // namespace fuseboard::rope

int main() {
  using fuseboard::rope::Cut;
  const fuseboard::rope::Bench bench;
  fuseboard::rope::CheckPacked(bench);
  fuseboard::rope::TimePacked<Cut<64, 4, 12>>(bench);
  fuseboard::rope::TimePacked<Cut<64, 5, 12>>(bench);
  fuseboard::rope::TimePacked<Cut<64, 5, 16>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 2, 12>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 4, 6>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 4, 8>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 5, 4>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 5, 6>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 5, 8>>(bench);
  fuseboard::rope::TimePacked<Cut<128, 10, 4>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 2, 6>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 3, 5>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 4, 3>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 4, 4>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 5, 2>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 5, 3>>(bench);
  fuseboard::rope::TimePacked<Cut<256, 5, 4>>(bench);
  fuseboard::rope::TimePacked<Cut<320, 4, 3>>(bench);
  fuseboard::rope::TimePacked<Cut<512, 5, 2>>(bench);
}
