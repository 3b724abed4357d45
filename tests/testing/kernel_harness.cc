#include "tests/testing/kernel_harness.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <thread>

#include "tests/testing/device_memory.h"

namespace fuseboard::testing {
namespace {

constexpr size_t kWorkspaceGuardBytes = 256;
constexpr uint8_t kWorkspaceByte = 0xff;  // A NaN in every float dtype.

// One range per thread, as evenly as `grain` allows. `pool` is the number of threads.
void ParallelFor(void* pool, int64_t begin, int64_t end, int64_t grain, FbRangeFn fn,
                 void* context) {
  const int64_t threads = *static_cast<int*>(pool);
  const int64_t chunk = std::max({(end - begin + threads - 1) / threads, grain, int64_t{1}});
  std::vector<std::thread> running;
  for (int64_t at = begin; at < end; at += chunk) {
    running.emplace_back(fn, context, at, std::min(at + chunk, end));
  }
  for (std::thread& thread : running) thread.join();
}

// The tensors of a call in memory of the device.
class DeviceTensors {
 public:
  DeviceTensors(const std::vector<TestTensor>& tensors, int device_type) {
    for (const TestTensor& tensor : tensors) {
      const std::vector<uint8_t>& image = tensor.image();
      memory_.push_back(std::make_unique<DeviceMemory>(device_type, image.size()));
      if (!image.empty()) memory_.back()->CopyFrom(image.data(), image.size());
      views_.push_back(tensor.View(memory_.back()->get(), device_type));
    }
  }

  std::vector<uint8_t> Read(size_t index) const {
    std::vector<uint8_t> image(memory_[index]->bytes());
    if (!image.empty()) memory_[index]->CopyTo(image.data(), image.size());
    return image;
  }

  const std::vector<FbTensor>& views() const { return views_; }

 private:
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<FbTensor> views_;
};

void Link(const KernelCall& call, int device_type, RawCall* raw) {
  raw->call = {};
  raw->call.struct_size = sizeof(FbCall);
  raw->call.device_type = device_type;
  raw->call.num_threads = 1;
  raw->call.num_inputs = static_cast<int32_t>(raw->inputs.size());
  raw->call.num_outputs = static_cast<int32_t>(raw->outputs.size());
  raw->call.inputs = raw->inputs.data();
  raw->call.outputs = raw->outputs.data();
  raw->call.params = call.params;
}

// The number in a variable of the environment; without it there is no limit.
int64_t LimitOf(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoll(text, nullptr, 10) : std::numeric_limits<int64_t>::max();
}

// The device that a call for `device_type` runs on under the limits of the environment.
int DeviceOf(const KernelCall& call, int device_type) {
  const int64_t elements = LimitOf("FUSEBOARD_TEST_GPU_ELEMENTS");
  const int64_t cols = LimitOf("FUSEBOARD_TEST_GPU_COLUMNS");
  const auto is_large = [&](const TestTensor& of) {
    return !of.absent() && (of.rows() * of.cols() > elements || of.cols() > cols);
  };
  const bool any =
      std::ranges::any_of(call.inputs, is_large) || std::ranges::any_of(call.outputs, is_large);
  return any ? int{FB_CPU} : device_type;
}

// One launch over outputs that held `poison`; `threads` counts on the CPU only.
std::vector<TestTensor> RunOnce(const FbKernel& kernel, int device_type, const KernelCall& call,
                                uint8_t poison, int threads) {
  std::vector<TestTensor> outputs = call.outputs;
  for (TestTensor& output : outputs) output.Poison(poison);
  const DeviceTensors in(call.inputs, device_type);
  const DeviceTensors out(outputs, device_type);

  RawCall raw = {in.views(), out.views(), {}};
  Link(call, device_type, &raw);
  DescribeDevice(device_type, &raw.call);
  raw.call.num_threads = threads;
  raw.call.parallel_for = device_type == FB_CPU ? ParallelFor : nullptr;
  raw.call.pool = &threads;

  const FbEntry& entry = kernel.entries[call.phase][device_type];
  const char* why = entry.reject_reason(&raw.call);
  EXPECT_EQ(why, nullptr) << why;
  if (why != nullptr) return outputs;
  const size_t bytes = entry.workspace_bytes(&raw.call);
  DeviceMemory workspace(device_type, bytes + kWorkspaceGuardBytes);
  workspace.Set(kWorkspaceByte);
  // As callers do: no memory where none is asked for.
  EXPECT_EQ(entry.launch(&raw.call, bytes > 0 ? workspace.get() : nullptr), 0);
  Synchronize(device_type);

  std::vector<uint8_t> guard(kWorkspaceGuardBytes);
  workspace.CopyTo(guard.data(), guard.size(), bytes);
  EXPECT_EQ(guard, std::vector<uint8_t>(kWorkspaceGuardBytes, kWorkspaceByte)) << "past workspace";
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    EXPECT_TRUE(in.Read(i) == call.inputs[i].image()) << "input " << i << " was written";
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].image() = out.Read(i);
    EXPECT_EQ(outputs[i].CountTouchedGuards(poison), 0) << "guards of output " << i;
  }
  return outputs;
}

}  // namespace

