#include "server/store/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::ReadBytes;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Texts(const absl::StatusOr<StoreListing>& listing) {
  EXPECT_THAT(listing, IsOk());
  std::vector<std::string> texts;
  for (const StoreEntry& entry : listing->entries) {
    texts.push_back(absl::StrCat(entry.key, "=", entry.value, "@", entry.revision));
  }
  return texts;
}

std::vector<std::string> Texts(const absl::StatusOr<std::vector<StoreAudit>>& audit) {
  EXPECT_THAT(audit, IsOk());
  std::vector<std::string> texts;
  for (const StoreAudit& record : *audit) {
    texts.push_back(absl::StrCat(record.record, "@", record.revision));
  }
  return texts;
}

// Runs SQL as another program would that has the file open.
class OtherProgram {
 public:
  explicit OtherProgram(const std::string& path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &connection_), SQLITE_OK);
  }
  ~OtherProgram() { sqlite3_close(connection_); }
  OtherProgram(const OtherProgram&) = delete;
  OtherProgram& operator=(const OtherProgram&) = delete;
  void Run(const std::string& sql) {
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK)
        << (error == nullptr ? "" : error);
    sqlite3_free(error);
  }

 private:
  sqlite3* connection_ = nullptr;
};

class SqliteStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen(int64_t kept_changes = 4096) {
    store_.reset();
    auto store = SqliteStore::Open({path_, kept_changes, /*busy_timeout_ms=*/0});
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
  }
  void ExpectUnchangedAt(int64_t revision) {
    EXPECT_EQ(store_->List("")->revision, revision);
    EXPECT_EQ(static_cast<int64_t>(store_->ListAudit(0, 1000)->size()), revision - 1);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("store.db");
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(SqliteStoreTest, NewStoreIsEmptyAtRevisionOne) {
  EXPECT_EQ(store_->List("")->revision, 1);
  EXPECT_THAT(store_->List("")->entries, IsEmpty());
  EXPECT_THAT(Texts(store_->ListAudit(0, 10)), IsEmpty());
  EXPECT_EQ(store_->store_id().size(), 32U);
  EXPECT_THAT(store_->Health(), IsOk());
}

TEST_F(SqliteStoreTest, FileIsPrivate) {
  struct stat stat {};
  ASSERT_EQ(::stat(path_.c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 07777, 0600U);
}

TEST_F(SqliteStoreTest, EveryMutationRaisesTheRevisionByOneWithOneAuditRecord) {
  EXPECT_EQ(*store_->Put("b", "1", {0, "put b"}), 2);
  EXPECT_EQ(*store_->Put("a", "2", {0, "put a"}), 3);
  EXPECT_EQ(*store_->Put("b", "3", {0, "again"}), 4);
  EXPECT_EQ(*store_->Delete("a", {0, "delete a"}), 5);
  EXPECT_THAT(Texts(store_->List("")), ElementsAre("b=3@4"));
  EXPECT_THAT(Texts(store_->ListAudit(0, 10)),
              ElementsAre("delete a@5", "again@4", "put a@3", "put b@2"));
}

TEST_F(SqliteStoreTest, AuditIsPagedFromTheNewest) {
  for (int i = 2; i <= 6; ++i) ASSERT_THAT(store_->Put("k", "v", {0, "x"}), IsOk());
  EXPECT_THAT(Texts(store_->ListAudit(0, 2)), ElementsAre("x@6", "x@5"));
  EXPECT_THAT(Texts(store_->ListAudit(5, 2)), ElementsAre("x@4", "x@3"));
  EXPECT_THAT(Texts(store_->ListAudit(2, 2)), IsEmpty());
}

TEST_F(SqliteStoreTest, ListTakesThePrefixLiterally) {
  for (const char* key : {"a/1", "a/2", "a%", "a_b", "b/1"}) {
    ASSERT_THAT(store_->Put(key, "v", {}), IsOk());
  }
  EXPECT_THAT(Texts(store_->List("a/")), ElementsAre("a/1=v@2", "a/2=v@3"));
  EXPECT_THAT(Texts(store_->List("a%")), ElementsAre("a%=v@4"));
  EXPECT_THAT(Texts(store_->List("a_")), ElementsAre("a_b=v@5"));
}

TEST_F(SqliteStoreTest, KeysAndValuesAreBytes) {
  const std::string bytes("\0\xff'\"; DROP TABLE entries; --", 28);
  ASSERT_THAT(store_->Put(bytes, bytes, {0, bytes}), IsOk());
  ASSERT_THAT(store_->Put("empty", "", {}), IsOk());
  Reopen();
  EXPECT_EQ(store_->List(bytes)->entries.at(0).value, bytes);
  EXPECT_EQ(store_->List("empty")->entries.at(0).value, "");
  EXPECT_EQ(store_->ListAudit(3, 1)->at(0).record, bytes);
}

TEST_F(SqliteStoreTest, ExpectedRevisionThatHoldsIsAccepted) {
  EXPECT_EQ(*store_->Put("k", "v", {1, "x"}), 2);
  EXPECT_EQ(*store_->Delete("k", {2, "x"}), 3);
}

TEST_F(SqliteStoreTest, RevisionMismatchNamesBothAndChangesNothing) {
  ASSERT_THAT(store_->Put("k", "v", {0, "x"}), IsOk());
  for (const absl::Status& status :
       {store_->Put("k", "w", {1, "y"}).status(), store_->Delete("k", {9, "y"}).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("2")));
    EXPECT_EQ(ReasonOf(status), "REVISION_MISMATCH");
  }
  EXPECT_THAT(store_->Put("k", "w", {1, "y"}).status().message(),
              AllOf(HasSubstr("1"), HasSubstr("2")));
  ExpectUnchangedAt(2);
  EXPECT_THAT(Texts(store_->List("")), ElementsAre("k=v@2"));
  EXPECT_THAT(store_->Health(), IsOk());
}

TEST_F(SqliteStoreTest, DeletingWhatIsNotThereIsNotFoundAndNoRevision) {
  EXPECT_THAT(store_->Delete("k", {0, "x"}),
              StatusIs(absl::StatusCode::kNotFound, "store has no key k"));
  ExpectUnchangedAt(1);
}

TEST_F(SqliteStoreTest, ChangeAndAuditRecordAreOneTransaction) {
  ASSERT_THAT(store_->Put("k", "v", {0, "x"}), IsOk());
  OtherProgram other(path_);
  other.Run(
      "CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'disk on fire'); END");
  for (const absl::Status& status :
       {store_->Put("k", "w", {0, "y"}).status(), store_->Delete("k", {0, "y"}).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 AllOf(HasSubstr(path_), HasSubstr("disk on fire"))));
    EXPECT_EQ(ReasonOf(status), "STORE");
  }
  ExpectUnchangedAt(2);
  EXPECT_THAT(Texts(store_->List("")), ElementsAre("k=v@2"));
  EXPECT_THAT(store_->Health(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("on fire")));
  other.Run("DROP TRIGGER full");
  EXPECT_EQ(*store_->Put("k", "w", {0, "y"}), 3);
  EXPECT_THAT(store_->Health(), IsOk());
}

