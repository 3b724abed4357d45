#include "server/store/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/common/error_reason.h"
#include "server/common/file_reader.h"
#include "server/common/status_macros.h"
#include "server/store/sqlite_statement.h"

namespace fuseboard {
namespace {

constexpr int64_t kSchemaVersion = 1;

// `change_log` is what watches resume from; it is cut to Options::kept_changes.
constexpr char kSchema[] = R"(
  CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
  CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL)
    WITHOUT ROWID;
  CREATE TABLE change_log (revision INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB);
  CREATE TABLE audit (revision INTEGER PRIMARY KEY, record BLOB NOT NULL);
  INSERT INTO meta VALUES ('revision', 1);
)";

std::string RandomId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

// Creates the file with mode 0600, so that SQLite's own default mode never applies: kills and
// authors are nobody else's business. SQLite gives -wal and -shm the mode of the file.
absl::Status CreatePrivateFile(const std::string& path) {
  const OwnedFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) {
    return SqliteStatus(SQLITE_CANTOPEN, path, ErrnoStatus(errno, "open").message());
  }
  return absl::OkStatus();
}

}  // namespace

// Removes the callback from the store's list, under the lock under which callbacks run.
class SqliteStore::Registration : public ConfigStore::Watch {
 public:
  Registration(SqliteStore* store, std::list<ChangeCallback>::iterator position)
      : store_(store), position_(position) {}
  ~Registration() override {
    absl::MutexLock lock(&store_->mutex_);
    store_->callbacks_.erase(position_);
  }

 private:
  SqliteStore* const store_;
  const std::list<ChangeCallback>::iterator position_;
};

void SqliteStore::CloseConnection::operator()(sqlite3* connection) const {
  sqlite3_close(connection);
}

SqliteStore::SqliteStore(Options options, std::unique_ptr<sqlite3, CloseConnection> connection)
    : options_(std::move(options)), connection_(std::move(connection)) {}

SqliteStore::~SqliteStore() = default;

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const Options& options) {
  FB_RETURN_IF_ERROR(CreatePrivateFile(options.path));
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(options.path.c_str(), &raw,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<sqlite3, CloseConnection> connection(raw);
  if (code != SQLITE_OK) return SqliteStatus(code, options.path, sqlite3_errstr(code));
  sqlite3_busy_timeout(raw, options.busy_timeout_ms);
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(options, std::move(connection)));
  absl::MutexLock lock(&store->mutex_);
  FB_RETURN_IF_ERROR(store->Initialise());
  return store;
}

absl::StatusOr<int64_t> SqliteStore::CheckFile() {
  sqlite3* const connection = connection_.get();
  const std::string& path = options_.path;
  // quick_check skips only the comparison of indexes with tables; these tables have no index.
  FB_ASSIGN_OR_RETURN(SqliteStatement check,
                      SqliteStatement::Prepare(connection, path, "PRAGMA quick_check(1)"));
  FB_ASSIGN_OR_RETURN(const bool checked, check.Step());
  if (!checked || check.Text(0) != "ok") {
    return SqliteStatus(SQLITE_CORRUPT, path, checked ? check.Text(0) : "no answer");
  }
  FB_ASSIGN_OR_RETURN(SqliteStatement schema,
                      SqliteStatement::Prepare(connection, path,
                                               "SELECT user_version, (SELECT count(*) FROM"
                                               " sqlite_master) FROM pragma_user_version"));
  FB_ASSIGN_OR_RETURN(const bool has_schema, schema.Step());
  const int64_t version = has_schema ? schema.Integer(0) : 0;
  if (version != 0 && version != kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path, " has schema version ", version, ", want ", kSchemaVersion));
  }
  if (version == 0 && has_schema && schema.Integer(1) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path, " is of another program: it has tables and no version"));
  }
  return version;
}

