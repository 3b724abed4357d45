#include "server/store/sqlite_statement.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "server/common/status_macros.h"

namespace fuseboard {

absl::Status SqliteStatus(int code, absl::string_view path, absl::string_view message) {
  const std::string text = absl::StrCat("store ", path, ": ", message);
  switch (code & 0xff) {  // The low byte is the primary code.
    case SQLITE_OK:
      return absl::OkStatus();
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::FailedPreconditionError(
          absl::StrCat(text, "; the file is damaged and was left as it is: restore or move it"));
    default:
      return WithReason(absl::UnavailableError(text), kStore, {{"path", path}});
  }
}

void SqliteStatement::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

absl::StatusOr<SqliteStatement> SqliteStatement::Prepare(sqlite3* connection,
                                                         absl::string_view path,
                                                         absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code =
      sqlite3_prepare_v2(connection, sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return SqliteStatus(code, path, sqlite3_errmsg(connection));
  return SqliteStatement(connection, path, statement);
}

SqliteStatement& SqliteStatement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_.get(), ++bound_, value);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(absl::string_view value) {
  // A null pointer would bind NULL; an empty view may have one.
  const char* const bytes = value.empty() ? "" : value.data();
  sqlite3_bind_blob64(statement_.get(), ++bound_, bytes, value.size(), SQLITE_TRANSIENT);
  return *this;
}

SqliteStatement& SqliteStatement::BindNull() {
  sqlite3_bind_null(statement_.get(), ++bound_);
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return SqliteStatus(code, path_, sqlite3_errmsg(connection_));
}

absl::Status SqliteStatement::Run() {
  while (true) {
    FB_ASSIGN_OR_RETURN(const bool row, Step());
    if (!row) return absl::OkStatus();
  }
}

int64_t SqliteStatement::Integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string SqliteStatement::Text(int column) const {
  const void* const bytes = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return size == 0 ? "" : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool SqliteStatement::IsNull(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

absl::Status RunSql(sqlite3* connection, absl::string_view path, const std::string& sql) {
  const int code = sqlite3_exec(connection, sql.c_str(), nullptr, nullptr, nullptr);
  return SqliteStatus(code, path, sqlite3_errmsg(connection));
}

}  // namespace fuseboard
