// The rows whose target is not ignored, so that the others cost no GEMM.
//
// On CUDA the host learns their number from an asynchronous copy that the constructor starts; Wait
// blocks on that copy's event alone, the only wait in this binding. While a CUDA graph is captured
// nothing may wait and the number may differ at each replay, and of few rows the wait costs more
// than the GEMMs could save: then every row counts as supervised, and the loss kernel masks the
// ignored ones.

#ifndef KERNELS_TORCH_SUPERVISED_ROWS_H_
#define KERNELS_TORCH_SUPERVISED_ROWS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace fuseboard::torch_binding {

// Up to about here a GEMM with the head takes what reading the head takes, however many rows it
// has, so that leaving some out gains nothing. H200, loss and gradients of 64 rows of 4096 x
// 128256: 0.99 ms where the host waits, 0.87 where it does not.
inline constexpr int64_t kFewRows = 256;

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

  // The numbers of the supervised rows, ascending; undefined if all are.
  const at::Tensor& index() const { return index_; }

  // Rows [begin, begin + count) of the supervised rows of `full`; a view if all are supervised.
  at::Tensor Take(const at::Tensor& full, int64_t begin, int64_t count) const;

  // `rows`, a matrix that Take gave for `begin`, with 0 in those that are ignored, if there can be
  // any: their gradient is 0, but 0 times what they hold might be NaN.
  at::Tensor WithoutIgnored(const at::Tensor& rows, int64_t begin) const;

  // Writes `rows` to where Take would read them.
  void Put(const at::Tensor& full, int64_t begin, const at::Tensor& rows) const;

 private:
  int64_t count_;
  at::Tensor index_;
  at::Tensor ignored_;  // [rows, 1], only where nothing waits.
  at::Tensor host_count_;
  std::optional<c10::Event> counted_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_SUPERVISED_ROWS_H_
