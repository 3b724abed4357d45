// Text tables for people: columns as wide as their widest cell, two spaces apart, numbers to the
// right. Not thread-safe.

#ifndef SERVER_FUSECTL_TABLE_H_
#define SERVER_FUSECTL_TABLE_H_

#include <string>
#include <vector>

namespace fuseboard::fusectl {

enum class Align { kLeft, kRight };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: one cell per column. An empty cell is shown as "-": nothing is known, which is not 0.
  void AddRow(std::vector<std::string> cells);

  [[nodiscard]] bool Empty() const { return rows_.empty(); }

  // Titles and rows, without spaces at the ends of lines.
  [[nodiscard]] std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace fuseboard::fusectl

#endif  // SERVER_FUSECTL_TABLE_H_
