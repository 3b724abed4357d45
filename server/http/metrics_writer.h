// Writes the Prometheus text format (version 0.0.4): families with HELP and TYPE, samples with
// escaped labels. One writer per scrape; not thread-safe. Knows nothing of what it writes.
//
//   MetricsWriter writer;
//   writer.Family("fuseboard_revision", MetricType::kGauge, "Revision of the configuration.");
//   writer.Sample({}, 7);

#ifndef SERVER_HTTP_METRICS_WRITER_H_
#define SERVER_HTTP_METRICS_WRITER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace fuseboard {

enum class MetricType { kCounter, kGauge, kHistogram };

class MetricsWriter {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Begins a family; its samples follow. A family without a sample leaves no trace on the page:
  // what cannot be read is absent, not zero.
  void Family(absl::string_view name, MetricType type, absl::string_view help);

  // One sample of the current family. REQUIRES: Family was called.
  void Sample(const Labels& labels, double value);

  // The buckets, sum and count of one histogram of the current family. `counts` has one entry per
  // bound and one more for what is above the last; entries are not cumulative.
  void Histogram(const Labels& labels, const std::vector<double>& bounds,
                 const std::vector<uint64_t>& counts, double sum);

  [[nodiscard]] const std::string& Text() const { return text_; }

 private:
  void Line(absl::string_view suffix, const Labels& labels, double value);

  std::string name_;
  std::string header_;  // Of the current family, until its first sample.
  std::string text_;
};

// "+Inf", "NaN", whole numbers without a point, else the shortest text that reads back the same.
std::string FormatMetricValue(double value);

}  // namespace fuseboard

#endif  // SERVER_HTTP_METRICS_WRITER_H_
