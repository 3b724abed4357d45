#include "server/registry/library_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/common/sha256.h"
#include "server/registry/semantic_version.h"
#include "tests/testing/sample_node.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::SampleBinding;
using ::fuseboard::testing::SampleKernel;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LibraryRegistryTest : public ::testing::Test {
 protected:
  // Error of the only library.
  std::string Error() {
    const auto set = registry_.Scan();
    EXPECT_EQ(set->libraries().size(), 1U);
    return set->libraries().at(0).error;
  }

  const TemporaryFolder folder_;
  LibraryRegistry registry_{{folder_.Path("a"), folder_.Path("b")}};
  v1::Manifest manifest_ = SampleKernel("rms_norm").manifest;
};

TEST_F(LibraryRegistryTest, FoldersThatAreNotThereHoldNothing) {
  EXPECT_THAT(registry_.Scan()->libraries(), IsEmpty());
  EXPECT_THAT(registry_.Problems(), IsEmpty());
}

TEST_F(LibraryRegistryTest, SoundLibraryHasItsPathAndNoError) {
  const std::string path = folder_.WriteLibrary("a", manifest_, "code");
  EXPECT_EQ(Error(), "");
  EXPECT_EQ(registry_.Scan()->libraries().at(0).path, path);
}

TEST_F(LibraryRegistryTest, UnchangedFoldersGiveTheSameObject) {
  folder_.WriteLibrary("a", manifest_, "code");
  EXPECT_EQ(registry_.Scan(), registry_.Scan());
}

TEST_F(LibraryRegistryTest, SwappedContentOfTheSameSizeIsADigestMismatch) {
  const std::string path = folder_.WriteLibrary("a", manifest_, "code");
  ASSERT_EQ(Error(), "");
  // Another inode, as an installer would do it.
  std::filesystem::rename(folder_.Write("new", "evil"), path);
  EXPECT_EQ(Error(), absl::StrCat(path, " has sha256 ", Sha256("evil"), ", want ", Sha256("code")));
}

TEST_F(LibraryRegistryTest, CutFileIsTold) {
  const std::string path = folder_.WriteLibrary("a", manifest_, "code");
  folder_.Write("a/rms_norm.so", "cod");
  EXPECT_EQ(Error(), absl::StrCat(path, " has 3 bytes, want 4"));
}

TEST_F(LibraryRegistryTest, MissingFileIsToldAndComesBack) {
  const std::string path = folder_.WriteLibrary("a", manifest_, "code");
  std::filesystem::remove(path);
  EXPECT_THAT(Error(), HasSubstr(path));
  folder_.WriteLibrary("a", manifest_, "code");
  EXPECT_EQ(Error(), "");
}

TEST_F(LibraryRegistryTest, FolderInPlaceOfAFileIsTold) {
  const std::string path = folder_.WriteLibrary("a", manifest_, "code");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(Error(), absl::StrCat(path, " is not a regular file"));
}

TEST_F(LibraryRegistryTest, OtherAbiIsToldWithBothNumbers) {
  manifest_.set_abi_version(999);
  folder_.WriteLibrary("a", manifest_, "code");
  EXPECT_THAT(Error(), HasSubstr("the library has ABI 999, want "));
}

TEST_F(LibraryRegistryTest, WrongManifestIsTheLibrarysErrorAndNobodyElses) {
  v1::Manifest other = SampleKernel("swiglu").manifest;
  other.set_version("1.0");
  folder_.WriteLibrary("a", other, "code");
  folder_.WriteLibrary("a", manifest_, "code");
  const auto set = registry_.Scan();
  EXPECT_EQ(set->Kernels("swiglu").at(0)->error, R"(version is "1.0", want MAJOR.MINOR.PATCH)");
  EXPECT_EQ(set->Kernels("rms_norm").at(0)->error, "");
}

