#include "server/catalog/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FromText;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::SampleCatalog;
using ::fuseboard::testing::SampleFingerprint;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CatalogTest, SampleIsValidAndSorted) {
  const auto catalog = Catalog::Create(SampleCatalog());
  ASSERT_THAT(catalog, IsOk());
  EXPECT_THAT((*catalog)->operations(),
              ElementsAre("fused_linear_cross_entropy", "rms_norm", "swiglu"));
  EXPECT_EQ((*catalog)->FindEntry("swiglu/llama")->operation(), "swiglu");
  EXPECT_EQ((*catalog)->FindEntry("no such"), nullptr);
  EXPECT_EQ((*catalog)->FindModel("llama")->entries_size(), 3);
  EXPECT_EQ((*catalog)->FindModel("no such"), nullptr);
}

TEST(CatalogTest, WrongEntryIsNamedWithTheField) {
  using Edit = std::function<void(v1::CatalogFile&)>;
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](auto& f) { f.mutable_entries(1)->set_id("rms_norm/llama"); },
       "catalogue entry rms_norm/llama: the id is there twice"},
      {[](auto& f) { f.mutable_entries(0)->clear_id(); }, "catalogue entry without id: want an id"},
      {[](auto& f) { f.mutable_entries(0)->set_operation("RMS"); },
       R"(catalogue entry rms_norm/llama: operation is "RMS", want 1 to 64 of [a-z0-9_])"},
      {[](auto& f) { f.mutable_entries(0)->set_role("loss"); },
       R"(catalogue entry rms_norm/llama: role is "loss", want "module" or "lm_head")"},
      {[](auto& f) { f.mutable_entries(0)->clear_adapter(); },
       "catalogue entry rms_norm/llama: adapter is empty"},
      {[](auto& f) { f.mutable_entries(0)->clear_fingerprints(); },
       "catalogue entry rms_norm/llama: there is no fingerprint"},
      {[](auto& f) { f.mutable_entries(0)->mutable_fingerprints(0)->set_value("fb1:12"); },
       R"(catalogue entry rms_norm/llama: fingerprint is "fb1:12", want "fb1:" and 64 lower-case )"
       "hex digits"},
      {[](auto& f) { *f.mutable_entries(0)->add_fingerprints() = f.entries(0).fingerprints(0); },
       absl::StrCat("catalogue entry rms_norm/llama: fingerprint ", SampleFingerprint('a'),
                    " is there twice")},
      {[](auto& f) { f.mutable_entries(0)->set_fallback(v1::DECISION_KIND_COMPOSITE); },
       "catalogue entry rms_norm/llama: fallback is DECISION_KIND_COMPOSITE with role "
       R"("module", want role "lm_head")"},
      {[](auto& f) { f.mutable_entries(0)->set_fallback(v1::DECISION_KIND_KERNEL); },
       "catalogue entry rms_norm/llama: fallback is DECISION_KIND_KERNEL, want "
       "DECISION_KIND_NATIVE or DECISION_KIND_COMPOSITE"},
      {[](auto& f) {
         f.mutable_entries(0)->mutable_conditions(0)->mutable_attribute()->set_min(2);
       },
       "catalogue entry rms_norm/llama: attribute variance_epsilon has the range 2 to 1"},
      {[](auto& f) { f.mutable_entries(0)->add_conditions(); },
       "catalogue entry rms_norm/llama: a condition is empty, want attribute, child or parameter"},
      {[](auto& f) { f.mutable_models(0)->add_entries("none"); },
       R"(catalogue model llama: there is no entry "none")"},
      {[](auto& f) { *f.add_models() = f.models(0); }, "catalogue model llama is there twice"},
  };
  for (const auto& [edit, message] : cases) {
    v1::CatalogFile file = SampleCatalog();
    edit(file);
    EXPECT_THAT(Catalog::Create(file), StatusIs(absl::StatusCode::kInvalidArgument, message));
  }
}

TEST(CatalogLoadTest, FoldersAreMergedInOrderOfFolderThenName) {
  const TemporaryFolder folder;
  v1::CatalogFile file = SampleCatalog();
  file.clear_models();
  const auto write = [&](const std::string& name, int entry) {
    v1::CatalogFile one;
    *one.add_entries() = file.entries(entry);
    folder.Write(name, one.DebugString());
  };
  write("b/2.textpb", 0);
  write("b/1.textpb", 1);
  write("a/9.textpb", 2);
  folder.Write("a/notes.txt", "not a catalogue");
  const auto catalog = Catalog::Load({folder.Path("b"), folder.Path("a"), folder.Path("none")});
  ASSERT_THAT(catalog, IsOk());
  std::vector<std::string> ids;
  for (const v1::CatalogEntry& entry : (*catalog)->entries()) ids.push_back(entry.id());
  EXPECT_THAT(ids, ElementsAre("swiglu/llama", "rms_norm/llama", "head/llama"));
}

