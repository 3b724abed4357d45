#include "server/fusectl/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace fuseboard::fusectl {
namespace {

// Characters, not bytes: UTF-8 continuation bytes take no column.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string Pad(absl::string_view text, size_t width, Align align) {
  const std::string spaces(width - Width(text), ' ');
  return align == Align::kLeft ? absl::StrCat(text, spaces) : absl::StrCat(spaces, text);
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) {
    // What others wrote (job names, reasons) must not move the cursor of an operator's terminal.
    cell = cell.empty() ? "-" : absl::Utf8SafeCHexEscape(cell);
  }
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  widths.reserve(columns_.size());
  for (const Column& column : columns_) widths.push_back(Width(column.title));
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  const auto append = [&](auto&& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      absl::StrAppend(&line, i == 0 ? "" : "  ", Pad(cell_of(i), widths[i], columns_[i].align));
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&out, line, "\n");
  };
  append([&](size_t i) { return columns_[i].title; });
  for (const std::vector<std::string>& row : rows_) append([&](size_t i) { return row[i]; });
  return out;
}

}  // namespace fuseboard::fusectl