TEST_F(LibraryRegistryTest, UnreadableManifestIsAProblemOfTheNodeOnly) {
  folder_.Write("a/broken.textpb", "kind: 7x");
  folder_.WriteLibrary("a", manifest_, "code");
  EXPECT_EQ(Error(), "");
  EXPECT_THAT(registry_.Problems(), ElementsAre(HasSubstr("broken.textpb:1:")));
}

TEST_F(LibraryRegistryTest, NewestVersionComesFirstAndTheFirstFolderWins) {
  folder_.WriteLibrary("a", manifest_, "code");
  manifest_.set_version("0.10.0");
  folder_.WriteLibrary("b", manifest_, "newer");
  folder_.WriteLibrary("c", manifest_, "twice");
  registry_.SetFolders({folder_.Path("a"), folder_.Path("b"), folder_.Path("c")});
  const auto set = registry_.Scan();
  const auto kernels = set->Kernels("rms_norm");
  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(kernels[0]->manifest.version(), "0.10.0");
  EXPECT_EQ(kernels[0]->path, folder_.Path("b/rms_norm.so"));
  EXPECT_EQ(kernels[1]->manifest.version(), "0.1.0");
}

TEST_F(LibraryRegistryTest, FileWhoseNameIsNotUtf8IsToldAndLeftOut) {
  folder_.WriteLibrary("a", manifest_, "code");
  ASSERT_EQ(Error(), "");
  const std::string unreadable = folder_.Path("a/b\xff.textpb");
  std::filesystem::copy_file(folder_.Path("a/rms_norm.textpb"), unreadable);
  EXPECT_EQ(Error(), "");
  EXPECT_THAT(registry_.Problems(),
              ElementsAre(folder_.Path(R"(a/b\xff.textpb: the name is not UTF-8)")));
}

TEST_F(LibraryRegistryTest, ProblemOfAFolderIsToldAndForgottenWhenItIsMended) {
  ASSERT_THAT(registry_.Scan()->libraries(), IsEmpty());
  const std::string path = folder_.Write("a", "");
  registry_.Scan();
  EXPECT_THAT(registry_.Problems(), ElementsAre(path + ": Not a directory"));
  std::filesystem::remove(path);
  registry_.Scan();
  EXPECT_THAT(registry_.Problems(), IsEmpty());
}

TEST_F(LibraryRegistryTest, BindingsOfTwoTorchsStandSideBySide) {
  v1::Manifest binding = SampleBinding().manifest;
  folder_.WriteLibrary("a", binding, "one");
  binding.set_torch_version("2.10.0");
  folder_.WriteLibrary("b", binding, "two");
  EXPECT_EQ(registry_.Scan()->OfKind(v1::ARTIFACT_KIND_BINDING).size(), 2U);
  binding.clear_torch_version();
  folder_.WriteLibrary("b", binding, "two");
  EXPECT_EQ(registry_.Scan()->OfKind(v1::ARTIFACT_KIND_BINDING).at(0)->error,
            "torch_version is empty, want the torch that the binding was compiled for");
}

SemanticVersion Parsed(const std::string& text) {
  const std::optional<SemanticVersion> version = ParseSemanticVersion(text);
  EXPECT_TRUE(version.has_value()) << text;
  return version.value_or(SemanticVersion());
}

TEST(SemanticVersionTest, OrdersAsSemverSays) {
  const std::vector<std::string> ascending = {
      "0.9.0",      "0.10.0",       "1.0.0-alpha",   "1.0.0-alpha.1", "1.0.0-alpha.beta",
      "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",    "1.0.0"};
  for (size_t i = 1; i < ascending.size(); ++i) {
    EXPECT_TRUE(Parsed(ascending[i - 1]) < Parsed(ascending[i]))
        << ascending[i - 1] << " and " << ascending[i];
  }
  EXPECT_TRUE(Parsed("1.0.0+a") == Parsed("1.0.0+b"));
  for (const char* text : {"", "1", "1.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "v1.0.0"}) {
    EXPECT_FALSE(ParseSemanticVersion(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace fuseboard
