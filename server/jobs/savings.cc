// What two windows prove. Arithmetic only.

#include <map>
#include <optional>

#include "server/jobs/report_store.h"

namespace fuseboard {
namespace {

struct Pair {
  const v1::ReportWindowRequest* native = nullptr;
  const v1::ReportWindowRequest* plan = nullptr;
};

bool IsWhole(const v1::Window& window) {
  return window.error().empty() && window.dropped_records() == 0;
}

// Numbers got in different ways are not comparable, and a number without samples is none.
std::optional<double> Difference(bool has_native, const v1::Measurement& native, bool has_plan,
                                 const v1::Measurement& plan) {
  if (!has_native || !has_plan || native.method() != plan.method()) return std::nullopt;
  if (native.samples() < 1 || plan.samples() < 1) return std::nullopt;
  return native.value() - plan.value();
}

// The newest whole window of each variant, by rank.
std::map<int, Pair> PairsByRank(const std::deque<v1::ReportWindowRequest>& windows) {
  std::map<int, Pair> pairs;
  for (const v1::ReportWindowRequest& report : windows) {
    if (!IsWhole(report.window())) continue;
    Pair& pair = pairs[report.rank()];
    const bool native = report.window().variant() == v1::VARIANT_NATIVE;
    const v1::ReportWindowRequest*& side = native ? pair.native : pair.plan;
    if (side == nullptr) side = &report;
  }
  return pairs;
}

Pair ChoosePair(const std::deque<v1::ReportWindowRequest>& windows) {
  const std::map<int, Pair> pairs = PairsByRank(windows);
  for (const auto& [rank, pair] : pairs) {
    const bool comparable = pair.native != nullptr && pair.plan != nullptr &&
                            pair.native->device_name() == pair.plan->device_name();
    if (comparable) return pair;
  }
  if (pairs.empty()) return {};
  Pair pair = pairs.begin()->second;
  // Two kinds of device: only the plan's side is told.
  if (pair.native != nullptr && pair.plan != nullptr) pair.native = nullptr;
  return pair;
}

}  // namespace

v1::Savings ComputeSavings(const std::deque<v1::ReportWindowRequest>& windows) {
  v1::Savings savings;
  savings.set_job_name(windows.front().job_name());
  const Pair pair = ChoosePair(windows);
  const v1::ReportWindowRequest* const any = pair.plan != nullptr ? pair.plan : pair.native;
  savings.set_device_name(any != nullptr ? any->device_name() : windows.front().device_name());
  if (pair.native != nullptr) *savings.mutable_native() = pair.native->window();
  if (pair.plan != nullptr) *savings.mutable_plan() = pair.plan->window();
  if (pair.native == nullptr || pair.plan == nullptr) return savings;
  const v1::Window& native = savings.native();
  const v1::Window& plan = savings.plan();
  if (const auto saved = Difference(native.has_launches_per_step(), native.launches_per_step(),
                                    plan.has_launches_per_step(), plan.launches_per_step())) {
    savings.set_launches_per_step_saved(*saved);
  }
  if (const auto saved = Difference(native.has_peak_bytes(), native.peak_bytes(),
                                    plan.has_peak_bytes(), plan.peak_bytes())) {
    savings.set_peak_bytes_saved(*saved);
  }
  if (const auto saved =
          Difference(native.has_step_ms(), native.step_ms(), plan.has_step_ms(), plan.step_ms())) {
    savings.set_step_ms_saved(*saved);
  }
  return savings;
}

}  // namespace fuseboard
