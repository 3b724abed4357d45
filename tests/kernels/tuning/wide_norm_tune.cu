// Times the kernels for wide rows (kernels/rms_norm/wide_*.cuh) and layer_norm's kernel for a row
// to a block, in bf16 on device 0, over the ways to cut a row, as shares of the copy rate of the
// same run; and compares what they compute with sums in f64. Its numbers go into the policies'
// comments.
//
//   wide_norm_tune [plain|brief] [check|layer|modulated|narrow|forward|backward ...]

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/common/dispatch.h"
#include "kernels/common/sum_partials.cuh"
#include "kernels/layer_norm/layer_norm_forward_rows.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_forward_rows.cuh"
#include "kernels/rms_norm/wide_backward.cuh"
#include "kernels/rms_norm/wide_forward.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard {
namespace {

using rms_norm::RowShare;
using rms_norm::WideBackwardArgs;
using rms_norm::WideForwardArgs;
using tuning::Check;

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int64_t kElements = int64_t{1} << 26;
constexpr int kPacksPerWarp = 32 * rms_norm::kWidePacks;

__global__ void FillKernel(BFloat16* to, int64_t count, float mean, float deviation,
                           uint32_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float sum = -6.0f;
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
    for (int k = 0; k < 12; ++k) {
      h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
      sum += static_cast<float>(h) * 0x1p-32f;
    }
    const float v[1] = {mean + deviation * sum};
    StoreFloats<BFloat16, 1>(to + i, v);
  }
}

void Fill(char* to, int64_t count, float mean, float deviation, uint32_t seed) {
  FillKernel<<<2048, 256>>>(reinterpret_cast<BFloat16*>(to), count, mean, deviation, seed);
  Check(cudaGetLastError());
}

struct Bench {
  tuning::Rotating x{kBytes};
  tuning::Rotating dy{kBytes};
  tuning::Rotating y{kBytes};
  tuning::Rotating residual{kBytes};
  tuning::Rotating sum{kBytes};
  tuning::Rotating weight{int64_t{4} << 20};
  tuning::Rotating bias{int64_t{4} << 20};
  tuning::Rotating dweight{int64_t{4} << 20};
  tuning::Rotating dbias{int64_t{4} << 20};
  tuning::Rotating mean{int64_t{4} << 20};
  tuning::Rotating rstd{int64_t{4} << 20};
  tuning::Rotating workspace{int64_t{512} << 20};
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

struct Cut {
  int cluster;
  int blocks_per_sm;
  int stages;
  int clusters;  // 0: all that fit.
  int rows = 1;  // Of a block.
};

enum Operation { kRms, kAddRms, kLayer };
const char* const kNames[] = {"rms_norm", "fused_add_rms_norm", "layer_norm"};

int SmCount() {
  int count = 0;
  Check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

template <typename Kernel>
int Prepare(Kernel kernel, const Cut& cut, int threads, int bytes) {
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared));
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cut.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cut.cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return clusters;
}

int ThreadsOf(int64_t hidden, int cluster) {
  const int64_t packs = hidden / 8;
  const int64_t per_block = (packs + cluster - 1) / cluster;
  return static_cast<int>((per_block + kPacksPerWarp - 1) / kPacksPerWarp) * 32;
}

template <Operation kOp, RowShare kShare>
struct Kernels {
  static constexpr bool kCenter = kOp == kLayer;
  static constexpr bool kAdd = kOp == kAddRms;
  static constexpr auto kForward = rms_norm::WideForwardKernel<BFloat16, kCenter, kAdd, kShare>;
  static constexpr auto kBackward = rms_norm::WideBackwardKernel<BFloat16, kCenter, kAdd, kShare>;

  static int ForwardBytes(int threads, const Cut& cut) {
    return threads * 16 * rms_norm::WideForwardPacks<kCenter, kAdd>(cut.stages, cut.rows);
  }
  static int BackwardBytes(int threads, const Cut& cut) {
    return threads * 16 * rms_norm::WideBackwardPacks<kAdd>(cut.stages, cut.rows);
  }
};

char* At(const tuning::Rotating& of, int64_t rows, int64_t hidden, int turn) {
  return static_cast<char*>(of.Matrix(rows, hidden, FB_BF16, turn).data);
}

