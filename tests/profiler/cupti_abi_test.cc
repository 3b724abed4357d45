// Loads the built library as Python does. Runs with and without a GPU: without a driver every call
// must answer with a code and a sentence.
#include "profiler/abi/cupti_abi.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <string>

namespace {

using ::testing::AnyOf;
using ::testing::Eq;

std::string library_path;

class CuptiAbiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }

  // By type: an address of the declared function would want the library at link time.
  template <typename Function>
  Function* Find(const char* name) {
    void* symbol = dlsym(library_, name);
    EXPECT_NE(symbol, nullptr) << name;
    return reinterpret_cast<Function*>(symbol);
  }

  void* library_ = nullptr;
  std::array<char, 256> reason_ = {};
};

TEST_F(CuptiAbiTest, HasTheVersionOfItsHeader) {
  EXPECT_EQ(Find<decltype(fb_cupti_abi_version)>("fb_cupti_abi_version")(), FB_CUPTI_ABI_VERSION);
}

TEST_F(CuptiAbiTest, LoadingItOpensNoCupti) {
  EXPECT_EQ(dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD), nullptr);
}

TEST_F(CuptiAbiTest, CheckAnswersWithACodeAndAReason) {
  const int32_t code =
      Find<decltype(fb_cupti_check)>("fb_cupti_check")(reason_.data(), reason_.size());
  EXPECT_THAT(code, AnyOf(Eq(FB_CUPTI_OK), Eq(FB_CUPTI_BUSY), Eq(FB_CUPTI_UNAVAILABLE)));
  EXPECT_EQ(code == FB_CUPTI_OK, std::string(reason_.data()).empty());
}

TEST_F(CuptiAbiTest, CallsWithoutAWindowAreRefusedAndTheReasonIsCutToItsRoom) {
  const auto mark = Find<decltype(fb_cupti_mark)>("fb_cupti_mark");
  const auto stop = Find<decltype(fb_cupti_stop_window)>("fb_cupti_stop_window");
  const auto abandon = Find<decltype(fb_cupti_abandon_window)>("fb_cupti_abandon_window");
  EXPECT_EQ(mark("step 1", reason_.data(), reason_.size()), FB_CUPTI_BAD_STATE);
  EXPECT_STREQ(reason_.data(), "no window is open");
  const char* report = "untouched";
  EXPECT_EQ(stop(&report, reason_.data(), 4), FB_CUPTI_BAD_STATE);
  EXPECT_STREQ(reason_.data(), "no ");
  EXPECT_EQ(report, nullptr);
  EXPECT_EQ(abandon(0, nullptr, 0), FB_CUPTI_BAD_STATE);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (argc != 2) return 2;
  library_path = argv[1];
  return RUN_ALL_TESTS();
}
