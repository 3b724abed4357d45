// The contract between libfuseboard_cupti.so and whoever loads it (Python's ctypes, a test, a
// worker).
//
// Plain C99: no CUDA, CUPTI or C++ header is included, so any process can load the library. It
// links nothing of CUDA; CUPTI is looked for when a window is asked for, and its absence is a code
// with a reason, never a crash. Nothing throws across these functions.
//
// One window at a time per process, because CUPTI's state is one per process. Every function may be
// called from any thread; calls are serialised inside. Loading the library touches nothing of
// CUPTI.
//
// Compatibility: FB_CUPTI_ABI_VERSION changes when a function or a code changes its meaning; keys
// are only ever added to the report.

#ifndef PROFILER_ABI_CUPTI_ABI_H_
#define PROFILER_ABI_CUPTI_ABI_H_

// NOLINTBEGIN(modernize-*, readability-identifier-naming): this is C.
#include <stddef.h>
#include <stdint.h>

#define FB_CUPTI_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  FB_CUPTI_OK = 0,
  // Another CUPTI client (torch.profiler, Nsight, cuda-gdb) holds the slot. Try again later.
  FB_CUPTI_BUSY = 1,
  // No usable CUPTI, driver or permission in this process. Trying again does not help.
  FB_CUPTI_UNAVAILABLE = 2,
  // Records were dropped or unfinished: the report stands, but its counts are lower bounds.
  FB_CUPTI_INCOMPLETE = 3,
  // The window holds no kernel record. Not a measurement of zero: there is no report.
  FB_CUPTI_EMPTY = 4,
  // The call does not fit the state: start while a window is open, mark or stop while none is.
  FB_CUPTI_BAD_STATE = 5,
  // CUPTI failed in a way that none of the above names.
  FB_CUPTI_INTERNAL = 6,
} FbCuptiCode;

// Returns FB_CUPTI_ABI_VERSION of the library.
uint32_t fb_cupti_abi_version(void);

// In all functions below, `reason` (may be NULL if `reason_bytes` is 0) gets a NUL-terminated
// sentence for people when the code is not FB_CUPTI_OK, cut to `reason_bytes`; else an empty
// string.

// Whether a window could be opened now. Takes CUPTI's subscription and gives it back at once.
//
// Errors: FB_CUPTI_BUSY, FB_CUPTI_UNAVAILABLE, FB_CUPTI_BAD_STATE while a window is open.
int32_t fb_cupti_check(char* reason, size_t reason_bytes);

// Opens a window: kernel, copy and memset records are collected from here on.
// REQUIRES: the caller synchronised the device, so that nothing of an earlier step counts; and no
// framework profiler is active (newer Kineto cannot be seen from here: ask the framework).
//
// Errors: FB_CUPTI_BUSY, FB_CUPTI_UNAVAILABLE, FB_CUPTI_BAD_STATE. After an error nothing is
// enabled.
int32_t fb_cupti_start_window(char* reason, size_t reason_bytes);

// Says that what is launched from here on belongs to `phase` (at most 63 characters are kept), e.g.
// "step 12". Attribution is by time: synchronise before, or work still queued counts to `phase`.
//
// Errors: FB_CUPTI_BAD_STATE if no window is open; FB_CUPTI_INTERNAL after 4096 marks.
int32_t fb_cupti_mark(const char* phase, char* reason, size_t reason_bytes);

// Closes the window and sets *report to its JSON text, or to NULL if there is none. The text
// belongs to the library and holds until the next start_window or stop_window. REQUIRES: the caller
// synchronised the device. Blocks while CUPTI hands out its buffers.
//
//   {"kernels": [{"name": "...", "count": 12, "device_ns": 34567}, ...],   most frequent first
//    "launches": 120, "graph_launches": 0, "device_ns": 1, "busy_ns": 1,   busy: union of intervals
//    "copies": 3, "copied_bytes": 4096, "memsets": 2, "dropped_records": 0, "unfinished_records":
//    0, "phases": [{"name": "step 12", "launches": 60, "device_ns": 1, "busy_ns": 1, "copies": 1,
//                "memsets": 1}, ...]}
//
// Errors: FB_CUPTI_INCOMPLETE (with a report); FB_CUPTI_EMPTY; FB_CUPTI_BUSY if another client came
// during the window (its settings are then left as it made them); FB_CUPTI_BAD_STATE;
// FB_CUPTI_INTERNAL. In every case the window is closed.
int32_t fb_cupti_stop_window(const char** report, char* reason, size_t reason_bytes);

// Closes the window without a report: for a caller that saw another profiler start. `leave_enabled`
// not 0: CUPTI's settings are left as they are, because they are the other client's now.
//
// Errors: FB_CUPTI_BAD_STATE if no window is open.
int32_t fb_cupti_abandon_window(int32_t leave_enabled, char* reason, size_t reason_bytes);

#ifdef __cplusplus
}
#endif

// NOLINTEND(modernize-*, readability-identifier-naming)
#endif  // PROFILER_ABI_CUPTI_ABI_H_
