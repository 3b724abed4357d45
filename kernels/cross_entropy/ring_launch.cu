#include <algorithm>
#include <atomic>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/cross_entropy/ring_gradient_kernel.cuh"
#include "kernels/cross_entropy/ring_kernel.cuh"
#include "kernels/cross_entropy/ring_launch.h"

namespace fuseboard::cross_entropy {
namespace {

constexpr int kMaxCachedDevices = 64;

LaunchShape ShapeOf(const Policy& policy, const CudaTarget& target) {
  LaunchShape shape;
  const int more_warps = policy.sum_threads > 0 ? 2 : 1;
  shape.threads = static_cast<unsigned>(policy.threads + more_warps * kWarpThreads);
  shape.cluster = policy.cluster;
  shape.shared_bytes = policy.slots * policy.chunk_bytes;
  shape.stream = static_cast<cudaStream_t>(target.stream);
  return shape;
}

// How many clusters the device holds at once. More would be a second, mostly idle wave: clusters
// work through fixed shares of the rows. Fewer than the shared memory allows where a cluster does
// not divide the multiprocessors of a GPC.
template <typename Kernel>
cudaError_t QueryClusters(Kernel kernel, const LaunchShape& shape, int* clusters) {
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (error == cudaSuccess) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(shape.cluster));
    config.blockDim = shape.threads;
    config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    error = cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
  }
  if (error != cudaSuccess) return cudaGetLastError();
  return *clusters > 0 ? cudaSuccess : cudaErrorLaunchOutOfResources;
}

// QueryClusters takes microseconds: the last answer per device is kept, with its policy in the
// word. M and kGradient tell the caches of kernels apart.
template <typename M, bool kGradient, typename Kernel>
cudaError_t ActiveClusters(Kernel kernel, const LaunchShape& shape, int device_index,
                           int* clusters) {
  static std::atomic<uint64_t> cache[kMaxCachedDevices];
  const uint64_t key = uint64_t(shape.shared_bytes) << 32 | uint64_t(shape.cluster) << 26 |
                       uint64_t(shape.threads.x) << 14;
  const bool cached = device_index >= 0 && device_index < kMaxCachedDevices;
  if (cached) {
    const uint64_t word = cache[device_index].load(std::memory_order_relaxed);
    *clusters = static_cast<int>(word & 0x3fff);
    if ((word & ~uint64_t{0x3fff}) == key && *clusters > 0) return cudaSuccess;
  }
  const cudaError_t error = QueryClusters(kernel, shape, clusters);
  if (error != cudaSuccess) return error;
  *clusters = std::min(*clusters, 0x3fff);
  if (cached) {
    cache[device_index].store(key | static_cast<uint64_t>(*clusters), std::memory_order_relaxed);
  }
  return cudaSuccess;
}

template <typename M, bool kGradient, typename Kernel, typename... More>
cudaError_t LaunchWith(Kernel kernel, const Problem& problem, const Policy& policy,
                       const CudaTarget& target, More... more) {
  LaunchShape shape = ShapeOf(policy, target);
  int clusters = 0;
  const cudaError_t error =
      ActiveClusters<M, kGradient>(kernel, shape, target.device_index, &clusters);
  if (error != cudaSuccess) return error;
  shape.blocks = std::min<int64_t>(problem.rows, clusters) * policy.cluster;
  return LaunchKernel(kernel, shape, problem, policy.slots, policy.chunk_bytes, more...);
}

template <typename M, bool kGradient>
cudaError_t Launch(const Problem& problem, const Policy& policy, const CudaTarget& target) {
  if constexpr (kGradient && !M::kGeneral) {
    return LaunchWith<M, kGradient>(RingGradientKernel<M>, problem, policy, target,
                                    policy.sum_threads);
  } else {
    return LaunchWith<M, kGradient>(RingKernel<M, kGradient>, problem, policy, target);
  }
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
                                    LoadKernel(RingGradientKernel<Mode<T, false>>),
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