absl::Status SqliteStore::Initialise() {
  sqlite3* const connection = connection_.get();
  const std::string& path = options_.path;
  // Before anything is written: the journal's mode stands in the file, too.
  FB_ASSIGN_OR_RETURN(const int64_t version, CheckFile());
  FB_RETURN_IF_ERROR(
      RunSql(connection, path, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL"));
  if (version == 0) {
    FB_RETURN_IF_ERROR(
        RunSql(connection, path,
               absl::StrCat("BEGIN IMMEDIATE;", kSchema, "INSERT INTO meta VALUES ('store_id', '",
                            RandomId(), "'); PRAGMA user_version = ", kSchemaVersion, "; COMMIT")));
  }
  FB_ASSIGN_OR_RETURN(
      SqliteStatement id,
      SqliteStatement::Prepare(connection, path, "SELECT value FROM meta WHERE name = 'store_id'"));
  FB_ASSIGN_OR_RETURN(const bool has_id, id.Step());
  if (!has_id) return SqliteStatus(SQLITE_CORRUPT, path, "it has no store id");
  store_id_ = id.Text(0);
  return Revision().status();
}

absl::StatusOr<int64_t> SqliteStore::Revision() {
  FB_ASSIGN_OR_RETURN(SqliteStatement statement,
                      SqliteStatement::Prepare(connection_.get(), options_.path,
                                               "SELECT value FROM meta WHERE name = 'revision'"));
  FB_ASSIGN_OR_RETURN(const bool row, statement.Step());
  if (!row) return SqliteStatus(SQLITE_CORRUPT, options_.path, "it has no revision");
  return statement.Integer(0);
}

absl::StatusOr<StoreListing> SqliteStore::List(absl::string_view prefix) {
  absl::MutexLock lock(&mutex_);
  StoreListing listing;
  // One connection under one mutex: nothing changes between these two reads.
  FB_ASSIGN_OR_RETURN(listing.revision, Revision());
  FB_ASSIGN_OR_RETURN(SqliteStatement statement,
                      SqliteStatement::Prepare(connection_.get(), options_.path,
                                               "SELECT key, value, revision FROM entries"
                                               " WHERE substr(key, 1, ?1) = ?2 ORDER BY key"));
  statement.Bind(static_cast<int64_t>(prefix.size())).Bind(prefix);
  while (true) {
    FB_ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return listing;
    listing.entries.push_back({statement.Text(0), statement.Text(1), statement.Integer(2)});
  }
}

absl::StatusOr<int64_t> SqliteStore::Put(absl::string_view key, absl::string_view value,
                                         const StoreCommit& commit) {
  return Mutate({0, std::string(key), false, std::string(value)}, commit);
}

absl::StatusOr<int64_t> SqliteStore::Delete(absl::string_view key, const StoreCommit& commit) {
  return Mutate({0, std::string(key), true, ""}, commit);
}

absl::StatusOr<int64_t> SqliteStore::Mutate(const StoreChange& change, const StoreCommit& commit) {
  absl::MutexLock lock(&mutex_);
  sqlite3* const connection = connection_.get();
  absl::StatusOr<int64_t> revision = WriteInTransaction(change, commit);
  // After a failed commit SQLite may or may not have rolled back by itself.
  if (!revision.ok() && sqlite3_get_autocommit(connection) == 0) {
    sqlite3_exec(connection, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  if (revision.ok()) {
    health_ = absl::OkStatus();
    StoreChange seen = change;
    seen.revision = *revision;
    for (const ChangeCallback& callback : callbacks_) callback(seen);
  } else if (absl::IsUnavailable(revision.status())) {
    health_ = revision.status();
  }
  return revision;
}

absl::StatusOr<int64_t> SqliteStore::WriteInTransaction(const StoreChange& change,
                                                        const StoreCommit& commit) {
  sqlite3* const connection = connection_.get();
  const std::string& path = options_.path;
  const auto prepare = [&](absl::string_view sql) {
    return SqliteStatement::Prepare(connection, path, sql);
  };
  FB_RETURN_IF_ERROR(RunSql(connection, path, "BEGIN IMMEDIATE"));
  FB_ASSIGN_OR_RETURN(const int64_t current, Revision());
  if (commit.expected_revision != 0 && commit.expected_revision != current) {
    return RevisionMismatch(commit.expected_revision, current);
  }
  const int64_t revision = current + 1;
  if (change.deleted) {
    FB_ASSIGN_OR_RETURN(SqliteStatement statement, prepare("DELETE FROM entries WHERE key = ?1"));
    FB_RETURN_IF_ERROR(statement.Bind(change.key).Run());
    if (sqlite3_changes(connection) == 0) {
      return absl::NotFoundError(absl::StrCat("store has no key ", change.key));
    }
  } else {
    FB_ASSIGN_OR_RETURN(SqliteStatement statement,
                        prepare("INSERT OR REPLACE INTO entries VALUES (?1, ?2, ?3)"));
    FB_RETURN_IF_ERROR(statement.Bind(change.key).Bind(change.value).Bind(revision).Run());
  }
  FB_ASSIGN_OR_RETURN(SqliteStatement log, prepare("INSERT INTO change_log VALUES (?1, ?2, ?3)"));
  log.Bind(revision).Bind(change.key);
  FB_RETURN_IF_ERROR((change.deleted ? log.BindNull() : log.Bind(change.value)).Run());
  FB_ASSIGN_OR_RETURN(SqliteStatement cut, prepare("DELETE FROM change_log WHERE revision <= ?1"));
  FB_RETURN_IF_ERROR(cut.Bind(revision - options_.kept_changes).Run());
  FB_ASSIGN_OR_RETURN(SqliteStatement audit, prepare("INSERT INTO audit VALUES (?1, ?2)"));
  FB_RETURN_IF_ERROR(audit.Bind(revision).Bind(commit.audit_record).Run());
  FB_ASSIGN_OR_RETURN(SqliteStatement meta,
                      prepare("UPDATE meta SET value = ?1 WHERE name = 'revision'"));
  FB_RETURN_IF_ERROR(meta.Bind(revision).Run());
  FB_RETURN_IF_ERROR(RunSql(connection, path, "COMMIT"));
  return revision;
}

absl::StatusOr<std::unique_ptr<ConfigStore::Watch>> SqliteStore::WatchFrom(
    int64_t revision, ChangeCallback callback) {
  absl::MutexLock lock(&mutex_);
  FB_ASSIGN_OR_RETURN(const int64_t current, Revision());
  if (revision > current) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot watch from revision ", revision, ", the store is at ", current));
  }
  FB_ASSIGN_OR_RETURN(SqliteStatement statement,
                      SqliteStatement::Prepare(connection_.get(), options_.path,
                                               "SELECT revision, key, value FROM change_log"
                                               " WHERE revision > ?1 ORDER BY revision"));
  statement.Bind(revision);
  std::vector<StoreChange> missed;
  while (true) {
    FB_ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) break;
    missed.push_back(
        {statement.Integer(0), statement.Text(1), statement.IsNull(2), statement.Text(2)});
  }
  // Every mutation is one row, so whatever lies between `revision` and the first row is gone.
  if (static_cast<int64_t>(missed.size()) != current - revision) {
    return WithReason(
        absl::OutOfRangeError(absl::StrCat("changes after revision ", revision,
                                           " are no longer kept; the store is at ", current)),
        kCompacted);
  }
  for (const StoreChange& change : missed) callback(change);
  callbacks_.push_back(std::move(callback));
  return std::make_unique<Registration>(this, std::prev(callbacks_.end()));
}

absl::StatusOr<std::vector<StoreAudit>> SqliteStore::ListAudit(int64_t before_revision, int limit) {
  absl::MutexLock lock(&mutex_);
  FB_ASSIGN_OR_RETURN(
      SqliteStatement statement,
      SqliteStatement::Prepare(connection_.get(), options_.path,
                               "SELECT revision, record FROM audit"
                               " WHERE ?1 = 0 OR revision < ?1 ORDER BY revision DESC LIMIT ?2"));
  statement.Bind(before_revision).Bind(int64_t{limit});
  std::vector<StoreAudit> records;
  while (true) {
    FB_ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return records;
    records.push_back({statement.Integer(0), statement.Text(1)});
  }
}

absl::Status SqliteStore::Health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

}  // namespace fuseboard