template <Operation kOp, RowShare kShare>
int Forward(const Bench& b, int64_t rows, int64_t hidden, const Cut& cut, int clusters, int turn) {
  using K = Kernels<kOp, kShare>;
  const int threads = ThreadsOf(hidden, cut.cluster);
  const LaunchShape shape = {
      .blocks = std::min<int64_t>(clusters, (rows + cut.rows - 1) / cut.rows) * cut.cluster,
      .threads = dim3(static_cast<unsigned>(threads), static_cast<unsigned>(cut.rows)),
      .cluster = cut.cluster,
      .shared_bytes = K::ForwardBytes(threads, cut)};
  const WideForwardArgs args = {.x = At(b.x, rows, hidden, turn),
                                .residual = At(b.residual, rows, hidden, turn),
                                .weight = b.weight.base(),
                                .bias = b.bias.base(),
                                .y = At(b.y, rows, hidden, turn),
                                .sum = At(b.sum, rows, hidden, turn),
                                .mean = reinterpret_cast<float*>(b.mean.base()),
                                .rstd = reinterpret_cast<float*>(b.rstd.base()),
                                .x_stride = hidden,
                                .residual_stride = hidden,
                                .y_stride = hidden,
                                .sum_stride = hidden,
                                .rows = rows,
                                .hidden = hidden,
                                .inverse_hidden = 1.0f / static_cast<float>(hidden),
                                .eps = 1e-5f,
                                .offset = 0.0f,
                                .round_normed = kOp != kLayer,
                                .stages = cut.stages};
  return LaunchKernel(K::kForward, shape, args);
}

template <Operation kOp, RowShare kShare>
int Backward(const Bench& b, int64_t rows, int64_t hidden, const Cut& cut, int clusters, int turn) {
  using K = Kernels<kOp, kShare>;
  const int threads = ThreadsOf(hidden, cut.cluster);
  const int64_t sums = std::min<int64_t>(clusters, (rows + cut.rows - 1) / cut.rows);
  auto* const partials = reinterpret_cast<float*>(b.workspace.base());
  const LaunchShape shape = {
      .blocks = sums * cut.cluster,
      .threads = dim3(static_cast<unsigned>(threads), static_cast<unsigned>(cut.rows)),
      .cluster = cut.cluster,
      .shared_bytes = K::BackwardBytes(threads, cut)};
  const WideBackwardArgs args = {
      .dy = At(b.dy, rows, hidden, turn),
      .x = At(b.x, rows, hidden, turn),
      .weight = b.weight.base(),
      .dsum = At(b.residual, rows, hidden, turn),
      .mean = reinterpret_cast<const float*>(b.mean.base()),
      .rstd = reinterpret_cast<const float*>(b.rstd.base()),
      .dx = At(b.y, rows, hidden, turn),
      .weight_partials = partials,
      .bias_partials = kOp == kLayer ? partials + sums * hidden : nullptr,
      .dy_stride = hidden,
      .x_stride = hidden,
      .dsum_stride = hidden,
      .dx_stride = hidden,
      .rows = rows,
      .hidden = hidden,
      .inverse_hidden = 1.0f / static_cast<float>(hidden),
      .offset = 0.0f,
      .round_normed = false,
      .stages = cut.stages};
  if (const int error = LaunchKernel(K::kBackward, shape, args)) return error;
  const PartialSums of_bias = {args.bias_partials, sums, hidden, b.dbias.base(), FB_BF16};
  return LaunchTwoSums({partials, sums, hidden, b.dweight.base(), FB_BF16},
                       kOp == kLayer ? of_bias : PartialSums{}, true, nullptr);
}

