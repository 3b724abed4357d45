#include "server/resolver/compatibility.h"

#include <gtest/gtest.h>

#include "tests/testing/sample_node.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::SampleBinding;
using ::fuseboard::testing::SampleKernel;
using ::fuseboard::testing::SampleRequest;

class CompatibilityTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string KernelReason() const {
    return KernelMismatch(kernel_, request_.sites(0), request_.environment());
  }
  [[nodiscard]] std::string BindingReason() const {
    return BindingMismatch(binding_, request_.environment());
  }

  Library kernel_ = SampleKernel("rms_norm");
  Library binding_ = SampleBinding();
  v1::ResolveRequest request_ = SampleRequest();
  v1::Environment& environment_ = *request_.mutable_environment();
};

TEST_F(CompatibilityTest, FittingLibrariesHaveNoReason) {
  EXPECT_EQ(KernelReason(), "");
  EXPECT_EQ(BindingReason(), "");
}

TEST_F(CompatibilityTest, DeviceIsNamedOnBothSides) {
  kernel_.manifest.clear_device_types();
  kernel_.manifest.add_device_types("cpu");
  EXPECT_EQ(KernelReason(), "kernel rms_norm 0.1.0 runs on cpu, the model is on cuda");
}

TEST_F(CompatibilityTest, ArchitectureIsNamedOnBothSides) {
  environment_.set_sm(120);
  EXPECT_EQ(KernelReason(), "kernel rms_norm 0.1.0 has sm_80, sm_90, the GPU is sm_120");
  kernel_.manifest.clear_cuda_archs();
  EXPECT_EQ(KernelReason(), "kernel rms_norm 0.1.0 has no device code, the GPU is sm_120");
  kernel_.manifest.set_ptx_arch(130);
  EXPECT_EQ(KernelReason(), "kernel rms_norm 0.1.0 has PTX of compute_130, the GPU is sm_120");
}

TEST_F(CompatibilityTest, ArchitectureDoesNotMatterOnTheCpu) {
  environment_.set_device_type("cpu");
  environment_.set_sm(0);
  kernel_.manifest.clear_cuda_archs();
  EXPECT_EQ(KernelReason(), "");
}

TEST_F(CompatibilityTest, DtypeIsNamedOnBothSides) {
  (*request_.mutable_sites(0)->mutable_parameters())["weight"].set_dtype("float64");
  EXPECT_EQ(KernelReason(),
            "kernel rms_norm 0.1.0: parameter weight is float64, want float32 or bfloat16");
}

TEST_F(CompatibilityTest, FirstParameterByNameIsTold) {
  auto& parameters = *request_.mutable_sites(0)->mutable_parameters();
  for (const char* name : {"z", "bias", "m", "y"}) parameters[name].set_dtype("float16");
  EXPECT_EQ(KernelReason(),
            "kernel rms_norm 0.1.0: parameter bias is float16, want float32 or bfloat16");
}

TEST_F(CompatibilityTest, UnverifiedFileIsToldFirst) {
  environment_.set_sm(120);
  kernel_.error = "x.so has 3 bytes, want 4";
  EXPECT_EQ(KernelReason(), "kernel rms_norm 0.1.0 cannot be handed out: x.so has 3 bytes, want 4");
}

TEST_F(CompatibilityTest, CompiledModelNeedsACompileSafeLibrary) {
  kernel_.manifest.set_compile_safe(false);
  binding_.manifest.set_compile_safe(false);
  EXPECT_EQ(KernelReason(), "");
  environment_.set_compile(true);
  EXPECT_EQ(KernelReason(),
            "kernel rms_norm 0.1.0 is not safe under torch.compile, and the model is compiled");
  EXPECT_EQ(BindingReason(),
            "binding fuseboard_torch 0.1.0 is not safe under torch.compile, and the model is "
            "compiled");
}

TEST_F(CompatibilityTest, KernelWithoutBackwardDoesNotTrain) {
  kernel_.manifest.set_backward(false);
  EXPECT_EQ(KernelReason(), "kernel rms_norm 0.1.0 has no backward");
}

