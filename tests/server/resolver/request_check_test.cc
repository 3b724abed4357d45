#include "server/resolver/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::SampleRequest;
using ::fuseboard::testing::StatusIs;

using Edit = std::function<void(v1::ResolveRequest&)>;

absl::Status CheckEdited(const Edit& edit) {
  v1::ResolveRequest request = SampleRequest();
  edit(request);
  return CheckRequest(request);
}

TEST(CheckRequestTest, AcceptsTheSample) { EXPECT_THAT(CheckRequest(SampleRequest()), IsOk()); }

TEST(CheckRequestTest, MalformedFieldIsNamedWithItsValueAndWhatIsWanted) {
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](auto& r) { r.mutable_environment()->set_device_type("tpu"); },
       R"(environment.device_type: "tpu", want "cpu" or "cuda")"},
      {[](auto& r) { r.mutable_environment()->set_sm(0); },
       "environment.sm: 0, want more than 0 on cuda"},
      {[](auto& r) { r.mutable_environment()->set_device_type("cpu"); },
       "environment.sm: 90, want 0 on cpu"},
      {[](auto& r) { r.mutable_job()->set_name(""); },
       R"(job.name: "", want 1 to 128 characters of [A-Za-z0-9._:/-])"},
      {[](auto& r) { r.mutable_job()->set_name("a\nb"); },
       R"(job.name: "a\nb", want 1 to 128 characters of [A-Za-z0-9._:/-])"},
      {[](auto& r) { r.mutable_job()->set_world_size(0); }, "job.world_size: 0, want 1 to 1048576"},
      {[](auto& r) { r.mutable_job()->set_rank(1); }, "job.rank: 1, want 0 to less than 1"},
      {[](auto& r) { r.mutable_job()->set_rank(-1); }, "job.rank: -1, want 0 to less than 1"},
      {[](auto& r) { r.mutable_job()->set_instance_id("me"); },
       R"(job.instance_id: "me", want a UUID of 36 characters)"},
      {[](auto& r) { r.mutable_sites(1)->set_site_id(""); },
       R"(sites[1].site_id: "", want 1 to 256 characters)"},
      {[](auto& r) { r.mutable_sites(1)->set_role("loss"); },
       R"(sites[1].role: "loss", want "module" or "lm_head")"},
      {[](auto& r) { r.mutable_sites(1)->set_count(0); }, "sites[1].count: 0, want at least 1"},
      {[](auto& r) { r.mutable_sites(1)->set_site_id("norm"); },
       R"(sites[1].site_id: "norm" is there twice)"},
  };
  for (const auto& [edit, message] : cases) {
    const absl::Status status = CheckEdited(edit);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_EQ(ReasonOf(status), "BAD_REQUEST");
  }
}

TEST(CheckRequestTest, TooMuchIsToldWithTheLimit) {
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](auto& r) {
         for (int i = r.sites_size(); i <= kMaxSites; ++i) {
           *r.add_sites() = r.sites(0);
         }
       },
       "sites has 4097, want at most 4096"},
      {[](auto& r) {
         for (int i = 0; i <= kMaxOptOuts; ++i) r.add_opt_out("rms_norm");
       },
       "opt_out has 257, want at most 256"},
      {[](auto& r) {
         for (int i = 0; i <= kMaxSiteFields; ++i) {
           (*r.mutable_sites(1)->mutable_children())[absl::StrCat(i)] = "x";
         }
       },
       "sites[1].children has 65, want at most 64"},
      {[](auto& r) { r.set_model_type(std::string(kMaxTextBytes + 1, 'x')); },
       "model_type in bytes has 4097, want at most 4096"},
  };
  for (const auto& [edit, message] : cases) {
    const absl::Status status = CheckEdited(edit);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, message));
    EXPECT_EQ(ReasonOf(status), "TOO_LARGE");
  }
}

TEST(CheckRequestTest, AcceptsExactlyTheLimits) {
  EXPECT_THAT(CheckEdited([](auto& r) {
                for (int i = r.sites_size(); i < kMaxSites; ++i) {
                  v1::Site site = r.sites(0);
                  site.set_site_id(absl::StrCat("site ", i));
                  *r.add_sites() = site;
                }
                for (int i = 0; i < kMaxOptOuts; ++i) r.add_opt_out("rms_norm");
                r.set_model_type(std::string(kMaxTextBytes, 'x'));
                r.mutable_job()->set_name(std::string(128, 'j'));
              }),
              IsOk());
}

TEST(CheckRequestTest, LongValueIsCutInTheMessage) {
  EXPECT_THAT(CheckEdited([](auto& r) { r.mutable_job()->set_name(std::string(129, 'j')); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat("job.name: \"", std::string(64, 'j'),
                                    "\"..., want 1 to 128 characters of [A-Za-z0-9._:/-]")));
}

}  // namespace
}  // namespace fuseboard
