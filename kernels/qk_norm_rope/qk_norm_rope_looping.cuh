// qk_norm_rope for any alignment, head size and number of heads, element by element. Each row is
// read twice, the second time from L1 or L2, and dweight is added up in memory: a row of partials
// per row of the block.

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_LOOPING_CUH_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_LOOPING_CUH_

#include "kernels/qk_norm_rope/norm_rope_frame.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_backward.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_forward.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::qk_norm_rope {

// A row of q or k: a head of a position, or all of them. Past the last row row 0, and not active.
struct RowAt {
  int64_t batch;
  int64_t position;
  int64_t head;
  bool active;

  __device__ __forceinline__ RowAt(const Call& call, const Side& side, int64_t rows, int64_t row)
      : active(row < rows) {
    const int64_t heads = call.norm.all_heads ? 1 : side.x.count;
    const int64_t at = active ? row : 0;
    head = at % heads;
    position = at / heads % call.rotation.positions;
    batch = at / heads / call.rotation.positions;
  }

  template <typename T>
  __device__ __forceinline__ T* Of(const Heads& heads) const {
    return static_cast<T*>(heads.base) + batch * heads.batch_stride +
           position * heads.position_stride + head * heads.head_stride;
  }
};

// A pair of elements of a row: which head of the row, and where in it.
struct PairAt {
  int64_t head;
  Place place;

  __device__ __forceinline__ PairAt(const Rotation& r, int slots, int64_t pair)
      : head(pair / slots), place{} {
    place.slot = RotarySlotOf<1, false>(r, static_cast<int>(pair - head * slots));
    place.has[0] = true;
    place.has[1] = place.slot.has_second;
  }

  template <typename T>
  __device__ __forceinline__ void Load(const T* row, int64_t head_stride,
                                       float (&out)[2][1]) const {
    LoadFloats<T, 1>(row + head * head_stride + place.slot.first, out[0]);
    LoadFloats<T, 1>(row + head * head_stride + place.slot.second, out[1]);
  }
};

// blockDim = (threads per row, rows per block): whole warps, or whole rows in a warp.
template <typename X, typename Y>
__global__ void __launch_bounds__(256)
    QkNormRopeForwardLoopingKernel(const __grid_constant__ Call call,
                                   const __grid_constant__ Plan plans) {
  __shared__ rms_norm::RowSumStorage<false> shared;
  const BlockAt block(plans);
  const Side& side = call.side[block.side];
  const SidePlan& plan = plans.side[block.side];
  const Rotation& r = call.rotation;
  const Norm& norm = call.norm;
  const int64_t pairs = int64_t{plans.slots} * (norm.all_heads ? side.x.count : 1);
  const float inverse_features = 1.0f / static_cast<float>(plan.features);
  const int64_t step = plan.blocks * blockDim.y;
  uint32_t turn = 0;
  for (int64_t base = block.index * blockDim.y; base < plan.rows; base += step, ++turn) {
    const RowAt row(call, side, plan.rows, base + threadIdx.y);
    const X* in = row.Of<const X>(side.x);
    float square = 0.0f;
    for (int64_t p = threadIdx.x; row.active && p < pairs; p += blockDim.x) {
      const PairAt pair(r, plans.slots, p);
      float x[2][1];
      pair.Load(in, side.x.head_stride, x);
      square += x[0][0] * x[0][0] + (pair.place.has[1] ? x[1][0] * x[1][0] : 0.0f);
    }
    const float sum = rms_norm::RowSum<false>(square, &shared, turn);
    const float rstd = rsqrtf(sum * inverse_features + norm.eps);
    for (int64_t p = threadIdx.x; row.active && p < pairs; p += blockDim.x) {
      const PairAt pair(r, plans.slots, p);
      const auto factors =
          LoadRotaryFactors<X, 1, false>(r, false, row.batch, row.position, pair.place.slot);
      float x[2][1];
      float scale[2][1];
      pair.Load(in, side.x.head_stride, x);
      LoadScale<1>(side.weight, norm.offset, pair.head * r.dim, pair.place.slot, scale);
      Normalise<X, Y>(norm, rstd, scale, x);
      Rotate<Y, false>(r, pair.place.slot, factors, x);
      StoreRuns<Y, 1>(row.Of<Y>(side.out) + pair.head * side.out.head_stride, pair.place, x);
    }
  }
}