TEST_F(CompatibilityTest, TorchVersionIsNamedOnBothSides) {
  environment_.set_torch_version("2.10.0+cu130");
  EXPECT_EQ(BindingReason(),
            "binding fuseboard_torch 0.1.0 is for torch 2.11.0 with CUDA 13.0, the process has "
            "torch 2.10.0+cu130 with CUDA 13.0");
}

TEST_F(CompatibilityTest, TorchsCudaIsNamedOnBothSides) {
  environment_.set_torch_cuda_version("");
  EXPECT_EQ(BindingReason(),
            "binding fuseboard_torch 0.1.0 is for torch 2.11.0 with CUDA 13.0, the process has "
            "torch 2.11.0+cu130 without CUDA");
}

TEST_F(CompatibilityTest, LocalVersionOfTorchDoesNotCount) {
  environment_.set_torch_version("2.11.0+cu130.nightly");
  binding_.manifest.set_torch_version("2.11.0+cu130");
  EXPECT_EQ(BindingReason(), "");
}

TEST_F(CompatibilityTest, BindingOfThisTorchIsSelectedAmongOthers) {
  Library other = SampleBinding();
  other.manifest.set_torch_version("2.10.0");
  other.error = "damaged";
  const LibrarySet libraries({other, binding_});
  std::string reason;
  const Library* const selected = SelectBinding(libraries, environment_, &reason);
  ASSERT_NE(selected, nullptr);
  EXPECT_EQ(selected->manifest.torch_version(), "2.11.0");
  EXPECT_EQ(reason, "");
}

TEST_F(CompatibilityTest, EveryBindingThatDoesNotMatchIsTold) {
  Library other = SampleBinding();
  other.manifest.set_torch_version("2.9.1");
  const LibrarySet libraries({binding_, other});
  environment_.set_torch_version("2.12.0");
  std::string reason;
  EXPECT_EQ(SelectBinding(libraries, environment_, &reason), nullptr);
  EXPECT_EQ(reason,
            "no binding matches: binding fuseboard_torch 0.1.0 is for torch 2.11.0 with CUDA 13.0, "
            "the process has torch 2.12.0 with CUDA 13.0; binding fuseboard_torch 0.1.0 is for "
            "torch 2.9.1 with CUDA 13.0, the process has torch 2.12.0 with CUDA 13.0");
}

TEST_F(CompatibilityTest, DamagedBindingOfThisTorchIsToldAsSuch) {
  binding_.error = "digest differs";
  std::string reason;
  EXPECT_EQ(SelectBinding(LibrarySet({binding_}), environment_, &reason), nullptr);
  EXPECT_EQ(reason,
            "no binding matches: binding fuseboard_torch 0.1.0 cannot be handed out: digest "
            "differs");
}

TEST_F(CompatibilityTest, ProcessWithoutTorchHasNoBinding) {
  environment_.set_torch_version("");
  std::string reason;
  EXPECT_EQ(SelectBinding(LibrarySet({binding_}), environment_, &reason), nullptr);
  EXPECT_EQ(reason, "the process has no torch");
}

struct ArchitectureCase {
  std::vector<int> real;
  int ptx;
  int sm;
  bool covered;
};

TEST(CoversArchitectureTest, RealCodeRunsUpwardsWithinItsMajorAndPtxEverywhereAbove) {
  const std::vector<ArchitectureCase> cases = {
      {{80}, 0, 80, true},  {{80}, 0, 89, true},     {{89}, 0, 80, false},  {{80}, 0, 90, false},
      {{90}, 0, 80, false}, {{80, 90}, 0, 90, true}, {{}, 80, 120, true},   {{}, 80, 80, true},
      {{}, 90, 89, false},  {{}, 0, 90, false},      {{100}, 0, 103, true}, {{100}, 0, 120, false},
  };
  for (const ArchitectureCase& c : cases) {
    v1::Manifest manifest;
    for (const int arch : c.real) manifest.add_cuda_archs(arch);
    manifest.set_ptx_arch(c.ptx);
    EXPECT_EQ(CoversArchitecture(manifest, c.sm), c.covered)
        << manifest.ShortDebugString() << " on sm_" << c.sm;
  }
}

}  // namespace
}  // namespace fuseboard