template <Operation kOp, RowShare kShare>
void Time(const Bench& b, bool forward, int64_t hidden, Cut cut) {
  using K = Kernels<kOp, kShare>;
  const int64_t rows = kElements / hidden;
  const int threads = ThreadsOf(hidden, cut.cluster);
  const int bytes = forward ? K::ForwardBytes(threads, cut) : K::BackwardBytes(threads, cut);
  int most = 0;
  if (forward) {
    most = Prepare(K::kForward, cut, threads * cut.rows, bytes);
  } else {
    most = Prepare(K::kBackward, cut, threads * cut.rows, bytes);
  }
  int clusters = SmCount() * cut.blocks_per_sm / cut.cluster;
  if (cut.cluster > 2) clusters = (SmCount() / 16 * 16 - 8) * cut.blocks_per_sm / cut.cluster;
  if (cut.clusters > 0) clusters = cut.clusters;
  double us = 0.0;
  if (most >= clusters) {
    us = tuning::MedianUs(
        [&](int turn) {
          return forward ? Forward<kOp, kShare>(b, rows, hidden, cut, clusters, turn)
                         : Backward<kOp, kShare>(b, rows, hidden, cut, clusters, turn);
        },
        /*repeats=*/12);
  }
  const int per_element = forward ? (kOp == kAddRms ? 8 : 4) : (kOp == kAddRms ? 8 : 6);
  const double moved = static_cast<double>(rows * hidden * per_element);
  std::printf(
      "%-18s %-8s H %-6lld threads %3d rows %2d cluster %2d blocks/sm %d stages %d fit %3d of %3d",
      kNames[kOp], forward ? "forward" : "backward", static_cast<long long>(hidden), threads,
      cut.rows, cut.cluster, cut.blocks_per_sm, cut.stages, most, clusters);
  if (us > 0.0) {
    std::printf(" %8.1f us %5.1f %%\n", us, 100.0 * moved / us / b.copy_rate);
  } else {
    std::printf("  -\n");
  }
}

template <Operation kOp>
void TimeCut(const Bench& b, bool forward, int64_t hidden, const Cut& cut) {
  if (cut.cluster > 1) return Time<kOp, RowShare::kCluster>(b, forward, hidden, cut);
  if (ThreadsOf(hidden, 1) == 32) return Time<kOp, RowShare::kWarp>(b, forward, hidden, cut);
  Time<kOp, RowShare::kBlock>(b, forward, hidden, cut);
}

template <Operation kOp>
void TimeAll(const Bench& b, bool forward, const std::vector<int64_t>& widths, bool brief) {
  for (const int64_t hidden : widths) {
    for (const int cluster : {1, 2, 4, 8, 16}) {
      const int threads = ThreadsOf(hidden, cluster);
      if (threads > 512 || (cluster > 1 && threads < 128)) continue;
      for (const int rows : {1, 2, 4, 8, 16}) {
        const int block = rows * threads;
        if (block > 512 || (rows > 1 && (cluster > 1 || threads > 128))) continue;
        if (rows > 4 && threads > 32) continue;
        if (block < 128) continue;
        for (const int blocks : {1, 2, 3, 4}) {
          if (blocks * block > 512 || (blocks + 1) * block <= 384) continue;
          for (const int stages : {2, 3, 4}) {
            if (brief && (stages == 4 || blocks * block < 300)) continue;
            const Cut cut = {cluster, blocks, stages, 0, rows};
            const int bytes = forward ? Kernels<kOp, RowShare::kBlock>::ForwardBytes(threads, cut)
                                      : Kernels<kOp, RowShare::kBlock>::BackwardBytes(threads, cut);
            if (stages == 2 && blocks * bytes * 3 / 2 < 200 * 1024) continue;
            if (blocks * (bytes + 1900) > 228 * 1024) continue;
            TimeCut<kOp>(b, forward, hidden, cut);
          }
        }
      }
    }
  }
}

// ---- What the results should be ----

