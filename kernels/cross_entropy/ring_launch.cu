#include <algorithm>
#include <atomic>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/cross_entropy/ring_kernel.cuh"
#include "kernels/cross_entropy/ring_launch.h"

namespace fuseboard::cross_entropy {
namespace {

constexpr int kMaxCachedDevices = 64;

LaunchShape ShapeOf(const Policy& policy, const CudaTarget& target) {
  LaunchShape shape;
  shape.threads = static_cast<unsigned>(policy.threads + kWarpThreads);
  shape.cluster = policy.cluster;
  shape.shared_bytes = policy.slots * policy.chunk_bytes;
  shape.stream = static_cast<cudaStream_t>(target.stream);
  return shape;
}

// How many clusters the device holds at once. More would be a second, mostly idle wave: clusters
// work through fixed shares of the rows. Fewer than the shared memory allows where a cluster does
// not divide the multiprocessors of a GPC.
template <typename M, bool kGradient>
cudaError_t QueryClusters(const Policy& policy, int* clusters) {
  const auto kernel = RingKernel<M, kGradient>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           policy.slots * policy.chunk_bytes);
  if (error == cudaSuccess) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(policy.cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(policy.cluster));
    config.blockDim = dim3(static_cast<unsigned>(policy.threads + kWarpThreads));
    config.dynamicSmemBytes = static_cast<size_t>(policy.slots * policy.chunk_bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    error = cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
  }
  if (error != cudaSuccess) return cudaGetLastError();
  return *clusters > 0 ? cudaSuccess : cudaErrorLaunchOutOfResources;
}

// QueryClusters takes microseconds: the last answer per device is kept, with its policy in the
// word.
template <typename M, bool kGradient>
cudaError_t ActiveClusters(const Policy& policy, int device_index, int* clusters) {
  static std::atomic<uint64_t> cache[kMaxCachedDevices];
  const uint64_t key = uint64_t(policy.slots) * uint64_t(policy.chunk_bytes) << 32 |
                       uint64_t(policy.cluster) << 26 | uint64_t(policy.threads) << 14;
  const bool cached = device_index >= 0 && device_index < kMaxCachedDevices;
  if (cached) {
    const uint64_t word = cache[device_index].load(std::memory_order_relaxed);
    *clusters = static_cast<int>(word & 0x3fff);
    if ((word & ~uint64_t{0x3fff}) == key && *clusters > 0) return cudaSuccess;
  }
  const cudaError_t error = QueryClusters<M, kGradient>(policy, clusters);
  if (error != cudaSuccess) return error;
  *clusters = std::min(*clusters, 0x3fff);
  if (cached) {
    cache[device_index].store(key | static_cast<uint64_t>(*clusters), std::memory_order_relaxed);
  }
  return cudaSuccess;
}

template <typename M, bool kGradient>
cudaError_t Launch(const Problem& problem, const Policy& policy, const CudaTarget& target) {
  int clusters = 0;
  const cudaError_t error = ActiveClusters<M, kGradient>(policy, target.device_index, &clusters);
  if (error != cudaSuccess) return error;
  LaunchShape shape = ShapeOf(policy, target);
  shape.blocks = std::min<int64_t>(problem.rows, clusters) * policy.cluster;
  return LaunchKernel(RingKernel<M, kGradient>, shape, problem, policy.slots, policy.chunk_bytes);
}

template <typename T>
cudaError_t LaunchOf(const Problem& problem, const Policy& policy, const CudaTarget& target) {
  using Plain = Mode<T, false>;
  using General = Mode<T, true>;
  if (problem.dlogits != nullptr) {
    return IsPlain(problem) ? Launch<Plain, true>(problem, policy, target)
                            : Launch<General, true>(problem, policy, target);
  }
  return IsPlain(problem) ? Launch<Plain, false>(problem, policy, target)
                          : Launch<General, false>(problem, policy, target);
}

}  // namespace

cudaError_t LaunchRing(const Problem& problem, const Policy& policy, const CudaTarget& target) {
  return DispatchFloat(problem.dtype, [&](auto tag) {
    return LaunchOf<typename decltype(tag)::type>(problem, policy, target);
  });
}

int32_t LoadRingKernels() {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const cudaError_t error = DispatchFloat(dtype, [](auto tag) {
      using T = typename decltype(tag)::type;
      const cudaError_t errors[] = {LoadKernel(RingKernel<Mode<T, false>, false>),
                                    LoadKernel(RingKernel<Mode<T, false>, true>),
                                    LoadKernel(RingKernel<Mode<T, true>, false>),
                                    LoadKernel(RingKernel<Mode<T, true>, true>)};
      for (const cudaError_t e : errors) {
        if (e != cudaSuccess) return e;
      }
      return cudaSuccess;
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard::cross_entropy
