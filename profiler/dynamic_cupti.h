// CUPTI, found at run time: the library links nothing of CUDA.
//
// The copy that the process already has (torch brings one) is shared; a second copy would have its
// own idea of who is subscribed. CUPTI keeps the callbacks it was given for the life of the
// process, so the one instance is never destroyed and its code must stay mapped.

#ifndef PROFILER_DYNAMIC_CUPTI_H_
#define PROFILER_DYNAMIC_CUPTI_H_

#include <cupti.h>

#include <mutex>

#include "profiler/cupti_api.h"
#include "profiler/status.h"

namespace fuseboard::profiler {

class DynamicCupti : public CuptiApi {
 public:
  // The process's instance: CUPTI's callbacks carry no user data, so there can be but one.
  static DynamicCupti& Instance();

  Status Subscribe() override;
  Status Unsubscribe() override;
  Status AttachSink(RecordSink* sink) override;
  void DetachSink() override;
  Status Enable(ActivityKind kind) override;
  Status Disable(ActivityKind kind) override;
  Status Flush() override;
  StatusOr<uint64_t> TakeDropped() override;
  StatusOr<uint64_t> NowNs() override;

 private:
  struct Functions {
    decltype(&cuptiGetVersion) get_version;
    decltype(&cuptiSubscribe_v2) subscribe;
    decltype(&cuptiUnsubscribe) unsubscribe;
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
    decltype(&cuptiActivityEnable) enable;
    decltype(&cuptiActivityDisable) disable;
    decltype(&cuptiActivityFlushAll) flush_all;
    decltype(&cuptiActivityGetNextRecord) get_next_record;
    decltype(&cuptiActivityGetNumDroppedRecords) get_dropped;
    decltype(&cuptiGetTimestamp) get_timestamp;
  };

  DynamicCupti() = default;

  // Finds the library and its functions, once it can. Errors: FailedPrecondition.
  Status Load();
  Status FindFunctions(void* library);

  static void CUPTIAPI BufferRequested(uint8_t** buffer, size_t* size, size_t* max_records);
  static void CUPTIAPI BufferCompleted(CUcontext context, uint32_t stream_id, uint8_t* buffer,
                                       size_t size, size_t valid_size);
  void Deliver(uint8_t* buffer, size_t valid_size);

  bool loaded_ = false;  // Guarded by the caller: calls come from one thread at a time.
  Functions cupti_ = {};
  CUpti_SubscriberHandle subscriber_ = nullptr;

  std::mutex sink_mutex_;  // Guards sink_: CUPTI's thread delivers to it.
  RecordSink* sink_ = nullptr;
};

}  // namespace fuseboard::profiler

#endif  // PROFILER_DYNAMIC_CUPTI_H_
