#include "server/plans/snapshot_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/common/sha256.h"
#include "server/common/status_macros.h"
#include "server/common/utf8.h"

namespace fuseboard {

SnapshotSource::SnapshotSource(Config config)
    : config_(std::move(config)), catalog_(config_.catalog) {}

absl::StatusOr<std::unique_ptr<SnapshotSource>> SnapshotSource::Create(Config config) {
  auto source = std::unique_ptr<SnapshotSource>(new SnapshotSource(std::move(config)));
  int64_t revision = 0;
  {
    absl::MutexLock lock(&source->mutex_);
    source->libraries_ = source->config_.libraries->Scan();
    source->deny_ = source->config_.deny->Poll();
    FB_RETURN_IF_ERROR(source->Reload());
    revision = source->switches_->revision;
  }
  SnapshotSource* const raw = source.get();
  FB_ASSIGN_OR_RETURN(source->watch_,
                      source->config_.store->WatchFrom(
                          revision, [raw](const StoreChange&) { raw->OnStoreChange(); }));
  source->Refresh();
  return source;
}

Snapshot SnapshotSource::Current() {
  absl::MutexLock lock(&mutex_);
  bool stale = false;
  {
    absl::MutexLock listener_lock(&listener_mutex_);
    stale = stale_;
  }
  if (stale) TryReload();
  return Compose();
}

Snapshot SnapshotSource::Refresh() {
  absl::MutexLock lock(&mutex_);
  return RefreshLocked();
}

Snapshot SnapshotSource::Reconfigure(std::shared_ptr<const Catalog> catalog,
                                     const std::vector<std::string>& library_dirs) {
  absl::MutexLock lock(&mutex_);
  catalog_ = std::move(catalog);
  config_.libraries->SetFolders(library_dirs);
  return RefreshLocked();
}

Snapshot SnapshotSource::RefreshLocked() {
  libraries_ = config_.libraries->Scan();
  deny_ = config_.deny->Poll();
  TryReload();
  if (!store_problem_.ok()) return Compose();
  const absl::StatusOr<int> swept = SweepExpired(*config_.store, *switches_, config_.clock->Now());
  // What could not be deleted is expired all the same.
  if (!swept.ok()) store_problem_ = swept.status();
  if (swept.ok() && *swept > 0) TryReload();
  RecordNodeInputs();
  return Compose();
}

absl::Status SnapshotSource::Reload() {
  FB_ASSIGN_OR_RETURN(Switches switches, LoadSwitches(*config_.store, config_.node));
  switches_ = std::make_shared<const Switches>(std::move(switches));
  return absl::OkStatus();
}

void SnapshotSource::TryReload() {
  {
    absl::MutexLock lock(&listener_mutex_);
    stale_ = false;
  }
  store_problem_ = Reload();
  if (store_problem_.ok()) return;
  absl::MutexLock lock(&listener_mutex_);
  stale_ = true;
}

void SnapshotSource::RecordNodeInputs() {
  const std::string inputs = NodeInputs();
  revision_stands_ = switches_->node_inputs == inputs;
  if (revision_stands_) return;
  v1::AuditRecord audit;
  audit.set_at_us(absl::ToUnixMicros(config_.clock->Now()));
  audit.set_action("NodeChange");
  audit.set_operation("*");
  audit.mutable_scope()->set_kind(v1::SCOPE_KIND_NODE);
  audit.set_author("fuseboardd");
  audit.set_reason("catalogue, libraries or deny file of this node are others than before");
  audit.set_before(switches_->node_inputs);
  audit.set_after(inputs);
  const absl::StatusOr<int64_t> written = config_.store->Put(
      NodeInputsKey(config_.node), inputs, {switches_->revision, audit.SerializeAsString()});
  // Someone was faster: the next Refresh, a second from now, looks again.
  if (absl::IsAborted(written.status())) return;
  store_problem_ = written.status();
  if (written.ok()) TryReload();
  revision_stands_ = store_problem_.ok() && switches_->node_inputs == inputs;
}

std::string SnapshotSource::NodeInputs() const {
  return absl::StrCat(
      "catalog ", catalog_->digest().substr(0, 16), ", libraries ",
      libraries_->digest().substr(0, 16), ", denied ",
      deny_->operations.empty() ? "nothing" : absl::StrJoin(deny_->operations, " "));
}

Snapshot SnapshotSource::Compose() const {
  return {catalog_, libraries_, switches_, deny_, config_.clock->Now(), config_.store->store_id()};
}

void SnapshotSource::OnStoreChange() {
  absl::MutexLock lock(&listener_mutex_);
  stale_ = true;
  if (listener_ != nullptr) listener_();
}

absl::Time SnapshotSource::NextExpiry() const {
  absl::MutexLock lock(&mutex_);
  return ::fuseboard::NextExpiry(*switches_, config_.clock->Now());
}

bool SnapshotSource::revision_stands() const {
  absl::MutexLock lock(&mutex_);
  return revision_stands_;
}

void SnapshotSource::SetListener(std::function<void()> listener) {
  absl::MutexLock lock(&listener_mutex_);
  listener_ = std::move(listener);
}

std::vector<std::string> SnapshotSource::Problems() const {
  std::vector<std::string> problems = config_.libraries->Problems();
  if (std::string problem = config_.deny->Problem(); !problem.empty()) {
    problems.push_back(std::move(problem));
  }
  absl::MutexLock lock(&mutex_);
  for (const Library& library : libraries_->libraries()) {
    if (!library.error.empty()) {
      problems.push_back(absl::StrCat(library.manifest.name(), ": ", library.error));
    }
  }
  if (!store_problem_.ok()) {
    problems.emplace_back(store_problem_.message());
  } else if (const absl::Status health = config_.store->Health(); !health.ok()) {
    problems.emplace_back(health.message());
  }
  // Some name files, and one that is not UTF-8 would make the whole status unreadable.
  for (std::string& problem : problems) problem = ToUtf8(problem);
  return problems;
}

}  // namespace fuseboard