const FbKernel& OpenKernel(const char* operation) {
  const char* home = std::getenv("FUSEBOARD_HOME");
  const std::string path =
      std::string(home != nullptr ? home : ".") + "/lib/fuseboard/kernels/" + operation + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library != nullptr ? dlsym(library, FB_GET_KERNEL_SYMBOL) : nullptr;
  if (symbol == nullptr) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), dlerror());
    std::exit(EXIT_FAILURE);
  }
  return *reinterpret_cast<FbGetKernelFn>(symbol)();
}

void FillRawCall(const KernelCall& call, int device_type, RawCall* raw) {
  // No memory is touched, so the views may lie anywhere that is aligned like memory from the heap.
  alignas(256) static uint8_t memory[1];
  void* base = memory;
  raw->inputs.clear();
  raw->outputs.clear();
  for (const TestTensor& tensor : call.inputs) {
    raw->inputs.push_back(tensor.View(base, device_type));
  }
  for (const TestTensor& tensor : call.outputs) {
    raw->outputs.push_back(tensor.View(base, device_type));
  }
  Link(call, device_type, raw);
  raw->call.sm = device_type == FB_CUDA ? 90 : 0;
  raw->call.sm_count = device_type == FB_CUDA ? 132 : 0;
}

std::string RejectReason(const FbKernel& kernel, const KernelCall& call, int device_type) {
  RawCall raw;
  FillRawCall(call, device_type, &raw);
  const char* why = kernel.entries[call.phase][device_type].reject_reason(&raw.call);
  return why != nullptr ? why : "";
}

void Run(const FbKernel& kernel, int device_type, KernelCall* call) {
  device_type = DeviceOf(*call, device_type);
  // An element that a run leaves alone shows as a difference between the two poisons.
  std::vector<TestTensor> first = RunOnce(kernel, device_type, *call, 0xa5, 1);
  std::vector<TestTensor> second = RunOnce(kernel, device_type, *call, 0x5a, 3);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(first[i].HasBitsOf(second[i]))
        << "elements of output " << i << " differ between two runs";
  }
  call->outputs = std::move(first);
}

std::vector<TestTensor> RunInPlace(const FbKernel& kernel, int device_type, const KernelCall& call,
                                   size_t input, size_t output) {
  device_type = DeviceOf(call, device_type);
  const DeviceTensors in(call.inputs, device_type);
  const DeviceTensors out(call.outputs, device_type);
  RawCall raw = {in.views(), out.views(), {}};
  raw.outputs[output] = raw.inputs[input];
  Link(call, device_type, &raw);
  DescribeDevice(device_type, &raw.call);
  const FbEntry& entry = kernel.entries[call.phase][device_type];
  const char* why = entry.reject_reason(&raw.call);
  EXPECT_EQ(why, nullptr) << why;
  if (why != nullptr) return call.outputs;
  const DeviceMemory workspace(device_type, entry.workspace_bytes(&raw.call));
  EXPECT_EQ(entry.launch(&raw.call, workspace.get()), 0);
  Synchronize(device_type);
  std::vector<TestTensor> outputs = call.outputs;
  outputs[output] = call.inputs[input];
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].image() = i == output ? in.Read(input) : out.Read(i);
  }
  return outputs;
}

Tolerance ToleranceOf(int32_t dtype) {
  switch (dtype) {
    case FB_F16:
      return {2e-3};
    case FB_BF16:
      return {1.6e-2};
    default:
      return {1e-5};
  }
}

void ExpectClose(const TestTensor& got, const std::function<double(int64_t, int64_t)>& want,
                 double scale, int32_t dtype) {
  const double relative = std::max(ToleranceOf(got.dtype()).relative,
                                   ToleranceOf(dtype < 0 ? got.dtype() : dtype).relative);
  // Below its smallest normal number a dtype has steps instead of digits.
  const double floor = scale + (got.dtype() == FB_F16 ? 0x1p-14 : 0x1p-126);
  int64_t wrong = 0;
  std::string worst;
  for (int64_t r = 0; r < got.rows(); ++r) {
    for (int64_t c = 0; c < got.cols(); ++c) {
      const double g = got.At(r, c);
      const double w = want(r, c);
      const bool close = std::isfinite(w) ? std::fabs(g - w) <= relative * (std::fabs(w) + floor)
                                          : (std::isnan(w) ? std::isnan(g) : g == w);
      if (close) continue;
      if (wrong++ == 0) {
        worst = "first at [" + std::to_string(r) + ", " + std::to_string(c) + "]: want " +
                std::to_string(w) + ", got " + std::to_string(g);
      }
    }
  }
  EXPECT_EQ(wrong, 0) << worst;
}

}  // namespace fuseboard::testing
