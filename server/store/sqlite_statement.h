// A prepared SQLite statement with the life time of a scope, and SQLite's codes as Status: the one
// file that knows how SQLite reports errors.

#ifndef SERVER_STORE_SQLITE_STATEMENT_H_
#define SERVER_STORE_SQLITE_STATEMENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace fuseboard {

// FailedPrecondition for a damaged or foreign file; else Unavailable (STORE): the disk is full,
// read only, broken, or the file is locked. Names `path`.
absl::Status SqliteStatus(int code, absl::string_view path, absl::string_view message);

class SqliteStatement {
 public:
  // REQUIRES: `connection` and `path` outlive the statement.
  static absl::StatusOr<SqliteStatement> Prepare(sqlite3* connection, absl::string_view path,
                                                 absl::string_view sql);

  // Binds parameters in order, beginning with ?1. Texts are bound as blobs, and are copied.
  SqliteStatement& Bind(int64_t value);
  SqliteStatement& Bind(absl::string_view value);
  SqliteStatement& BindNull();

  // Runs to the next row. False: there is none.
  absl::StatusOr<bool> Step();
  // Runs to the end.
  absl::Status Run();

  // Columns of the current row, from 0.
  int64_t Integer(int column) const;
  std::string Text(int column) const;
  bool IsNull(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  SqliteStatement(sqlite3* connection, absl::string_view path, sqlite3_stmt* statement)
      : connection_(connection), path_(path), statement_(statement) {}

  sqlite3* connection_;
  absl::string_view path_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

// Runs statements that have no parameters and no rows.
absl::Status RunSql(sqlite3* connection, absl::string_view path, const std::string& sql);

}  // namespace fuseboard

#endif  // SERVER_STORE_SQLITE_STATEMENT_H_