TEST(CatalogLoadTest, OneBadFileRefusesTheWholeAndIsNamed) {
  const TemporaryFolder folder;
  folder.Write("a.textpb", SampleCatalog().DebugString());
  const std::string path = folder.Write("b.textpb", "entries { ids: \"x\" }");
  EXPECT_THAT(Catalog::Load({folder.path()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path + ":1:"), HasSubstr("ids"))));
  folder.Write("b.textpb", "entries { id: \"x\" }");
  EXPECT_THAT(Catalog::Load({folder.path()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(path + ": catalogue entry x: operation is \"\"")));
}

TEST(CatalogLoadTest, IdInTwoFilesIsRefused) {
  const TemporaryFolder folder;
  folder.Write("a.textpb", SampleCatalog().DebugString());
  folder.Write("b.textpb", SampleCatalog().DebugString());
  EXPECT_THAT(Catalog::Load({folder.path()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "catalogue entry rms_norm/llama: the id is there twice"));
}

TEST(CatalogDigestTest, IsOfTheContent) {
  v1::CatalogFile file = SampleCatalog();
  const std::string digest = (*Catalog::Create(file))->digest();
  EXPECT_EQ((*Catalog::Create(SampleCatalog()))->digest(), digest);
  (*file.mutable_entries(0)->mutable_parameters())["casting"] = "gemma";
  EXPECT_NE((*Catalog::Create(file))->digest(), digest);
}

TEST(UnmetConditionTest, TellsBothValues) {
  auto site = FromText<v1::Site>(
      R"(attributes { key: "eps" value { number: 2 } }
         attributes { key: "bias" value { flag: true } }
         attributes { key: "act" value { text: "gelu" } }
         attributes { key: "width" value { integer: 4 } }
         attributes { key: "nan" value { number: nan } }
         children { key: "act_fn" value: "torch.nn.GELU" }
         parameters { key: "weight" value { shape: [2, 3] dtype: "float64" } })");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(attribute { name: "eps" min: 0 max: 2 })", ""},
      {R"(attribute { name: "width" any_of { number: 4 } })", ""},
      {R"(attribute { name: "act" })", ""},
      {R"(child { name: "act_fn" any_of: ["x", "torch.nn.GELU"] })", ""},
      {R"(parameter { name: "bias" present: false })", ""},
      {R"(parameter { name: "weight" present: true ndim: 2 dtypes: "float64" })", ""},
      {R"(attribute { name: "none" })", "attribute none is not there, want it"},
      {R"(attribute { name: "eps" max: 1 })", "attribute eps is 2, want a number of at most 1"},
      {R"(attribute { name: "nan" min: 0 })", "attribute nan is nan, want a number of at least 0"},
      {R"(attribute { name: "bias" any_of { integer: 1 } })", "attribute bias is true, want 1"},
      {R"(attribute { name: "act" any_of { text: "silu" } any_of { text: "swish" } })",
       R"(attribute act is "gelu", want one of "silu", "swish")"},
      {R"(child { name: "act_fn" any_of: "torch.nn.SiLU" })",
       R"(submodule act_fn is "torch.nn.GELU", want "torch.nn.SiLU")"},
      {R"(child { name: "up" any_of: "torch.nn.Linear" })",
       R"(submodule up is not there, want "torch.nn.Linear")"},
      {R"(parameter { name: "bias" present: true })", "parameter bias is not there, want it"},
      {R"(parameter { name: "weight" present: false })", "parameter weight is there, want none"},
      {R"(parameter { name: "weight" present: true ndim: 1 })",
       "parameter weight has 2 dimensions, want 1"},
      {R"(parameter { name: "weight" present: true dtypes: "bfloat16" })",
       R"(parameter weight is "float64", want "bfloat16")"},
  };
  for (const auto& [condition, reason] : cases) {
    EXPECT_EQ(UnmetCondition(FromText<v1::Condition>(condition), site), reason) << condition;
  }
}

}  // namespace
}  // namespace fuseboard
