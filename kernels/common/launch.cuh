// Launching a kernel from a library's host code, and loading it ahead of time.

#ifndef KERNELS_COMMON_LAUNCH_CUH_
#define KERNELS_COMMON_LAUNCH_CUH_

#include <cuda_runtime.h>
#include <stdint.h>

#include <utility>

#include "kernels/common/prepare.h"  // ScopedDevice, for loaders.

namespace fuseboard {

struct LaunchShape {
  int64_t blocks = 1;  // A multiple of `cluster`; at most 2^31 - 1.
  dim3 threads = 32;
  int cluster = 1;       // Blocks per cluster; more than 1 needs sm_90.
  int shared_bytes = 0;  // Dynamic.
  // The kernel may be scheduled before its predecessor on the stream, whichever that is, has ended,
  // and all its threads wait for that by WaitForPredecessor before they touch memory. Needs sm_90.
  // H200: 1.1 us less between a forward of a few rows and its backward.
  bool dependent = false;
  cudaStream_t stream = nullptr;
};

// Beyond this much dynamic shared memory a kernel is told so, per device. It must be from 48 KiB
// on, static shared memory included, of which no kernel here has more than 8 KiB.
inline constexpr int kDefaultSharedBytes = 40 * 1024;

// What a shape is for the runtime. Lives as long as the launch.
struct LaunchConfig {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};

  explicit LaunchConfig(const LaunchShape& shape) {
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
    config.blockDim = shape.threads;
    config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config.stream = shape.stream;
    config.attrs = attributes;
    if (shape.cluster > 1) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    }
    if (shape.dependent) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

// Larger clusters than every device can schedule.
inline constexpr int kPortableCluster = 8;

// What a kernel must be told, per device, before it may run in this shape.
template <typename... Params>
cudaError_t AllowShape(void (*kernel)(Params...), const LaunchShape& shape) {
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kDefaultSharedBytes) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shape.shared_bytes);
  }
  if (error == cudaSuccess && shape.cluster > kPortableCluster) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  return error == cudaSuccess ? error : cudaGetLastError();
}

// Enqueues the kernel and returns the launch's error, which it also clears.
template <typename... Params, typename... Args>
cudaError_t LaunchKernel(void (*kernel)(Params...), const LaunchShape& shape, Args&&... args) {
  if (const cudaError_t error = AllowShape(kernel, shape); error != cudaSuccess) return error;
  const LaunchConfig launch(shape);
  (void)cudaLaunchKernelEx(&launch.config, kernel, Params(std::forward<Args>(args))...);
  return cudaGetLastError();
}

// Whether the current device can run one cluster of this shape: of more than kPortableCluster
// blocks not every device can.
template <typename... Params>
bool RunsClusters(void (*kernel)(Params...), const LaunchShape& shape) {
  int clusters = 0;
  const LaunchConfig launch(shape);
  if (AllowShape(kernel, shape) == cudaSuccess) {
    (void)cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config);
  }
  (void)cudaGetLastError();
  return clusters > 0;
}

// Loads the kernel on the current device: asking for its attributes ends lazy loading. With
// `much_shared` it gets all shared memory that the device has: left to itself, the driver sizes it
// for fewer blocks than a persistent grid counts on (rms_norm, H 4096 in bf16: 100.6 KiB for three
// blocks became 100, two blocks, and 8 % of the speed).
template <typename... Params>
cudaError_t LoadKernel(void (*kernel)(Params...), bool much_shared = false) {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, kernel);
  if (much_shared) {
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  }
  return cudaGetLastError();
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_LAUNCH_CUH_