template <typename T>
std::vector<T> Down(const void* from, int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  Check(cudaMemcpy(out.data(), from, out.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

std::vector<double> DownBf16(const void* from, int64_t count) {
  std::vector<double> out;
  for (const uint16_t bits : Down<uint16_t>(from, count)) {
    const uint32_t word = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &word, 4);
    out.push_back(value);
  }
  return out;
}

double Round(double v) {  // To bf16, roughly: for rms_norm's rounded n.
  auto f = static_cast<float>(v);
  uint32_t word;
  std::memcpy(&word, &f, 4);
  word = (word + 0x7fff + ((word >> 16) & 1)) & 0xffff0000u;
  std::memcpy(&f, &word, 4);
  return f;
}

struct Want {
  std::vector<double> y, sum, dx, dweight, dbias;
};

template <Operation kOp>
Want WantOf(const Bench& b, int64_t rows, int64_t hidden) {
  const auto n = static_cast<size_t>(rows * hidden);
  const auto x = DownBf16(b.x.base(), rows * hidden);
  const auto r = DownBf16(b.residual.base(), rows * hidden);
  const auto dy = DownBf16(b.dy.base(), rows * hidden);
  const auto w = DownBf16(b.weight.base(), hidden);
  const auto bias = DownBf16(b.bias.base(), hidden);
  Want want = {std::vector<double>(n), std::vector<double>(n), std::vector<double>(n),
               std::vector<double>(w.size()), std::vector<double>(w.size())};
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const auto norm = [&](bool added, const auto& use) {
      double mean = 0.0, square = 0.0;
      const auto value = [&](size_t i) {
        const size_t at = row * w.size() + i;
        return added ? Round(x[at] + r[at]) : x[at];
      };
      if (kOp == kLayer) {
        for (size_t i = 0; i < w.size(); ++i) mean += value(i) / static_cast<double>(hidden);
      }
      for (size_t i = 0; i < w.size(); ++i) {
        square += (value(i) - mean) * (value(i) - mean) / static_cast<double>(hidden);
      }
      use(value, mean, 1.0 / std::sqrt(square + 1e-5));
    };
    norm(kOp == kAddRms, [&](const auto& value, double mean, double rstd) {
      for (size_t i = 0; i < w.size(); ++i) {
        const size_t at = row * w.size() + i;
        want.sum[at] = value(i);
        const double normed = (value(i) - mean) * rstd;
        want.y[at] = kOp == kLayer ? normed * w[i] + bias[i] : Round(normed) * w[i];
      }
    });
    norm(false, [&](const auto& value, double mean, double rstd) {
      double g_mean = 0.0, gn_mean = 0.0;
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = dy[row * w.size() + i] * w[i];
        if (kOp == kLayer) g_mean += g / static_cast<double>(hidden);
        gn_mean += g * (value(i) - mean) * rstd / static_cast<double>(hidden);
      }
      for (size_t i = 0; i < w.size(); ++i) {
        const size_t at = row * w.size() + i;
        const double normed = (value(i) - mean) * rstd;
        want.dx[at] = rstd * (dy[at] * w[i] - g_mean - normed * gn_mean);
        if (kOp == kAddRms) want.dx[at] += r[at];
        want.dweight[i] += dy[at] * normed;
        want.dbias[i] += dy[at];
      }
    });
  }
  return want;
}

// Largest distance over 1 + |want|: bf16 rounds by 2^-9 = 0.002.
double Apart(const void* got, const std::vector<double>& want, uint32_t* bits) {
  const auto count = static_cast<int64_t>(want.size());
  const auto values = DownBf16(got, count);
  for (const uint16_t v : Down<uint16_t>(got, count)) *bits = *bits * 31 + v;
  double most = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double apart = std::abs(values[i] - want[i]) / (1.0 + std::abs(want[i]));
    most = apart <= most ? most : apart;  // NaN wins.
  }
  return most;
}

template <Operation kOp, RowShare kShare>
void CheckOne(const Bench& b, int64_t rows, int64_t hidden, const Cut& cut, const Want& want) {
  using K = Kernels<kOp, kShare>;
  const int threads = ThreadsOf(hidden, cut.cluster);
  uint32_t bits[2] = {};
  double apart[5] = {};
  for (int run = 0; run < 2; ++run) {
    for (const auto* memory : {&b.y, &b.sum}) Check(cudaMemset(memory->base(), 0xff, 64 << 20));
    Prepare(K::kForward, cut, threads * cut.rows, K::ForwardBytes(threads, cut));
    Check(Forward<kOp, kShare>(b, rows, hidden, cut, cut.clusters, 0));
    Check(cudaDeviceSynchronize());
    apart[0] = Apart(b.y.base(), want.y, &bits[run]);
    if (kOp == kAddRms) {
      apart[1] = Apart(b.sum.base(), want.sum, &bits[run]);
      Forward<kRms, kShare>(b, rows, hidden, cut, cut.clusters, 0);  // rstd of x itself.
    }
    Prepare(K::kBackward, cut, threads * cut.rows, K::BackwardBytes(threads, cut));
    Check(Backward<kOp, kShare>(b, rows, hidden, cut, cut.clusters, 0));
    Check(cudaDeviceSynchronize());
    apart[2] = Apart(b.y.base(), want.dx, &bits[run]);
    apart[3] = Apart(b.dweight.base(), want.dweight, &bits[run]);
    if (kOp == kLayer) apart[4] = Apart(b.dbias.base(), want.dbias, &bits[run]);
  }
  const bool good = *std::max_element(apart, apart + 5) < 0.006 && bits[0] == bits[1];
  std::printf(
      "%s %s %lld x %lld cluster %d rows %d: y %.4f sum %.4f dx %.4f dweight %.4f dbias %.4f %s\n",
      good ? "ok  " : "FAIL", kNames[kOp], static_cast<long long>(rows),
      static_cast<long long>(hidden), cut.cluster, cut.rows, apart[0], apart[1], apart[2], apart[3],
      apart[4], bits[0] == bits[1] ? "bits equal" : "BITS DIFFER");
}