// The same blockDim; a row of the block has its own row of partials.
template <typename X, typename Y>
__global__ void __launch_bounds__(256)
    QkNormRopeBackwardLoopingKernel(const __grid_constant__ Call call,
                                    const __grid_constant__ Plan plans) {
  __shared__ rms_norm::RowSumPairStorage<false> shared;
  AllowDependentLaunch();
  const BlockAt block(plans);
  const Side& side = call.side[block.side];
  const SidePlan& plan = plans.side[block.side];
  const Rotation& r = call.rotation;
  const Norm& norm = call.norm;
  const int64_t pairs = int64_t{plans.slots} * (norm.all_heads ? side.x.count : 1);
  const float inverse_features = 1.0f / static_cast<float>(plan.features);
  const int64_t step = plan.blocks * blockDim.y;
  const int64_t first_row = block.index * blockDim.y + threadIdx.y;
  float* partial = plan.partials;
  if (partial != nullptr) {
    partial += first_row * plan.features;
    for (int64_t i = threadIdx.x; i < plan.features; i += blockDim.x) partial[i] = 0.0f;
    __syncthreads();  // Others of the row's threads add to what this one has cleared.
  }
  uint32_t turn = 0;
  for (int64_t base = block.index * blockDim.y; base < plan.rows; base += step, ++turn) {
    const RowAt row(call, side, plan.rows, base + threadIdx.y);
    const X* x_row = row.Of<const X>(side.x);
    const Y* dy_row = row.Of<const Y>(side.upstream);
    const auto load = [&](const PairAt& pair, float(&x)[2][1], float(&dv)[2][1],
                          float(&scale)[2][1]) {
      const RotarySlot& slot = pair.place.slot;
      pair.Load(x_row, side.x.head_stride, x);
      pair.Load(dy_row, side.upstream.head_stride, dv);
      LoadScale<1>(side.weight, norm.offset, pair.head * r.dim, slot, scale);
      const auto factors = LoadRotaryFactors<X, 1, false>(r, false, row.batch, row.position, slot);
      Rotate<Y, false>(r, slot, factors, dv);
      RoundRuns<Y, 1>(dv);
    };
    float x[2][1];
    float dv[2][1];
    float scale[2][1];
    RowSums<2> sums = {};
    for (int64_t p = threadIdx.x; row.active && p < pairs; p += blockDim.x) {
      const PairAt pair(r, plans.slots, p);
      load(pair, x, dv, scale);
      const RowSums<2> part = SumProducts<1>(x, dv, scale, pair.place, true);
      sums.value[0] += part.value[0];
      sums.value[1] += part.value[1];
    }
    const float2 total =
        rms_norm::RowSumPair<false>(make_float2(sums.value[0], sums.value[1]), &shared, turn);
    const RowFactors row_factors({{total.x, total.y}}, inverse_features, norm.eps);
    for (int64_t p = threadIdx.x; row.active && p < pairs; p += blockDim.x) {
      const PairAt pair(r, plans.slots, p);
      float dscale[2][1] = {};
      load(pair, x, dv, scale);
      BackwardRuns<X, 1>(norm, row_factors, dv, scale, x, dscale);
      if (side.out.base != nullptr) {
        StoreRuns<X, 1>(row.Of<X>(side.out) + pair.head * side.out.head_stride, pair.place, x);
      }
      if (partial == nullptr) continue;
      float* sum = partial + pair.head * r.dim;
      sum[pair.place.slot.first] += dscale[0][0];
      if (pair.place.has[1]) sum[pair.place.slot.second] += dscale[1][0];
    }
  }
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_LOOPING_CUH_