TEST_F(SqliteStoreTest, LockedFileIsUnavailableAndChangesNothing) {
  OtherProgram other(path_);
  other.Run("BEGIN IMMEDIATE");
  const absl::Status status = store_->Put("k", "v", {0, "x"}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("locked")));
  EXPECT_EQ(ReasonOf(status), "STORE");
  other.Run("ROLLBACK");
  ExpectUnchangedAt(1);
  EXPECT_EQ(*store_->Put("k", "v", {0, "x"}), 2);
}

TEST_F(SqliteStoreTest, RevisionIdEntriesAndAuditSurviveReopening) {
  ASSERT_THAT(store_->Put("k", "v", {0, "x"}), IsOk());
  ASSERT_THAT(store_->Put("l", "w", {0, "y"}), IsOk());
  const std::string id = store_->store_id();
  Reopen();
  EXPECT_EQ(store_->store_id(), id);
  EXPECT_EQ(store_->List("")->revision, 3);
  EXPECT_THAT(Texts(store_->List("")), ElementsAre("k=v@2", "l=w@3"));
  EXPECT_THAT(Texts(store_->ListAudit(0, 10)), ElementsAre("y@3", "x@2"));
}

TEST_F(SqliteStoreTest, TwoStoresHaveTwoIds) {
  const auto other = SqliteStore::Open({.path = folder_.Path("other.db")});
  ASSERT_THAT(other, IsOk());
  EXPECT_NE((*other)->store_id(), store_->store_id());
}