template <Operation kOp>
void CheckAll(const Bench& b) {
  for (const float mean : {0.0f, 20.0f}) {
    if (kOp != kLayer && mean != 0.0f) continue;
    for (const int64_t hidden :
         {1000, 1024, 2048, 4096, 8192, 16384, 12296, 20480, 65536, 65544, 131072, 262144}) {
      const int64_t rows = hidden > 60000 ? 13 : 19;
      Fill(b.x.base(), rows * hidden, mean, 1.0f, 1);
      Fill(b.dy.base(), rows * hidden, 0.0f, 1.0f, 2);
      Fill(b.residual.base(), rows * hidden, 0.0f, 1.0f, 3);
      Fill(b.weight.base(), hidden, 1.0f, 0.2f, 4);
      Fill(b.bias.base(), hidden, 0.0f, 0.2f, 5);
      const Want want = WantOf<kOp>(b, rows, hidden);
      for (const int cluster : {1, 2, 4, 8, 16}) {
        const int threads = ThreadsOf(hidden, cluster);
        if (threads > 512 || (cluster > 1 && threads < 256)) continue;
        const int together = threads > 128 ? 1 : threads > 64 ? 3 : threads > 32 ? 4 : 8;
        const Cut cut = {cluster, 1, kOp == kAddRms ? 2 : 3, 3, together};
        if (cluster > 1) {
          CheckOne<kOp, RowShare::kCluster>(b, rows, hidden, cut, want);
        } else if (threads > 32) {
          CheckOne<kOp, RowShare::kBlock>(b, rows, hidden, cut, want);
        } else {
          CheckOne<kOp, RowShare::kWarp>(b, rows, hidden, cut, want);
        }
      }
    }
  }
}

// ---- layer_norm, a row to a block ----

using RowKernel = void (*)(layer_norm::ForwardArgs);

struct RowForm {
  const char* name;
  RowKernel kernel;
  int warps;
  int packs;
};

template <int kWarps, int kPacks, int kResident>
constexpr RowForm FormOf(const char* name) {
  return {name, layer_norm::LayerNormForwardRowKernel<BFloat16, kWarps, kPacks, kResident>, kWarps,
          kPacks};
}

const RowForm kRowForms[] = {FormOf<1, 4, 32>("1 warp  4 packs 64 registers"),
                             FormOf<1, 4, 24>("1 warp  4 packs 80 registers"),
                             FormOf<2, 2, 40>("2 warps 2 packs 48 registers"),
                             FormOf<4, 4, 32>("4 warps 4 packs 64 registers"),
                             FormOf<4, 4, 24>("4 warps 4 packs 80 registers"),
                             FormOf<4, 2, 40>("4 warps 2 packs 48 registers"),
                             FormOf<8, 2, 40>("8 warps 2 packs 48 registers"),
                             FormOf<8, 4, 32>("8 warps 4 packs 64 registers"),
                             FormOf<8, 4, 24>("8 warps 4 packs 80 registers"),
                             FormOf<16, 4, 32>("16 warps 4 packs 64 registers"),
                             FormOf<16, 2, 48>("16 warps 2 packs 40 registers")};

