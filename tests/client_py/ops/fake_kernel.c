// A kernel library for tests of the binding: what it claims and how it fails are chosen by macros.

#include "kernels/abi/kernel_abi.h"

#ifndef FAKE_NAME
#define FAKE_NAME "swiglu"
#endif
#ifndef FAKE_ABI
#define FAKE_ABI FB_ABI_VERSION
#endif
#ifndef FAKE_REASON
#define FAKE_REASON 0
#endif
#ifndef FAKE_WORKSPACE
#define FAKE_WORKSPACE 256
#endif
#ifndef FAKE_ERROR
#define FAKE_ERROR 0
#endif

static const char* RejectReason(const FbCall* call) {
  (void)call;
  return FAKE_REASON;
}
static uint64_t WorkspaceBytes(const FbCall* call) {
  (void)call;
  return FAKE_WORKSPACE;
}
static int32_t Launch(const FbCall* call, void* workspace) {
  (void)call;
  return workspace == 0 ? 1 : FAKE_ERROR;
}
static int32_t Prepare(int32_t device_type, int32_t device_index) {
  (void)device_type, (void)device_index;
  return 0;
}

#define FAKE_ENTRY \
  { RejectReason, WorkspaceBytes, Launch }

__attribute__((visibility("default"))) const FbKernel* fb_get_kernel(void) {
  static const FbKernel kernel = {
      sizeof(FbKernel), FAKE_ABI, FAKE_NAME, "9.9.9", Prepare,
      {{FAKE_ENTRY, FAKE_ENTRY}, {FAKE_ENTRY, FAKE_ENTRY}}};
  return &kernel;
}