TEST_F(SqliteStoreTest, WatchSeesWhatItMissedAndWhatComesEachOnceInOrder) {
  ASSERT_THAT(store_->Put("a", "1", {}), IsOk());
  ASSERT_THAT(store_->Put("b", "2", {}), IsOk());
  std::vector<std::string> seen;
  auto watch = store_->WatchFrom(2, [&](const StoreChange& change) {
    seen.push_back(absl::StrCat(change.revision, change.deleted ? " deleted " : " put ", change.key,
                                "=", change.value));
  });
  ASSERT_THAT(watch, IsOk());
  EXPECT_THAT(seen, ElementsAre("3 put b=2"));
  ASSERT_THAT(store_->Delete("a", {}), IsOk());
  EXPECT_FALSE(store_->Delete("a", {}).ok());
  EXPECT_THAT(seen, ElementsAre("3 put b=2", "4 deleted a="));
  watch->reset();
  ASSERT_THAT(store_->Put("c", "3", {}), IsOk());
  EXPECT_EQ(seen.size(), 2U);
}

TEST_F(SqliteStoreTest, WatchFromTheFutureIsRefused) {
  EXPECT_THAT(store_->WatchFrom(2, [](const StoreChange&) {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "cannot watch from revision 2, the store is at 1"));
}

TEST_F(SqliteStoreTest, WatchFromBeforeWhatIsKeptIsCompacted) {
  Reopen(/*kept_changes=*/2);
  for (int i = 0; i < 5; ++i) ASSERT_THAT(store_->Put("k", absl::StrCat(i), {}), IsOk());
  std::vector<std::string> seen;
  const auto note = [&](const StoreChange& change) { seen.push_back(change.value); };
  const auto lost = store_->WatchFrom(3, note);
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kOutOfRange,
                             "changes after revision 3 are no longer kept; the store is at 6"));
  EXPECT_EQ(ReasonOf(lost.status()), "COMPACTED");
  EXPECT_THAT(seen, IsEmpty());
  EXPECT_THAT(store_->WatchFrom(4, note), IsOk());
  EXPECT_THAT(seen, ElementsAre("3", "4"));
}

class RefusedFileTest : public ::testing::Test {
 protected:
  // Refused by name, and not one byte of it changed.
  void ExpectRefused(const std::string& path, const std::string& what) {
    const std::string before = ReadBytes(path);
    EXPECT_THAT(
        SqliteStore::Open({.path = path}),
        StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr(path), HasSubstr(what))));
    EXPECT_TRUE(ReadBytes(path) == before) << path << " was changed";
  }

  const TemporaryFolder folder_;
};

TEST_F(RefusedFileTest, FileThatIsNoDatabase) {
  ExpectRefused(folder_.Write("store.db", std::string(8192, 'x')), "left as it is");
}

TEST_F(RefusedFileTest, DamagedPage) {
  const std::string path = folder_.Path("store.db");
  {
    auto store = SqliteStore::Open({.path = path});
    ASSERT_THAT(store, IsOk());
    for (int i = 0; i < 64; ++i) {
      ASSERT_THAT((*store)->Put(absl::StrCat("key ", i), std::string(512, 'v'), {}), IsOk());
    }
  }
  std::string bytes = ReadBytes(path);
  ASSERT_GT(bytes.size(), 5U * 4096);
  for (size_t i = 4096; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ 0x5a);
  folder_.Write("store.db", bytes);
  ExpectRefused(path, "left as it is");
}

TEST_F(RefusedFileTest, CutFile) {
  const std::string path = folder_.Path("store.db");
  { ASSERT_THAT(SqliteStore::Open({.path = path}), IsOk()); }
  folder_.Write("store.db", ReadBytes(path).substr(0, 4096));
  ExpectRefused(path, "left as it is");
}

TEST_F(RefusedFileTest, NewerSchema) {
  const std::string path = folder_.Path("store.db");
  { OtherProgram(path).Run("CREATE TABLE meta (x); PRAGMA user_version = 2"); }
  ExpectRefused(path, "has schema version 2, want 1");
}

TEST_F(RefusedFileTest, DatabaseOfAnotherProgram) {
  const std::string path = folder_.Path("store.db");
  { OtherProgram(path).Run("CREATE TABLE bookmarks (url)"); }
  ExpectRefused(path, "is of another program");
}

TEST(SqliteStoreOpenTest, MissingFolderIsUnavailable) {
  const auto store = SqliteStore::Open({.path = "/nonexistent/store.db"});
  EXPECT_THAT(store, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nonexistent/store.db")));
  EXPECT_EQ(ReasonOf(store.status()), "STORE");
}

TEST(SqliteStoreOpenTest, FollowsNoLink) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder.Path("victim"), folder.Path("store.db"));
  EXPECT_THAT(SqliteStore::Open({.path = folder.Path("store.db")}),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(std::filesystem::exists(folder.Path("victim")));
}

}  // namespace
}  // namespace fuseboard