int RunRow(const Bench& b, const RowForm& form, int64_t rows, int64_t hidden, int turn) {
  const int64_t packs = hidden / 8;
  const int threads = static_cast<int>((packs + 32 * form.packs - 1) / (32 * form.packs)) * 32;
  if (threads > form.warps * 32) return cudaErrorInvalidValue;
  const layer_norm::ForwardArgs args = {.x = At(b.x, rows, hidden, turn),
                                        .weight = b.weight.base(),
                                        .bias = b.bias.base(),
                                        .y = At(b.y, rows, hidden, turn),
                                        .mean = reinterpret_cast<float*>(b.mean.base()),
                                        .rstd = reinterpret_cast<float*>(b.rstd.base()),
                                        .x_stride = hidden,
                                        .y_stride = hidden,
                                        .rows = rows,
                                        .hidden = hidden,
                                        .weight_dtype = FB_BF16,
                                        .bias_dtype = FB_BF16,
                                        .inverse_hidden = 1.0f / static_cast<float>(hidden),
                                        .zero = 0,
                                        .eps = 1e-5f};
  return LaunchKernel(form.kernel,
                      {.blocks = rows, .threads = dim3(static_cast<unsigned>(threads))}, args);
}

void CheckRows(const Bench& b) {
  for (const float mean : {0.0f, 20.0f}) {
    for (const int64_t hidden : {1024, 1000, 2048, 4096, 5120, 5128, 8192, 16384}) {
      const int64_t rows = 37;
      Fill(b.x.base(), rows * hidden, mean, 1.0f, 1);
      Fill(b.dy.base(), rows * hidden, 0.0f, 1.0f, 2);
      Fill(b.residual.base(), rows * hidden, 0.0f, 1.0f, 3);
      Fill(b.weight.base(), hidden, 1.0f, 0.2f, 4);
      Fill(b.bias.base(), hidden, 0.0f, 0.2f, 5);
      const Want want = WantOf<kLayer>(b, rows, hidden);
      for (const RowForm& form : kRowForms) {
        Check(cudaMemset(b.y.base(), 0xff, 8 << 20));
        if (RunRow(b, form, rows, hidden, 0) != cudaSuccess) continue;
        Check(cudaDeviceSynchronize());
        uint32_t bits = 0;
        const double apart = Apart(b.y.base(), want.y, &bits);
        std::printf("%s layer_norm %lld %s mean %.0f: y %.4f\n", apart < 0.006 ? "ok  " : "FAIL",
                    static_cast<long long>(hidden), form.name, mean, apart);
      }
    }
  }
}

void TimeRows(const Bench& b) {
  for (const int64_t hidden : {1024, 2048, 4096, 5120, 8192, 16384}) {
    const int64_t rows = kElements / hidden;
    for (const RowForm& form : kRowForms) {
      const int64_t cover = int64_t{form.warps} * form.packs * 256;
      if (cover >= 4 * hidden) continue;
      const double us = tuning::MedianUs(
          [&](int turn) { return RunRow(b, form, rows, hidden, turn); }, /*repeats=*/12);
      if (us == 0.0) continue;
      std::printf("layer_norm forward H %-6lld %-30s %8.1f us %5.1f %%\n",
                  static_cast<long long>(hidden), form.name, us,
                  100.0 * static_cast<double>(kElements * 4) / us / b.copy_rate);
    }
  }
}

// ---- modulated_rms_norm, a row to a block, 1,024 rows to a row of scale ----

struct ModulatedForm {
  const char* name;
  void (*kernel)(rms_norm::ModulatedForwardArgs);
  int warps;
  int packs;
};

template <int kWarps, int kPacks, int kResident>
constexpr ModulatedForm ModulatedFormOf(const char* name) {
  return {name, modulated_rms_norm::ModulatedForwardRowKernel<BFloat16, kWarps, kPacks, kResident>,
          kWarps, kPacks};
}

