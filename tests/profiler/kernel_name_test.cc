#include "profiler/kernel_name.h"

#include <gtest/gtest.h>

namespace fuseboard::profiler {
namespace {

TEST(KernelNameTest, DropsArgumentsAndTheReturnTypeThatTemplatesCarry) {
  EXPECT_EQ(ReadableKernelName("_Z3addPfS_i"), "add");
  EXPECT_EQ(ReadableKernelName("_ZN9fuseboard8rms_norm13RmsNormKernelIfLi256EEEvPKfS3_Pfif"),
            "fuseboard::rms_norm::RmsNormKernel<float, 256>");
}

TEST(KernelNameTest, KeepsParenthesesInsideTemplateArguments) {
  // f<int (*)(int)>(int): only the last list is the function's own.
  EXPECT_EQ(ReadableKernelName("_Z1fIPFiiEEvi"), "f<int (*)(int)>");
}

TEST(KernelNameTest, KeepsAnonymousNamespaces) {
  EXPECT_EQ(ReadableKernelName("_ZN12_GLOBAL__N_13runEi"), "(anonymous namespace)::run");
}

TEST(KernelNameTest, LeavesNamesThatAreNotMangledAlone) {
  EXPECT_EQ(ReadableKernelName("nvjet_tst_192x192_64x4_2x1_v_bz_TNT"),
            "nvjet_tst_192x192_64x4_2x1_v_bz_TNT");
  EXPECT_EQ(ReadableKernelName("f"), "f");  // A demangler takes this for the type float.
  EXPECT_EQ(ReadableKernelName("_Zbroken"), "_Zbroken");
  EXPECT_EQ(ReadableKernelName(""), "");
}

TEST(KernelNameTest, CutsLongNamesAndSaysSo) {
  const std::string name = ReadableKernelName(std::string(2000, 'k'));
  EXPECT_EQ(name.size(), kMaxKernelNameBytes);
  EXPECT_EQ(name.substr(name.size() - 3), "...");
}

}  // namespace
}  // namespace fuseboard::profiler
