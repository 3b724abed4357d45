// What was acknowledged is there after SIGKILL. The writer is a child process, which tells each
// revision through a pipe once the store has acknowledged it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "absl/strings/str_cat.h"
#include "server/store/sqlite_store.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::TemporaryFolder;

std::string KeyOf(int64_t revision) { return absl::StrCat("key/", revision); }
std::string ValueOf(int64_t revision) { return absl::StrCat("value ", revision); }

// Never returns. Writes key after key; any failure ends the child, and so the pipe, early.
[[noreturn]] void WriteUntilKilled(const std::string& path, int pipe) {
  auto store = SqliteStore::Open({.path = path});
  if (!store.ok()) _exit(1);
  auto start = (*store)->List("");
  if (!start.ok()) _exit(1);
  for (int64_t next = start->revision + 1;; ++next) {
    const auto revision =
        (*store)->Put(KeyOf(next), ValueOf(next), {0, absl::StrCat("audit ", next)});
    if (!revision.ok() || *revision != next) _exit(2);
    if (write(pipe, &*revision, sizeof *revision) != sizeof *revision) _exit(3);
  }
}

// Runs a writer, kills it after `acknowledgements` and returns the last revision that it told.
int64_t KillWriterAfter(const std::string& path, int acknowledgements) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    WriteUntilKilled(path, ends[1]);
  }
  close(ends[1]);
  int64_t told = 0;
  int64_t revision = 0;
  for (int count = 0; read(ends[0], &revision, sizeof revision) == sizeof revision;) {
    told = revision;  // Also what came between the signal and the end.
    if (++count == acknowledgements) {
      EXPECT_EQ(kill(child, SIGKILL), 0);
    }
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself with " << WEXITSTATUS(status);
  return told;
}

TEST(SqliteDurabilityTest, EverythingAcknowledgedIsThereAfterSigkill) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("store.db");
  std::string id;
  for (const int acknowledgements : {1, 7, 40}) {
    const int64_t told = KillWriterAfter(path, acknowledgements);
    ASSERT_GT(told, 1);
    auto store = SqliteStore::Open({.path = path});
    ASSERT_THAT(store, IsOk());
    const auto listing = (*store)->List("");
    ASSERT_THAT(listing, IsOk());
    EXPECT_GE(listing->revision, told);
    std::map<std::string, std::string> found;
    for (const StoreEntry& entry : listing->entries) found[entry.key] = entry.value;
    for (int64_t revision = 2; revision <= told; ++revision) {
      EXPECT_EQ(found[KeyOf(revision)], ValueOf(revision));
    }
    // Also what was written but not told of has its audit record, and nothing else has one.
    const auto audit = (*store)->ListAudit(0, 1000);
    ASSERT_THAT(audit, IsOk());
    EXPECT_EQ(static_cast<int64_t>(audit->size()), listing->revision - 1);
    EXPECT_EQ(audit->front().record, absl::StrCat("audit ", listing->revision));
    EXPECT_EQ(listing->entries.size(), audit->size());
    if (id.empty()) id = (*store)->store_id();
    EXPECT_EQ((*store)->store_id(), id);
  }
}

TEST(SqliteDurabilityTest, StoreWhoseCreationWasKilledCanBeOpened) {
  const TemporaryFolder folder;
  // What is there after open(2) and before the first transaction: an empty file.
  const std::string path = folder.Write("store.db", "");
  auto store = SqliteStore::Open({.path = path});
  ASSERT_THAT(store, IsOk());
  EXPECT_EQ((*store)->List("")->revision, 1);
}

}  // namespace
}  // namespace fuseboard
