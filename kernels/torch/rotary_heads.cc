#include "kernels/torch/rotary_heads.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/torch/checks.h"
#include "kernels/torch/device.h"

namespace fuseboard::torch_binding {
namespace {

// A guard under torch.compile; false where the sizes are not known until the code runs.
bool Holds(const c10::SymBool& condition) {
  return condition.has_hint() && condition.guard_bool(__FILE__, __LINE__);
}

void CheckHeads(const char* operation, const char* name, const at::Tensor& heads) {
  CheckFloating(operation, name, heads);
  TORCH_CHECK(heads.dim() == 3 || heads.dim() == 4, operation, ": ", name, " has ", heads.dim(),
              " dimensions, want 3 or 4: (batch), heads, positions, dim");
}

void CheckTable(const char* operation, const char* name, const at::Tensor& q,
                const at::Tensor& table, const RotaryOptions& options) {
  CheckFloating(operation, name, table);
  CheckSameDevice(operation, "q", q, name, table);
  const int64_t streams = options.sections.empty() ? 0 : 1;
  const int64_t dim = table.dim() - streams;
  TORCH_CHECK(dim == 2 || dim == 3, operation, ": ", name, " has ", table.dim(),
              " dimensions, want ", 2 + streams, " or ", 3 + streams);
  if (streams > 0) {
    CheckSize(operation, "the number of sections", static_cast<int64_t>(options.sections.size()),
              "the number of streams of a table", table.sym_size(0));
  }
  CheckSize(operation, "the number of positions of a table", table.sym_size(-2),
            "that of the heads", q.sym_size(-2));
  const c10::SymInt width = table.sym_size(-1);
  TORCH_SYM_CHECK(width.sym_eq(options.rotary_dim).sym_or(width.sym_eq(options.rotary_dim / 2)),
                  operation, ": ", name, " has ", width, " columns, want ", options.rotary_dim,
                  " or ", options.rotary_dim / 2);
  if (dim == 2) return;
  const c10::SymInt batch = q.dim() == 4 ? q.sym_size(0) : c10::SymInt(1);
  const c10::SymInt rows = table.sym_size(-3);
  TORCH_SYM_CHECK(rows.sym_eq(1).sym_or(rows.sym_eq(batch)), operation, ": ", name,
                  " has a batch of ", rows, ", want 1 or ", batch);
}

// Whether `inner` and `outer` must change places; nothing if neither order is better.
std::optional<bool> LiesInside(const at::Tensor& heads, int64_t inner, int64_t outer) {
  for (const int64_t dim : {inner, outer}) {
    if (Holds(heads.sym_size(dim).sym_eq(1)) || Holds(heads.sym_stride(dim).sym_eq(0))) {
      return std::nullopt;
    }
  }
  if (Holds(heads.sym_stride(inner).sym_lt(heads.sym_stride(outer)))) return true;
  if (Holds(heads.sym_stride(inner).sym_gt(heads.sym_stride(outer)))) return false;
  return std::nullopt;
}

// Dense strides of `sizes` in `order`.
template <typename Int>
c10::SmallVector<Int, 4> StridesOf(at::ArrayRef<Int> sizes, at::IntArrayRef order) {
  c10::SmallVector<Int, 4> strides(sizes.size(), Int(1));
  // As LibTorch does, a size of 0 counts as 1, so that strides do not become 0.
  const auto at_least_one = [](const Int& size) {
    if constexpr (std::is_same_v<Int, int64_t>) {
      return std::max<int64_t>(size, 1);
    } else {
      return size.max(1);
    }
  };
  Int next = at_least_one(sizes.back());
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = next;
    next = next * at_least_one(sizes[order[i]]);
  }
  return strides;
}

}  // namespace

FbRopeParams RotaryOptions::params() const {
  FbRopeParams result = {};
  result.struct_size = sizeof(FbRopeParams);
  result.interleaved = interleaved ? 1 : 0;
  result.round_products = round_products ? 1 : 0;
  result.rotary_dim = rotary_dim;
  std::copy(sections.begin(), sections.end(), result.sections);
  return result;
}

void CheckRotary(const char* operation, const at::Tensor& q, const std::optional<at::Tensor>& k,
                 const at::Tensor& cos, const at::Tensor& sin, const RotaryOptions& options) {
  CheckHeads(operation, "q", q);
  if (k.has_value()) {
    CheckHeads(operation, "k", *k);
    CheckSameDevice(operation, "q", q, "k", *k);
    CheckDim(operation, "k", *k, q.dim());
    for (int64_t dim = 0; dim < q.dim(); ++dim) {
      if (dim == q.dim() - 3) continue;  // Heads: fewer in k under grouped-query attention.
      TORCH_SYM_CHECK(q.sym_size(dim).sym_eq(k->sym_size(dim)), operation, ": q has shape ",
                      q.sym_sizes(), " but k has shape ", k->sym_sizes());
    }
  }
  const int64_t rotary_dim = options.rotary_dim;
  TORCH_CHECK(rotary_dim >= 2 && rotary_dim % 2 == 0, operation, ": rotary_dim is ", rotary_dim,
              ", want an even number from 2 on");
  TORCH_SYM_CHECK(q.sym_size(-1).sym_ge(rotary_dim), operation, ": rotary_dim is ", rotary_dim,
                  " but a head has ", q.sym_size(-1), " elements");
  if (!options.sections.empty()) {
    const at::IntArrayRef s = options.sections;
    const bool fits = s.size() == 3 && std::all_of(s.begin(), s.end(), [&](int64_t size) {
                        return size >= 0 && size <= rotary_dim;
                      });
    TORCH_CHECK(fits && s[0] + s[1] + s[2] == rotary_dim / 2, operation, ": sections are ", s,
                ", want three that add up to ", rotary_dim / 2);
  }
  CheckTable(operation, "cos", q, cos, options);
  CheckTable(operation, "sin", q, sin, options);
}

std::vector<int64_t> HeadOrderOf(const at::Tensor& heads) {
  std::vector<int64_t> order(static_cast<size_t>(heads.dim() - 1));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    for (size_t j = i; j-- > 0;) {
      const std::optional<bool> inside = LiesInside(heads, order[j], order[at]);
      if (!inside.has_value()) continue;
      if (!*inside) break;
      std::swap(order[j], order[at]);
      at = j;
    }
  }
  return order;
}

at::Tensor EmptyHeads(at::IntArrayRef sizes, at::IntArrayRef order, at::ScalarType dtype,
                      c10::Device device) {
  at::Tensor heads = Empty(sizes, dtype, device);
  heads.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, StridesOf(sizes, order));
  return heads;
}

at::Tensor EmptyHeadsMeta(c10::SymIntArrayRef sizes, at::IntArrayRef order,
                          const at::TensorOptions& options) {
  return at::empty_strided_symint(sizes, StridesOf(sizes, order), options);
}

HeadsView::HeadsView(const at::Tensor& heads) {
  if (heads.size(-1) > 1 && heads.stride(-1) != 1) copy_ = heads.contiguous();
  view_ = ViewOf(copy_.defined() ? copy_ : heads);
  // Without elements a tensor counts as contiguous, whatever its strides.
  if (heads.numel() == 0) view_.stride[view_.ndim - 1] = 1;
  if (view_.ndim == 4) return;
  std::copy_backward(view_.shape, view_.shape + 3, view_.shape + 4);
  std::copy_backward(view_.stride, view_.stride + 3, view_.stride + 4);
  view_.shape[0] = 1;
  view_.stride[0] = 0;
  view_.ndim = 4;
}

FbTensor TableView(const at::Tensor& table, bool has_streams) {
  FbTensor view = ViewOf(table);
  // The last two dimensions are there; those of size 1 come in front of them.
  const auto insert = [&](int at) {
    std::copy_backward(view.shape + at, view.shape + view.ndim, view.shape + view.ndim + 1);
    std::copy_backward(view.stride + at, view.stride + view.ndim, view.stride + view.ndim + 1);
    view.shape[at] = 1;
    view.stride[at] = 0;
    ++view.ndim;
  };
  if (!has_streams) insert(0);
  if (view.ndim == 3) insert(1);
  return view;
}

}  // namespace fuseboard::torch_binding
