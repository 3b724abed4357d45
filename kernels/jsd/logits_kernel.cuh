// The divergence of two rows of logits and its gradient, without their log-softmaxes, on the GPU.
//
// A cluster of blocks shares each row and reads both of its rows of logits three times, from the L2
// cache from the second time on: for the two log-sum-exps, for the sums of loss and of gradient by
// log-probabilities, and for the gradient by logits, which that sum is in:
//   x_c = (input_c - max) / temperature - log sum
//   dinput_c = scale / temperature * (d_c - e^{x_c} sum_j d_j)    d = d loss / d x
// In place: a thread writes only what it alone reads, and after its last read.
//
// Function is that of row_loss.cuh. No atomics; the order of a row's sums is fixed by its width,
// the alignment of the inputs and the policy, with the gradient and without.

#ifndef KERNELS_JSD_LOGITS_KERNEL_CUH_
#define KERNELS_JSD_LOGITS_KERNEL_CUH_

#include "kernels/common/cluster_exchange.cuh"
#include "kernels/common/row_layout.cuh"
#include "kernels/common/row_loss.cuh"
#include "kernels/common/row_loss_log.cuh"
#include "kernels/jsd/logits_policy.h"

namespace fuseboard::jsd {

__device__ __forceinline__ float NegativeInfinity() { return __uint_as_float(0xff800000u); }

// Of some logits: the largest, NaN left out, and the sum of exp((logit - max) / temperature).
struct LogSum {
  float max = NegativeInfinity();
  float sum = 0.0f;
};

// The sum relative to `max`, which is no smaller than its own.
template <typename T>
__device__ __forceinline__ float SumAt(const LogSum& s, float max, float units) {
  return s.max == max ? s.sum : s.sum * row_loss::LogUnit<T>::Exp((s.max - max) * units);
}

// `units`: of LogUnit<T> in one of logit / temperature.
template <typename T, int kLanes>
__device__ __forceinline__ void AddLogits(LogSum& s, const Lanes<T, kLanes>& run, float units) {
  float x[kLanes];
  Unpack<T, kLanes>(run, x);
  float most = x[0];
#pragma unroll
  for (int i = 1; i < kLanes; ++i) most = fmaxf(most, x[i]);
  if (most > s.max) {  // About ln(runs) times per thread.
    s.sum = SumAt<T>(s, most, units);
    s.max = most;
  }
  const float reference = s.max == NegativeInfinity() ? 0.0f : s.max;
  float sum[2] = {};
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    sum[i % 2] += row_loss::LogUnit<T>::Exp((x[i] - reference) * units);
  }
  s.sum += sum[0] + sum[1];
}

// log_softmax(logits / temperature), given the row's LogSum.
struct LogSoftmax {
  float max;
  float log_sum;
  float inverse_temperature;

  template <typename T>
  __device__ __forceinline__ static LogSoftmax Of(const LogSum& s, float inverse_temperature) {
    using Unit = row_loss::LogUnit<T>;
    return {s.max, Unit::Log(s.sum) * Unit::kNats, inverse_temperature};
  }

  // A difference of logits first: a row of large ones keeps its digits.
  __device__ __forceinline__ float operator()(float logit) const {
    return fmaf(logit - max, inverse_temperature, -log_sum);
  }
};

struct LogitsShared {
  float part[6][kMaxWarps];
  ClusterExchange exchange;
};

// Over the block.
template <typename T>
__device__ __forceinline__ LogSum MergeBlock(const LogSum& s, float units,
                                             float (*part)[kMaxWarps]) {
  LogSum merged;
  merged.max = BlockReduce(s.max, Max(), NegativeInfinity(), part[0]);
  merged.sum = BlockReduce(SumAt<T>(s, merged.max, units), Sum(), 0.0f, part[1]);
  return merged;
}

// Over neighbouring kMaxClusterBlocks lanes.
template <typename T>
__device__ __forceinline__ LogSum MergeLanes(const LogSum& s, float units) {
  LogSum merged;
  merged.max = WarpReduce(s.max, Max(), kMaxClusterBlocks);
  merged.sum = WarpReduce(SumAt<T>(s, merged.max, units), Sum(), kMaxClusterBlocks);
  return merged;
}

// One row of both matrices, and the units of it that this thread has.
template <typename T, int kLanes>
struct LogitsRow {
  const T* input;
  const T* target;
  T* dinput;
  bool dinput_is_aligned;  // As input.
  RowLayout<T, kLanes> layout;
  int first;
  int step;

  __device__ __forceinline__ LogitsRow(const row_loss::Call& call, int64_t row)
      : input(static_cast<const T*>(call.input) + row * call.input_stride),
        target(static_cast<const T*>(call.target) + row * call.target_stride),
        dinput(static_cast<T*>(call.dinput) + row * call.dinput_stride),
        dinput_is_aligned(
            (reinterpret_cast<uintptr_t>(dinput) - reinterpret_cast<uintptr_t>(input)) % 16 == 0),
        layout(input, call.cols),
        first(static_cast<int>(ClusterRank() * blockDim.x + threadIdx.x)),
        step(static_cast<int>(ClusterSize() * blockDim.x)) {}

