#include "server/resolver/request_check.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/common/error_reason.h"
#include "server/common/status_macros.h"

namespace fuseboard {
namespace {

absl::Status TooLarge(absl::string_view field, int64_t actual, int64_t limit) {
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(field, " has ", actual, ", want at most ", limit)),
      kTooLarge, {{"field", field}});
}

// A value in an error: short, and free of what a terminal would obey.
std::string Shown(absl::string_view value) {
  constexpr size_t kShown = 64;
  return absl::StrCat("\"", absl::CHexEscape(value.substr(0, kShown)),
                      value.size() > kShown ? "\"..." : "\"");
}

absl::Status CheckText(absl::string_view field, absl::string_view value) {
  if (value.size() <= kMaxTextBytes) return absl::OkStatus();
  return TooLarge(absl::StrCat(field, " in bytes"), static_cast<int64_t>(value.size()),
                  kMaxTextBytes);
}

absl::Status CheckEnvironment(const v1::Environment& environment) {
  const std::string& device = environment.device_type();
  if (device != "cpu" && device != "cuda") {
    return BadRequest("environment.device_type",
                      absl::StrCat(Shown(device), ", want \"cpu\" or \"cuda\""));
  }
  const int sm = environment.sm();
  if (device == "cpu" ? sm != 0 : sm <= 0) {
    return BadRequest(
        "environment.sm",
        absl::StrCat(sm, ", want ", device == "cpu" ? "0" : "more than 0", " on ", device));
  }
  for (const std::string* text :
       {&environment.torch_version(), &environment.torch_cuda_version(),
        &environment.transformers_version(), &environment.driver_version(), &environment.gpu_name(),
        &environment.distributed_wrapper(), &environment.client_version(),
        &environment.python_version()}) {
    FB_RETURN_IF_ERROR(CheckText("environment", *text));
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const v1::Job& job) {
  if (!IsJobName(job.name())) {
    return BadRequest("job.name", absl::StrCat(Shown(job.name()),
                                               ", want 1 to 128 characters of [A-Za-z0-9._:/-]"));
  }
  if (job.world_size() < 1 || job.world_size() > kMaxRank) {
    return BadRequest("job.world_size", absl::StrCat(job.world_size(), ", want 1 to ", kMaxRank));
  }
  if (job.rank() < 0 || job.rank() >= job.world_size()) {
    return BadRequest("job.rank",
                      absl::StrCat(job.rank(), ", want 0 to less than ", job.world_size()));
  }
  const std::string& id = job.instance_id();
  const bool uuid = id.size() == 36 && std::ranges::all_of(id, [](char c) {
                      return absl::ascii_isxdigit(c) || c == '-';
                    });
  if (!uuid) {
    return BadRequest("job.instance_id", absl::StrCat(Shown(id), ", want a UUID of 36 characters"));
  }
  return CheckText("job.host", job.host());
}

absl::Status CheckSiteSize(const std::string& where, const v1::Site& site) {
  const auto check = [&](absl::string_view field, size_t size) {
    if (size <= kMaxSiteFields) return absl::OkStatus();
    return TooLarge(absl::StrCat(where, ".", field), static_cast<int64_t>(size), kMaxSiteFields);
  };
  FB_RETURN_IF_ERROR(check("attributes", site.attributes().size()));
  FB_RETURN_IF_ERROR(check("children", site.children().size()));
  FB_RETURN_IF_ERROR(check("parameters", site.parameters().size()));
  for (const auto& [name, value] : site.attributes()) {
    FB_RETURN_IF_ERROR(CheckText(where, name));
    FB_RETURN_IF_ERROR(CheckText(where, value.text()));
  }
  for (const auto& [name, value] : site.children()) {
    FB_RETURN_IF_ERROR(CheckText(where, name));
    FB_RETURN_IF_ERROR(CheckText(where, value));
  }
  for (const auto& [name, value] : site.parameters()) {
    FB_RETURN_IF_ERROR(CheckText(where, name));
    FB_RETURN_IF_ERROR(CheckText(where, value.dtype()));
    FB_RETURN_IF_ERROR(check("parameters.shape", static_cast<size_t>(value.shape_size())));
  }
  FB_RETURN_IF_ERROR(CheckText(where, site.qualified_name()));
  return CheckText(where, site.fingerprint_error());
}

absl::Status CheckSite(const std::string& where, const v1::Site& site) {
  if (site.site_id().empty() || site.site_id().size() > 256) {
    return BadRequest(absl::StrCat(where, ".site_id"),
                      absl::StrCat(Shown(site.site_id()), ", want 1 to 256 characters"));
  }
  if (site.role() != "module" && site.role() != "lm_head") {
    return BadRequest(absl::StrCat(where, ".role"),
                      absl::StrCat(Shown(site.role()), ", want \"module\" or \"lm_head\""));
  }
  if (site.fingerprint().size() > 128) {
    return BadRequest(absl::StrCat(where, ".fingerprint"),
                      absl::StrCat(Shown(site.fingerprint()), ", want at most 128 characters"));
  }
  if (site.count() < 1) {
    return BadRequest(absl::StrCat(where, ".count"),
                      absl::StrCat(site.count(), ", want at least 1"));
  }
  return CheckSiteSize(where, site);
}

}  // namespace

bool IsJobName(absl::string_view name) {
  constexpr absl::string_view kPunctuation = "._:/-";
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, [&](char c) {
    return absl::ascii_isalnum(c) || kPunctuation.find(c) != absl::string_view::npos;
  });
}

absl::Status CheckRequest(const v1::ResolveRequest& request) {
  FB_RETURN_IF_ERROR(CheckEnvironment(request.environment()));
  FB_RETURN_IF_ERROR(CheckJob(request.job()));
  if (request.sites_size() > kMaxSites) return TooLarge("sites", request.sites_size(), kMaxSites);
  if (request.opt_out_size() > kMaxOptOuts) {
    return TooLarge("opt_out", request.opt_out_size(), kMaxOptOuts);
  }
  FB_RETURN_IF_ERROR(CheckText("model_type", request.model_type()));
  for (const std::string& operation : request.opt_out()) {
    FB_RETURN_IF_ERROR(CheckText("opt_out", operation));
  }
  absl::flat_hash_set<absl::string_view> ids;
  for (int i = 0; i < request.sites_size(); ++i) {
    const v1::Site& site = request.sites(i);
    const std::string where = absl::StrCat("sites[", i, "]");
    FB_RETURN_IF_ERROR(CheckSite(where, site));
    if (!ids.insert(site.site_id()).second) {
      return BadRequest(absl::StrCat(where, ".site_id"),
                        absl::StrCat(Shown(site.site_id()), " is there twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseboard
