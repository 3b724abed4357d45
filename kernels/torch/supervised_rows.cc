#include "kernels/torch/supervised_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/nonzero_static.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "kernels/torch/device.h"

namespace fuseboard::torch_binding {

SupervisedRows::SupervisedRows(const at::Tensor& target, int64_t ignore_index)
    : count_(target.size(0)) {
  if (count_ == 0) return;
  if (!target.is_cpu() && (count_ <= kFewRows || IsCapturing(target.device()))) {
    ignored_ = target.eq(ignore_index).unsqueeze(1);
    return;
  }
  const at::Tensor supervised = target.ne(ignore_index);
  if (target.is_cpu()) {
    index_ = at::nonzero(supervised).squeeze(1);
    return;
  }
  host_count_ = at::empty({1}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  host_count_.copy_(supervised.sum().reshape({1}), /*non_blocking=*/true);
  counted_.emplace(target.device().type());
  counted_->record(c10::impl::VirtualGuardImpl(target.device().type()).getStream(target.device()));
  index_ = at::nonzero_static(supervised, target.size(0)).squeeze(1);
}

void SupervisedRows::Wait() {
  if (!index_.defined()) return;
  const int64_t total = count_;
  if (counted_.has_value()) {
    counted_->synchronize();
    count_ = *host_count_.const_data_ptr<int64_t>();
  } else {
    count_ = index_.size(0);
  }
  index_ = count_ == total ? at::Tensor() : index_.narrow(0, 0, count_);
  // Right, and hardly ever meant.
  if (count_ == 0) {
    TORCH_WARN_ONCE("fuseboard: a loss has no row that counts, as all its ", total,
                    " targets are ignore_index: it is 0, and so are its gradients. Said once.");
  }
}

at::Tensor SupervisedRows::Take(const at::Tensor& full, int64_t begin, int64_t count) const {
  if (all()) return full.narrow(0, begin, count);
  return full.index_select(0, index_.narrow(0, begin, count));
}

at::Tensor SupervisedRows::WithoutIgnored(const at::Tensor& rows, int64_t begin) const {
  if (!ignored_.defined()) return rows;
  return rows.masked_fill(ignored_.narrow(0, begin, rows.size(0)), 0);
}

void SupervisedRows::Put(const at::Tensor& full, int64_t begin, const at::Tensor& rows) const {
  if (all()) {
    full.narrow(0, begin, rows.size(0)).copy_(rows);
  } else {
    const_cast<at::Tensor&>(full).index_copy_(0, index_.narrow(0, begin, rows.size(0)), rows);
  }
}

}  // namespace fuseboard::torch_binding