const ModulatedForm kModulatedForms[] = {
    ModulatedFormOf<2, 4, 24>("2 warps 4 packs 80 registers"),
    ModulatedFormOf<4, 2, 40>("4 warps 2 packs 48 registers"),
    ModulatedFormOf<4, 4, 24>("4 warps 4 packs 80 registers"),
    ModulatedFormOf<4, 4, 20>("4 warps 4 packs 96 registers"),
    ModulatedFormOf<8, 2, 40>("8 warps 2 packs 48 registers"),
    ModulatedFormOf<8, 2, 32>("8 warps 2 packs 64 registers"),
    ModulatedFormOf<8, 4, 24>("8 warps 4 packs 80 registers"),
    ModulatedFormOf<8, 4, 16>("8 warps 4 packs 128 registers"),
    ModulatedFormOf<16, 2, 32>("16 warps 2 packs 64 registers"),
    ModulatedFormOf<16, 2, 48>("16 warps 2 packs 40 registers"),
    ModulatedFormOf<16, 4, 16>("16 warps 4 packs 128 registers")};

void TimeModulated(const Bench& b) {
  for (const int64_t hidden : {1024, 2048, 4096, 5120, 8192, 16384}) {
    const int64_t rows = kElements / hidden / 1024 * 1024;
    for (const ModulatedForm& form : kModulatedForms) {
      const int64_t of_warp = 256 * form.packs;
      const auto threads = static_cast<unsigned>((hidden + of_warp - 1) / of_warp * 32);
      if (threads > static_cast<unsigned>(form.warps) * 32 || threads * 4 <= form.warps * 32u) {
        continue;
      }
      const auto run = [&](int turn) -> int {
        rms_norm::ModulatedForwardArgs args = {};
        args.x = At(b.x, rows, hidden, turn);
        args.weight = b.weight.base();
        args.y = At(b.y, rows, hidden, turn);
        args.rstd = reinterpret_cast<float*>(b.rstd.base());
        args.x_stride = args.y_stride = hidden;
        args.inverse_hidden = 1.0f / static_cast<float>(hidden);
        args.norm = {rows, hidden, 1e-6f, 0.0f, false};
        args.modulation = {b.residual.base(), b.sum.base(), hidden, hidden, FB_BF16, FB_BF16, 1024};
        return LaunchKernel(form.kernel, {.blocks = rows, .threads = dim3(threads)}, args);
      };
      const double us = tuning::MedianUs(run, /*repeats=*/12);
      std::printf("modulated forward H %-6lld %-30s %8.1f us %5.1f %%\n",
                  static_cast<long long>(hidden), form.name, us,
                  100.0 * static_cast<double>(rows * hidden * 4) / us / b.copy_rate);
    }
  }
}

int Main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], what) == 0) return true;
    }
    return argc < 2;
  };
  const Bench b;
  if (wants("check")) {
    CheckRows(b);
    CheckAll<kRms>(b);
    CheckAll<kAddRms>(b);
    CheckAll<kLayer>(b);
  }
  const bool plain = argc > 1 && std::strcmp(argv[1], "plain") == 0;  // As norm_tune's values.
  if (plain) {
    Check(cudaMemset(b.x.base(), 0x3c, kBytes));
    for (const auto* memory : {&b.dy, &b.residual}) Check(cudaMemset(memory->base(), 0, kBytes));
  } else {
    Fill(b.x.base(), kBytes / 2, 0.0f, 1.0f, 1);
    Fill(b.dy.base(), kBytes / 2, 0.0f, 1.0f, 2);
    Fill(b.residual.base(), kBytes / 2, 0.0f, 1.0f, 3);
  }
  const bool brief = argc > 1 && std::strcmp(argv[1], "brief") == 0;
  if (wants("layer")) TimeRows(b);
  if (wants("narrow")) TimeAll<kLayer>(b, false, {1024, 2048, 4096, 5120, 8192}, brief);
  if (wants("modulated")) TimeModulated(b);
  const std::vector<int64_t> wide = {8192, 16384, 65536, 131072, 262144};
  if (wants("forward")) {
    TimeAll<kRms>(b, true, wide, brief);
    TimeAll<kLayer>(b, true, {16384, 65536, 131072, 262144}, brief);
    TimeAll<kAddRms>(b, true, {16384, 65536, 131072, 262144}, brief);
  }
  if (wants("backward")) {
    TimeAll<kRms>(b, false, wide, brief);
    TimeAll<kLayer>(b, false, {16384, 65536, 131072, 262144}, brief);
    TimeAll<kAddRms>(b, false, {16384, 65536, 131072, 262144}, brief);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
