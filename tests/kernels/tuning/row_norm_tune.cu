// Times the forward kernels for a row to a block of layer_norm and of rms_norm in bf16 on device 0,
// over the ways to cut a row, as shares of the copy rate of the same run; and compares those of
// layer_norm with sums in f64. Its numbers go into the policies' comments.
//
//   row_norm_tune [check|layer|rms ...]

#include <cstdlib>
#include <cstring>

#include "kernels/common/launch.cuh"
#include "kernels/layer_norm/layer_norm_forward_rows.cuh"
#include "kernels/rms_norm/rms_norm_forward.cuh"
#include "tests/kernels/tuning/norm_reference.cuh"

namespace fuseboard {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int64_t kElements = int64_t{1} << 26;
constexpr int64_t kSmallBytes = int64_t{4} << 20;

struct Bench {
  tuning::Rotating x{kBytes}, y{kBytes};
  tuning::Rotating weight{kSmallBytes}, bias{kSmallBytes}, mean{kSmallBytes}, rstd{kSmallBytes};
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

BFloat16* Of(const tuning::Rotating& r) { return reinterpret_cast<BFloat16*>(r.base()); }

char* At(const tuning::Rotating& of, int64_t rows, int64_t hidden, int turn) {
  return static_cast<char*>(of.Matrix(rows, hidden, FB_BF16, turn).data);
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
  constexpr int64_t kRows = 37;
  for (const float mean : {0.0f, 20.0f}) {
    for (const int64_t hidden : {1024, 1000, 2048, 4096, 5120, 5128, 8192, 16384}) {
      tuning::FillBf16(Of(b.x), kRows * hidden, mean, 1.0f, 1);
      tuning::FillBf16(Of(b.weight), hidden, 1.0f, 0.2f, 4);
      tuning::FillBf16(Of(b.bias), hidden, 0.0f, 0.2f, 5);
      tuning::NormProblem problem = {};
      problem.x = Of(b.x), problem.weight = Of(b.weight), problem.bias = Of(b.bias);
      problem.rows = kRows, problem.hidden = hidden;
      problem.center = problem.forward = true;
      const tuning::NormReference reference(problem, reinterpret_cast<float*>(b.mean.base()),
                                            reinterpret_cast<float*>(b.rstd.base()));
      for (const RowForm& form : kRowForms) {
        tuning::Check(cudaMemset(b.y.base(), 0xff, static_cast<size_t>(kRows * hidden) * 2));
        if (RunRow(b, form, kRows, hidden, 0) != cudaSuccess) continue;
        const double apart = reference.Apart({Of(b.y), nullptr, nullptr, nullptr});
        std::printf("%s layer_norm %lld %s mean %.0f: %.4f\n", apart < 0.006 ? "ok  " : "FAIL",
                    static_cast<long long>(hidden), form.name, mean, apart);
      }
    }
  }
}

void TimeRows(const Bench& b) {
  for (const int64_t hidden : {1024, 2048, 2880, 3584, 4096, 5120, 8192, 16384}) {
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

// ---- rms_norm, a row to a block ----

template <int kPacks>
void TimeRms(const Bench& b, int64_t hidden) {
  const int64_t rows = kElements / hidden;
  const int64_t packs = hidden / 8;
  const int threads = static_cast<int>((packs + 32 * kPacks - 1) / (32 * kPacks)) * 32;
  if (threads > 512) return;
  const auto run = [&](int turn) {
    rms_norm::ForwardArgs args = {};
    args.x = At(b.x, rows, hidden, turn), args.y = At(b.y, rows, hidden, turn);
    args.weight = b.weight.base(), args.rstd = reinterpret_cast<float*>(b.rstd.base());
    args.x_stride = args.y_stride = hidden;
    args.weight_dtype = FB_BF16;
    args.inverse_hidden = 1.0f / static_cast<float>(hidden);
    args.norm = {rows, hidden, 1e-6f, 0.0f, true};
    return LaunchKernel(
        rms_norm::RmsNormForwardKernel<BFloat16, BFloat16, true, false, false, kPacks, false>,
        {.blocks = rows, .threads = dim3(static_cast<unsigned>(threads))}, args);
  };
  const double us = tuning::MedianUs(run, /*repeats=*/16);
  std::printf("rms_norm   forward H %-6lld %d packs %d threads %8.1f us %5.1f %%\n",
              static_cast<long long>(hidden), kPacks, threads, us,
              100.0 * static_cast<double>(rows * hidden * 4) / us / b.copy_rate);
}

int Main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    return argc < 2 || std::any_of(argv + 1, argv + argc,
                                   [&](const char* arg) { return std::strcmp(arg, what) == 0; });
  };
  const Bench b;
  if (wants("check")) CheckRows(b);
  tuning::FillBf16(Of(b.x), kBytes / 2, 0.0f, 1.0f, 1);
  if (wants("layer")) TimeRows(b);
  if (!wants("rms")) return EXIT_SUCCESS;
  for (const int64_t hidden : {2880, 3584, 4096, 5120, 6144, 8192}) {
    TimeRms<1>(b, hidden);
    TimeRms<2>(b, hidden);
    TimeRms<3>(b, hidden);
    TimeRms<4>(b, hidden);
    TimeRms<5>(b, hidden);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main(int argc, char** argv) { return fuseboard::Main(argc, argv); }
