#include "kernels/modulated_rms_norm/modulated_rms_norm_cpu.h"

#include "kernels/rms_norm/rms_norm_cpu_rows.h"

namespace fuseboard::modulated_rms_norm::FB_CPU_ISA {
namespace {

using ::fuseboard::FB_CPU_ISA::RoundBlock;
using ::fuseboard::FB_CPU_ISA::StoreBlock;
using ::fuseboard::FB_CPU_ISA::ViewBlock;
using rms_norm::FB_CPU_ISA::AddProducts;
using rms_norm::FB_CPU_ISA::BlockLength;
using rms_norm::FB_CPU_ISA::GrainRows;
using rms_norm::FB_CPU_ISA::kBlock;
using rms_norm::FB_CPU_ISA::kLanes;
using rms_norm::FB_CPU_ISA::LoadOnePlusScale;
using rms_norm::FB_CPU_ISA::LoadWeight;
using rms_norm::FB_CPU_ISA::Row;
using rms_norm::FB_CPU_ISA::SumLanes;
using rms_norm::FB_CPU_ISA::SumRowBlocks;

// Where the sums of slices go: into the workspace in f32, or straight into the result if a group is
// one slice.
struct Sums {
  void* base;  // NULL: not needed.
  int32_t dtype;

  void Store(const float* values, int64_t index, int64_t n) const {
    if (base == nullptr) return;
    DispatchFloat(dtype, [&](auto tag) {
      using T = decltype(tag)::type;
      StoreBlock(values, static_cast<T*>(base) + index, n);
    });
  }
};

// Not std::min, of which the builds for all instruction sets would share one.
int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// One slice of one group. Its sums are row `sums` of [slices of a group, groups] of them, so that
// those of equal number lie one after the other.
struct Slice {
  int64_t group;
  int64_t begin;  // Rows.
  int64_t end;
  int64_t sums;
};

Slice SliceOf(const BackwardCall& b, const Slices& slices, int64_t index) {
  const int64_t group = index / slices.per_group;
  const int64_t slice = index % slices.per_group;
  const int64_t begin = group * b.group_rows + slice * slices.rows;
  const int64_t end = Least(begin + slices.rows, (group + 1) * b.group_rows);
  return {group, begin, end, slice * b.groups + group};
}

// What dy is multiplied with on its way to the normed value: (1 + scale) * (offset + weight).
void LoadFactor(const BackwardCall& b, int64_t group, int64_t at, int64_t n, float* out) {
  float weight[kBlock];
  LoadOnePlusScale(b.scale, group, at, n, out);
  LoadWeight(b.weight, b.norm.offset, at, n, weight);
  for (int64_t i = 0; i < n; ++i) out[i] *= weight[i];
}

// The mean of dy * factor * x * rstd over a row.
template <typename X, typename DY>
float MeanProduct(const BackwardCall& b, int64_t group, int64_t row) {
  const float rstd = static_cast<const float*>(b.rstd.data)[row];
  float x_buffer[kBlock];
  float dy_buffer[kBlock];
  float product[kBlock];
  float lanes[kLanes] = {};
  for (int64_t at = 0; at < b.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, b.norm.hidden);
    const float* xs = ViewBlock(Row<const X>(b.x, row) + at, x_buffer, n);
    const float* dys = ViewBlock(Row<const DY>(b.dy, row) + at, dy_buffer, n);
    LoadFactor(b, group, at, n, product);
    for (int64_t i = 0; i < n; ++i) product[i] *= dys[i];
    for (int64_t i = 0; i < n; ++i) x_buffer[i] = xs[i] * rstd;
    AddProducts(product, x_buffer, n, lanes);
  }
  return static_cast<float>(SumLanes(lanes) / static_cast<double>(b.norm.hidden));
}

// What a block of columns of a slice adds up to.
struct ColumnSums {
  float dy_normed[kBlock];
  float dy[kBlock];
};

// dx of `n` columns of a row if wanted, and the row's part of the sums.
template <typename X, typename DY>
void BackwardColumns(const BackwardCall& b, const float* means, const float* factor, int64_t row,
                     int64_t at, int64_t n, ColumnSums* sums) {
  const float rstd = static_cast<const float*>(b.rstd.data)[row];
  float normed[kBlock];
  float dy_buffer[kBlock];
  const float* xs = ViewBlock(Row<const X>(b.x, row) + at, normed, n);
  const float* dys = ViewBlock(Row<const DY>(b.dy, row) + at, dy_buffer, n);
  for (int64_t i = 0; i < n; ++i) normed[i] = xs[i] * rstd;
  if (!IsAbsent(b.dx)) {
    float dx[kBlock];
    const float mean = means[row];
    for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dys[i] * factor[i] - normed[i] * mean);
    StoreBlock(dx, Row<X>(b.dx, row) + at, n);
  }
  if (b.norm.round_normed) RoundBlock<X>(normed, n);
  for (int64_t i = 0; i < n; ++i) sums->dy_normed[i] += dys[i] * normed[i];
  for (int64_t i = 0; i < n; ++i) sums->dy[i] += dys[i];
}

