// The rows whose target is not ignored, so that the others cost no GEMM.
//
// On CUDA the host learns their number from an asynchronous copy that the constructor starts; Wait
// blocks on that copy's event alone, the only wait in this binding. While a CUDA graph is captured
// nothing may wait and the number may differ at each replay: then every row counts as supervised,
// and the loss kernel masks the ignored ones.

#ifndef KERNELS_TORCH_SUPERVISED_ROWS_H_
#define KERNELS_TORCH_SUPERVISED_ROWS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace fuseboard::torch_binding {

class SupervisedRows {
 public:
  // REQUIRES: target's device is current; `target` outlives this.
  SupervisedRows(const at::Tensor& target, int64_t ignore_index);

  // All of `rows` rows are supervised.
  explicit SupervisedRows(int64_t rows) : count_(rows) {}

  // Must be called once before what follows.
  void Wait();

  int64_t count() const { return count_; }
  bool all() const { return !index_.defined(); }

  // Rows [begin, begin + count) of the supervised rows of `full`; a view if all are supervised.
  at::Tensor Take(const at::Tensor& full, int64_t begin, int64_t count) const;

  // Writes `rows` to where Take would read them.
  void Put(const at::Tensor& full, int64_t begin, const at::Tensor& rows) const;

 private:
  int64_t count_;
  at::Tensor index_;  // Row numbers, ascending; undefined if all rows are supervised.
  at::Tensor host_count_;
  std::optional<c10::Event> counted_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_SUPERVISED_ROWS_H_
