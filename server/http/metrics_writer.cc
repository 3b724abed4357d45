#include "server/http/metrics_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace fuseboard {
namespace {

absl::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

std::string FormatLabels(const MetricsWriter::Labels& labels) {
  if (labels.empty()) return "";
  std::string out = "{";
  for (const auto& [name, value] : labels) {
    const std::string escaped =
        absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
    absl::StrAppend(&out, out.size() > 1 ? "," : "", name, "=\"", escaped, "\"");
  }
  absl::StrAppend(&out, "}");
  return out;
}

}  // namespace

std::string FormatMetricValue(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 64> buffer{};
  // 2^53: beyond it a double no longer holds every whole number.
  const bool whole = std::trunc(value) == value && std::abs(value) < 9007199254740992.0;
  const std::to_chars_result result =
      whole
          ? std::to_chars(buffer.data(), buffer.data() + buffer.size(), static_cast<int64_t>(value))
          : std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

void MetricsWriter::Family(absl::string_view name, MetricType type, absl::string_view help) {
  name_ = std::string(name);
  header_ =
      absl::StrCat("# HELP ", name, " ", absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}}),
                   "\n# TYPE ", name, " ", TypeName(type), "\n");
}

void MetricsWriter::Sample(const Labels& labels, double value) { Line("", labels, value); }

void MetricsWriter::Histogram(const Labels& labels, const std::vector<double>& bounds,
                              const std::vector<uint64_t>& counts, double sum) {
  uint64_t cumulative = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    Labels bucket = labels;
    bucket.emplace_back("le", i < bounds.size() ? FormatMetricValue(bounds[i]) : "+Inf");
    Line("_bucket", bucket, static_cast<double>(cumulative));
  }
  Line("_sum", labels, sum);
  Line("_count", labels, static_cast<double>(cumulative));
}

void MetricsWriter::Line(absl::string_view suffix, const Labels& labels, double value) {
  absl::StrAppend(&text_, header_, name_, suffix, FormatLabels(labels), " ",
                  FormatMetricValue(value), "\n");
  header_.clear();
}

}  // namespace fuseboard
