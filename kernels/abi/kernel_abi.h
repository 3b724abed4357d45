// The contract between a kernel library and whoever loads it: the LibTorch binding or a test.
//
// Plain C99 on purpose: no CUDA, torch or C++ header may be included here, so any process can load
// a kernel library without sharing our compiler or our dependencies. The daemon never loads one.
//
// One operation is one library is one exported symbol (FB_GET_KERNEL_SYMBOL). All entry points are
// thread-safe and reentrant; none throws, prints, allocates device memory or synchronises.
//
// Compatibility: FbTensor is frozen within one FB_ABI_VERSION. FbCall, FbEntry, FbKernel and the
// parameter structs begin with `struct_size`, and fields are only ever appended: a reader looks at
// a field only if `struct_size` covers it. FB_ABI_VERSION changes when a field is removed or
// changes meaning.

#ifndef KERNELS_ABI_KERNEL_ABI_H_
#define KERNELS_ABI_KERNEL_ABI_H_

#include <stdint.h>

#define FB_ABI_VERSION 1
#define FB_MAX_DIMS 5

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  FB_F32 = 0,
  FB_F16 = 1,
  FB_BF16 = 2,
  FB_F64 = 3,
  FB_I32 = 4,
  FB_I64 = 5,
  FB_BOOL = 6,
} FbDType;

typedef enum { FB_CPU = 0, FB_CUDA = 1, FB_NUM_DEVICE_TYPES = 2 } FbDeviceType;

typedef enum { FB_FORWARD = 0, FB_BACKWARD = 1, FB_NUM_PHASES = 2 } FbPhase;

// A strided view of memory on one device. Does not own `data`. Frozen.
//
// An optional tensor that is absent has `ndim == -1`; `data` is then NULL. (`data` may also be NULL
// for a tensor without elements.)
typedef struct {
  void* data;
  int64_t shape[FB_MAX_DIMS];
  int64_t stride[FB_MAX_DIMS];  // In elements, not bytes. 0 for an expanded dimension.
  int32_t ndim;
  int32_t dtype;         // An FbDType.
  int32_t device_type;   // An FbDeviceType.
  int32_t device_index;  // 0 for the CPU.
} FbTensor;

// Work on [begin, end). May be called from several threads at once for disjoint ranges.
typedef void (*FbRangeFn)(void* range_context, int64_t begin, int64_t end);

// The caller's thread pool: covers [begin, end) by disjoint calls of `fn`, each at least `grain`
// long where possible, and returns when all have ended. CPU entries use it and start no thread.
typedef void (*FbParallelForFn)(void* pool, int64_t begin, int64_t end, int64_t grain, FbRangeFn fn,
                                void* range_context);

// One call. The order and meaning of `inputs` and `outputs` and the type of `params` stand in the
// operation's own header, kernels/abi/<operation>.h.
typedef struct {
  uint32_t struct_size;  // sizeof(FbCall) of the caller.
  int32_t device_type;   // An FbDeviceType: where all tensors are.
  int32_t device_index;  // REQUIRES (CUDA): it is the calling thread's current device.
  int32_t sm;            // CUDA: 10 * major + minor of the device, e.g. 90. 0 on the CPU.
  int32_t sm_count;      // CUDA: number of multiprocessors. 0 on the CPU.
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_threads;  // CPU: how many threads `parallel_for` may use at most, at least 1.
  const FbTensor* inputs;
  const FbTensor* outputs;  // The views are const; the memory they point to is written.
  const void* params;       // The operation's parameter struct.
  void* stream;             // A cudaStream_t. The launch is ordered on it and never waits for it.
  FbParallelForFn parallel_for;  // CPU only; NULL means: run on the calling thread.
  void* pool;                    // First argument of `parallel_for`.
} FbCall;

// One phase of one operation on one kind of device. All pointers NULL: not implemented.
typedef struct {
  // Returns NULL if `call` can run, else a sentence with the offending values that says why not,
  // as "want ..., got ...". Looks at metadata only, never at tensor memory or the device. The
  // string stays valid until the same thread's next call into the same library.
  const char* (*reject_reason)(const FbCall* call);
  // Bytes of scratch memory, 256-byte aligned, that launch needs on the call's device. 0 is usual.
  // REQUIRES: reject_reason(call) == NULL.
  uint64_t (*workspace_bytes)(const FbCall* call);
  // Enqueues the work on call->stream (CUDA) or does it (CPU). Returns a cudaError_t; 0 is success,
  // and a problem of size zero is success. The workspace may be reused as soon as later work on
  // the same stream is enqueued. REQUIRES: reject_reason(call) == NULL.
  int32_t (*launch)(const FbCall* call, void* workspace);
} FbEntry;

typedef struct {
  uint32_t struct_size;  // sizeof(FbKernel) of the library.
  uint32_t abi_version;  // FB_ABI_VERSION of the library.
  const char* name;      // The operation's stem, e.g. "rms_norm".
  const char* version;   // Semantic version of the library, e.g. "0.1.0".
  // Loads every device function of the library on this device, so that nothing is loaded lazily
  // inside a training step. Returns a cudaError_t, 0 on success and always 0 for FB_CPU. May take
  // milliseconds; may synchronise; leaves the thread's current device as it was.
  int32_t (*prepare)(int32_t device_type, int32_t device_index);
  FbEntry entries[FB_NUM_PHASES][FB_NUM_DEVICE_TYPES];
  // For operations whose forward makes the gradient: multiplies one in place by the upstream
  // gradient. All pointers NULL: not implemented.
  //   inputs  0 factor [1] f32
  //   outputs 0 gradient [elements] f32, f16 or bf16, stride 1; each element is read, multiplied in
  //             f32 and rounded once; no byte is written if the factor is 1
  // `params` is not looked at.
  FbEntry rescale[FB_NUM_DEVICE_TYPES];
  // For losses of rows that are added up, with or without a mean; a library may refuse many rows.
  // All pointers NULL: not implemented.
  //   inputs  0 target [rows] i64 or i32; 1 class_weight [classes] f32, optional
  //   outputs 0 inverse [1] f32: 1 / the number of rows whose target is not ignore_index, or with
  //             class weights the sum of their targets' weights; 0 if that is 0
  // `params` is the ignore_index, an int64_t.
  FbEntry inverse_divisor[FB_NUM_DEVICE_TYPES];
  //   inputs  0 loss [rows] f32; 1 z_loss [rows] f32, optional; 2 factor [1] f32, optional
  //   outputs 0 total [1] f32: factor times the sum of loss
  //           1 z_total [1] f32, optional: the same of z_loss, or 0
  // `params` is not looked at.
  FbEntry total[FB_NUM_DEVICE_TYPES];
} FbKernel;

// Each library exports exactly this symbol. The result has static lifetime.
typedef const FbKernel* (*FbGetKernelFn)(void);
#define FB_GET_KERNEL_SYMBOL "fb_get_kernel"

#ifdef __cplusplus
}
#endif

#endif  // KERNELS_ABI_KERNEL_ABI_H_
