#include "profiler/dynamic_cupti.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>

#include "profiler/activity_decoder.h"
#include "profiler/cupti_status.h"

namespace fuseboard::profiler {
namespace {

// 1 MiB holds about 5000 kernel records of 208 bytes: a buffer a step, seldom more.
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kBufferAlignment = 8;  // ACTIVITY_RECORD_ALIGNMENT.

constexpr CUpti_ActivityKind ToCupti(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kKernel:
      return CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;  // KIND_KERNEL would serialise the kernels.
    case ActivityKind::kCopy:
      return CUPTI_ACTIVITY_KIND_MEMCPY;
    case ActivityKind::kMemset:
      return CUPTI_ACTIVITY_KIND_MEMSET;
  }
  return CUPTI_ACTIVITY_KIND_INVALID;
}

// The copy in the process first, then where the loader and an installed toolkit have it.
void* OpenLibrary() {
  constexpr std::array<const char*, 3> kNames = {
      "libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"};
  if (void* present = dlopen(kNames[0], RTLD_NOW | RTLD_NOLOAD)) return present;
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

// No callback is ever enabled: the subscription is only a claim on the slot.
void CUPTIAPI IgnoreCallback(void* /*user*/, CUpti_CallbackDomain /*domain*/,
                             CUpti_CallbackId /*id*/, const void* /*params*/) {}

template <typename Function>
Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return OkStatus();
  return FailedPreconditionError(StrCat("libcupti lacks ", name));
}

}  // namespace

DynamicCupti& DynamicCupti::Instance() {
  static auto* const instance = new DynamicCupti();
  return *instance;
}

Status DynamicCupti::Load() {
  if (loaded_) return OkStatus();
  void* library = OpenLibrary();
  if (library == nullptr) {
    return {StatusCode::kFailedPrecondition,
            "libcupti.so.13 is not in this process or on this machine"};
  }
  if (Status found = FindFunctions(library); !found.ok()) return found;
  uint32_t version = 0;
  const CUptiResult result = cupti_.get_version(&version);
  if (result != CUPTI_SUCCESS) return CuptiStatus(result, "cuptiGetVersion");
  if (version / 10000 != kCuptiMajor) {
    return {StatusCode::kFailedPrecondition,
            StrCat("libcupti has major version ", version / 10000, ", want ", kCuptiMajor)};
  }
  loaded_ = true;
  return OkStatus();
}

Status DynamicCupti::FindFunctions(void* library) {
  Status first;
  first.Update(Find(library, "cuptiGetVersion", &cupti_.get_version));
  first.Update(Find(library, "cuptiSubscribe_v2", &cupti_.subscribe));
  first.Update(Find(library, "cuptiUnsubscribe", &cupti_.unsubscribe));
  first.Update(Find(library, "cuptiActivityRegisterCallbacks", &cupti_.register_callbacks));
  first.Update(Find(library, "cuptiActivityEnable", &cupti_.enable));
  first.Update(Find(library, "cuptiActivityDisable", &cupti_.disable));
  first.Update(Find(library, "cuptiActivityFlushAll", &cupti_.flush_all));
  first.Update(Find(library, "cuptiActivityGetNextRecord", &cupti_.get_next_record));
  first.Update(Find(library, "cuptiActivityGetNumDroppedRecords", &cupti_.get_dropped));
  first.Update(Find(library, "cuptiGetTimestamp", &cupti_.get_timestamp));
  return first;
}

Status DynamicCupti::Subscribe() {
  if (Status loaded = Load(); !loaded.ok()) return loaded;
  std::array<char, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN> holder = {};
  CUpti_SubscriberParams params = {};
  params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  params.subscriberName = "fuseboard";
  params.oldSubscriberName = holder.data();
  params.oldSubscriberSize = holder.size();
  const CUptiResult result = cupti_.subscribe(&subscriber_, IgnoreCallback, nullptr, &params);
  holder.back() = '\0';
  return CuptiStatus(result, "cuptiSubscribe_v2", holder.data());
}

Status DynamicCupti::Unsubscribe() {
  const CUptiResult result = cupti_.unsubscribe(subscriber_);
  subscriber_ = nullptr;
  return CuptiStatus(result, "cuptiUnsubscribe");
}

Status DynamicCupti::AttachSink(RecordSink* sink) {
  if (Status loaded = Load(); !loaded.ok()) return loaded;
  {
    std::scoped_lock lock(sink_mutex_);
    sink_ = sink;
  }
  // Each time: a client that came and went since has put his own callbacks there.
  return CuptiStatus(cupti_.register_callbacks(BufferRequested, BufferCompleted),
                     "cuptiActivityRegisterCallbacks");
}

void DynamicCupti::DetachSink() {
  std::scoped_lock lock(sink_mutex_);
  sink_ = nullptr;
}

Status DynamicCupti::Enable(ActivityKind kind) {
  return CuptiStatus(cupti_.enable(ToCupti(kind)), "cuptiActivityEnable");
}

Status DynamicCupti::Disable(ActivityKind kind) {
  return CuptiStatus(cupti_.disable(ToCupti(kind)), "cuptiActivityDisable");
}

Status DynamicCupti::Flush() {
  // Forced: an unforced flush keeps back a buffer with one unfinished record, and all others in it.
  return CuptiStatus(cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
}

StatusOr<uint64_t> DynamicCupti::TakeDropped() {
  size_t dropped = 0;
  const CUptiResult result = cupti_.get_dropped(/*context=*/nullptr, /*streamId=*/0, &dropped);
  if (result != CUPTI_SUCCESS) return CuptiStatus(result, "cuptiActivityGetNumDroppedRecords");
  return dropped;
}

StatusOr<uint64_t> DynamicCupti::NowNs() {
  uint64_t now_ns = 0;
  const CUptiResult result = cupti_.get_timestamp(&now_ns);
  if (result != CUPTI_SUCCESS) return CuptiStatus(result, "cuptiGetTimestamp");
  return now_ns;
}

void CUPTIAPI DynamicCupti::BufferRequested(uint8_t** buffer, size_t* size, size_t* max_records) {
  // A null buffer makes CUPTI drop, and count, the records.
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *max_records = 0;  // As many as fit.
}

void CUPTIAPI DynamicCupti::BufferCompleted(CUcontext /*context*/, uint32_t /*stream_id*/,
                                            uint8_t* buffer, size_t /*size*/, size_t valid_size) {
  if (buffer == nullptr) return;
  Instance().Deliver(buffer, valid_size);
  std::free(buffer);
}

void DynamicCupti::Deliver(uint8_t* buffer, size_t valid_size) {
  std::scoped_lock lock(sink_mutex_);
  if (sink_ == nullptr || valid_size == 0) return;
  CUpti_Activity* activity = nullptr;
  CUptiResult result = CUPTI_SUCCESS;
  while ((result = cupti_.get_next_record(buffer, valid_size, &activity)) == CUPTI_SUCCESS) {
    if (const auto record = DecodeActivity(*activity)) sink_->Add(*record);
  }
  // MAX_LIMIT_REACHED is the end of the buffer. Else an unknown number of records is lost: at
  // least 1.
  if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) sink_->AddDropped(1);
}

}  // namespace fuseboard::profiler