  // Calls fn(input run, target run, column), kUnroll runs of each loaded at a time.
  template <int kUnroll, typename Fn>
  __device__ __forceinline__ void ForEach(const Fn& fn) const {
    for (int unit = first; unit < layout.units; unit += kUnroll * step) {
      Lanes<T, kLanes> x[kUnroll];
      Lanes<T, kLanes> y[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (unit + u * step >= layout.units) break;
        const int column = layout.ColumnOfUnit(unit + u * step);
        x[u] = LoadLanes<T, kLanes>(input + column);
        y[u] = LoadLanes<T, kLanes>(target + column);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (unit + u * step >= layout.units) break;
        fn(x[u], y[u], layout.ColumnOfUnit(unit + u * step));
      }
    }
    if constexpr (kLanes > 1) {
      for (int edge = first; edge < layout.edges; edge += step) {
        const int column = layout.ColumnOfEdge(edge);
        fn(LoadLanes<T, 1>(input + column), LoadLanes<T, 1>(target + column), column);
      }
    }
  }

  template <int kN>
  __device__ __forceinline__ void Store(int column, const float (&values)[kN]) const {
    row_loss::StoreFloatsAt<T, kN>(dinput + column, dinput_is_aligned, values);
  }

  __device__ __forceinline__ void StoreZeros() const {
    for (int unit = first; unit < layout.units; unit += step) {
      Store<kLanes>(layout.ColumnOfUnit(unit), {});
    }
    if constexpr (kLanes > 1) {
      for (int edge = first; edge < layout.edges; edge += step) {
        Store<1>(layout.ColumnOfEdge(edge), {});
      }
    }
  }
};

template <typename L, typename T>
inline constexpr int kLanesOf = L::kBytes / static_cast<int>(sizeof(T));

// blockDim.x: whole warps, at most kThreads. A cluster of blocks per row; rows beyond the grid's
// clusters are looped over. REQUIRES: kLanes == 1, or the rows of both inputs are aligned alike to
// 16 bytes.
template <typename Function, typename T, int kLanes, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    LogitsKernel(const __grid_constant__ row_loss::Call call,
                 const __grid_constant__ Function function, float inverse_temperature) {
  using Unit = row_loss::LogUnit<T>;
  __shared__ LogitsShared shared;
  BeginExchange(&shared.exchange);
  const float units = inverse_temperature * Unit::kPerNat;
  uint32_t turn = 0;
  for (int64_t index = RowBlocks<true>::Index(); index < call.rows;
       index += RowBlocks<true>::Count()) {
    const LogitsRow<T, kLanes> row(call, index);
    const bool first_thread = row.first == 0;
    if (row_loss::IsIgnored(call, index)) {
      if (call.dinput != nullptr) row.StoreZeros();
      if (first_thread && call.loss != nullptr) call.loss[index] = 0.0f;
      continue;
    }
    LogSum sum_x;
    LogSum sum_y;
    row.template ForEach<2>([&](const auto& x, const auto& y, int /*column*/) {
      AddLogits<T, kLanesOf<std::decay_t<decltype(x)>, T>>(sum_x, x, units);
      AddLogits<T, kLanesOf<std::decay_t<decltype(y)>, T>>(sum_y, y, units);
    });
    sum_x = MergeBlock<T>(sum_x, units, shared.part);
    sum_y = MergeBlock<T>(sum_y, units, shared.part + 2);
    if (ClusterSize() > 1) {
      const float4 got = Exchange(&shared.exchange, turn++,
                                  make_float4(sum_x.max, sum_x.sum, sum_y.max, sum_y.sum),
                                  make_float4(NegativeInfinity(), 0.0f, NegativeInfinity(), 0.0f));
      sum_x = MergeLanes<T>({got.x, got.y}, units);
      sum_y = MergeLanes<T>({got.z, got.w}, units);
    }
    const LogSoftmax log_p = LogSoftmax::Of<T>(sum_x, inverse_temperature);
    const LogSoftmax log_q = LogSoftmax::Of<T>(sum_y, inverse_temperature);

    float2 sums = {0.0f, 0.0f};  // Of loss and gradient, up to the function's factors.
    row.template ForEach<1>([&](const auto& x_run, const auto& y_run, int /*column*/) {
      constexpr int kN = kLanesOf<std::decay_t<decltype(x_run)>, T>;
      float x[kN];
      float y[kN];
      Unpack<T, kN>(x_run, x);
      Unpack<T, kN>(y_run, y);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const row_loss::Terms terms = function.template At<T>(log_p(x[i]), log_q(y[i]));
        sums.x = terms.AddLossTo(sums.x);
        sums.y += terms.gradient;
      }
    });
    sums.x = BlockReduce(sums.x, Sum(), 0.0f, shared.part[4]);
    sums.y = BlockReduce(sums.y, Sum(), 0.0f, shared.part[5]);
    if (ClusterSize() > 1) sums = ClusterSumPair(sums, &shared.exchange, turn++);
    if (first_thread && call.loss != nullptr) {
      call.loss[index] = sums.x * function.template LossFactor<T>();
    }
    if (call.dinput == nullptr) continue;

    const float scale = call.scale == nullptr ? 1.0f : call.scale[index * call.scale_stride];
    const float factor = scale * inverse_temperature * function.template GradientFactor<T>();
    row.template ForEach<1>([&](const auto& x_run, const auto& y_run, int column) {
      constexpr int kN = kLanesOf<std::decay_t<decltype(x_run)>, T>;
      float x[kN];
      float y[kN];
      Unpack<T, kN>(x_run, x);
      Unpack<T, kN>(y_run, y);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float log_probability = log_p(x[i]);
        const row_loss::Terms terms = function.template At<T>(log_probability, log_q(y[i]));
        const float probability = Unit::Exp(log_probability * Unit::kPerNat);
        x[i] = factor * fmaf(-probability, sums.y, terms.gradient);
      }
      row.template Store<kN>(column, x);
    });
  }
}

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_LOGITS_KERNEL_CUH_