// All of a slice; its part of dweight is added to `dweight` [hidden] unless that is NULL.
template <typename X, typename DY>
void BackwardSlice(const BackwardCall& b, const Slice& slice, float* means, const Sums& dscale,
                   const Sums& dshift, float* dweight) {
  if (!IsAbsent(b.dx)) {
    for (int64_t row = slice.begin; row < slice.end; ++row) {
      means[row] = MeanProduct<X, DY>(b, slice.group, row);
    }
  }
  float factor[kBlock];
  for (int64_t at = 0; at < b.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, b.norm.hidden);
    LoadFactor(b, slice.group, at, n, factor);
    ColumnSums sums = {};
    for (int64_t row = slice.begin; row < slice.end; ++row) {
      BackwardColumns<X, DY>(b, means, factor, row, at, n, &sums);
    }
    dshift.Store(sums.dy, slice.sums * b.norm.hidden + at, n);
    if (dweight != nullptr) {
      LoadOnePlusScale(b.scale, slice.group, at, n, factor);
      for (int64_t i = 0; i < n; ++i) dweight[at + i] += sums.dy_normed[i] * factor[i];
    }
    LoadWeight(b.weight, b.norm.offset, at, n, factor);
    for (int64_t i = 0; i < n; ++i) sums.dy_normed[i] *= factor[i];
    dscale.Store(sums.dy_normed, slice.sums * b.norm.hidden + at, n);
  }
}

template <typename X, typename DY>
void Backward(const FbCall& call, const BackwardCall& b, float* workspace) {
  const CpuPlan plan = CpuPlanOf(b.groups, b.group_rows);
  const CpuWorkspace at = CpuWorkspaceOf(b);
  const bool direct = plan.slices.per_group == 1;
  const auto sums_of = [&](const FbTensor& result, int64_t offset) -> Sums {
    if (IsAbsent(result)) return {nullptr, FB_F32};
    return direct ? Sums{result.data, result.dtype} : Sums{workspace + offset, FB_F32};
  };
  const Sums dscale = sums_of(b.dscale, at.dscale);
  const Sums dshift = sums_of(b.dshift, at.dshift);
  const int64_t part_rows = plan.part_slices * plan.slices.rows;
  const int64_t grain = GrainRows(b.norm.hidden) / (part_rows + 1) + 1;
  ParallelFor(call, plan.parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      float* dweight = nullptr;
      if (!IsAbsent(b.dweight)) {
        dweight = workspace + at.dweight + part * b.norm.hidden;
        __builtin_memset(dweight, 0, sizeof(float) * b.norm.hidden);
      }
      const int64_t first = part * plan.part_slices;
      const int64_t last = Least(first + plan.part_slices, plan.slice_count);
      for (int64_t slice = first; slice < last; ++slice) {
        BackwardSlice<X, DY>(b, SliceOf(b, plan.slices, slice), workspace + at.means, dscale,
                             dshift, dweight);
      }
    }
  });
  const auto finish = [&](const FbTensor& result, int64_t offset) {
    if (direct || IsAbsent(result)) return;
    SumRowBlocks(call, result, workspace + offset, plan.slices.per_group, b.groups * b.norm.hidden);
  };
  finish(b.dscale, at.dscale);
  finish(b.dshift, at.dshift);
  if (IsAbsent(b.dweight)) return;
  SumRowBlocks(call, b.dweight, workspace + at.dweight, plan.parts, b.norm.hidden);
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  return rms_norm::FB_CPU_ISA::RunForward(*call, ForwardOf(*call));
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  const BackwardCall b = BackwardOf(*call);
  DispatchFloat2(b.x.dtype, b.dy.dtype, [&](auto x_tag, auto dy_tag) {
    using X = decltype(x_tag)::type;
    using DY = decltype(dy_tag)::type;
    Backward<X, DY>(*call, b, static_cast<float*>(workspace));
  });
  return 0;
}

}  // namespace fuseboard::modulated_rms_norm::FB_CPU_ISA
