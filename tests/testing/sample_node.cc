#include "tests/testing/sample_node.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "kernels/abi/kernel_abi.h"
#include "server/common/sha256.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard::testing {
namespace {

Library MakeLibrary(v1::Manifest manifest) {
  manifest.set_version("0.1.0");
  manifest.set_sha256(Sha256(manifest.name()));
  manifest.set_size_bytes(1);
  manifest.set_abi_version(FB_ABI_VERSION);
  manifest.set_compile_safe(true);
  Library library;
  library.path = absl::StrCat("/opt/fuseboard/", manifest.name(), ".so");
  library.manifest = std::move(manifest);
  return library;
}

}  // namespace

std::string SampleFingerprint(char digit) { return absl::StrCat("fb1:", std::string(64, digit)); }

v1::CatalogFile SampleCatalog() {
  return FromText<v1::CatalogFile>(absl::Substitute(
      R"(entries {
           id: "rms_norm/llama" operation: "rms_norm" role: "module" adapter: "rms_norm"
           fingerprints { value: "$0" source: "transformers 5.17.0 LlamaRMSNorm" }
           conditions { attribute { name: "variance_epsilon" min: 0 max: 1 } }
           parameters { key: "casting" value: "llama" }
           fallback: DECISION_KIND_NATIVE default_enabled: true
         }
         entries {
           id: "swiglu/llama" operation: "swiglu" role: "module" adapter: "swiglu"
           fingerprints { value: "$1" source: "transformers 5.17.0 LlamaMLP" }
         }
         entries {
           id: "head/llama" operation: "fused_linear_cross_entropy" role: "lm_head" adapter: "head"
           fingerprints { value: "$2" source: "transformers 5.17.0 LlamaForCausalLM" }
           fallback: DECISION_KIND_COMPOSITE default_enabled: true
         }
         models { model_type: "llama" entries: ["rms_norm/llama", "swiglu/llama", "head/llama"] })",
      SampleFingerprint('a'), SampleFingerprint('b'), SampleFingerprint('c')));
}

Library SampleKernel(const std::string& name) {
  auto manifest = FromText<v1::Manifest>(
      R"(kind: ARTIFACT_KIND_KERNEL cuda_archs: [80, 90] dtypes: ["float32", "bfloat16"]
         device_types: ["cpu", "cuda"] backward: true)");
  manifest.set_name(name);
  return MakeLibrary(std::move(manifest));
}

Library SampleBinding() {
  return MakeLibrary(FromText<v1::Manifest>(
      R"(kind: ARTIFACT_KIND_BINDING name: "fuseboard_torch" torch_version: "2.11.0"
         torch_cuda_version: "13.0" device_types: ["cpu", "cuda"]
         composites: "fused_linear_cross_entropy" uses: "cross_entropy")"));
}

std::vector<Library> SampleLibraries() {
  return {SampleKernel("rms_norm"), SampleKernel("swiglu"), SampleKernel("cross_entropy"),
          SampleBinding()};
}

v1::ResolveRequest SampleRequest() {
  auto request = FromText<v1::ResolveRequest>(absl::Substitute(
      R"(environment {
           torch_version: "2.11.0+cu130" torch_cuda_version: "13.0" device_type: "cuda" sm: 90
         }
         job { name: "train" world_size: 1 }
         model_type: "llama"
         sites {
           site_id: "norm" role: "module" fingerprint: "$0" count: 65
           attributes { key: "variance_epsilon" value { number: 1e-6 } }
           parameters { key: "weight" value { shape: 4096 dtype: "bfloat16" } }
         }
         sites { site_id: "mlp" role: "module" fingerprint: "$1" count: 32 }
         sites {
           site_id: "head" role: "lm_head" fingerprint: "$2" count: 1
           parameters { key: "weight" value { shape: [128256, 4096] dtype: "bfloat16" } }
         })",
      SampleFingerprint('a'), SampleFingerprint('b'), SampleFingerprint('c')));
  request.mutable_job()->set_instance_id(SampleInstance(0));
  return request;
}

std::string SampleInstance(int number) {
  return absl::StrCat("00000000-0000-4000-8000-00000000000", number);
}

Snapshot SampleSnapshot() {
  auto catalog = Catalog::Create(SampleCatalog());
  EXPECT_THAT(catalog, IsOk());
  Switches switches;
  switches.revision = 7;
  Snapshot snapshot;
  snapshot.catalog = *std::move(catalog);
  snapshot.libraries = std::make_shared<const LibrarySet>(SampleLibraries());
  snapshot.switches = std::make_shared<const Switches>(std::move(switches));
  snapshot.deny = std::make_shared<const DenyList>(DenyList{"/run/fuseboard/deny", {}});
  snapshot.now = absl::FromUnixSeconds(1767323045);
  snapshot.store_id = "0123456789abcdef";
  return snapshot;
}

v1::Scope NodeScope() { return FromText<v1::Scope>("kind: SCOPE_KIND_NODE"); }
v1::Scope FleetScope() { return FromText<v1::Scope>("kind: SCOPE_KIND_FLEET"); }
v1::Scope JobScope(const std::string& name) {
  v1::Scope scope;
  scope.set_kind(v1::SCOPE_KIND_JOB);
  scope.set_name(name);
  return scope;
}

v1::Override MakeOverride(const std::string& operation, const v1::Scope& scope, bool enabled) {
  auto record = FromText<v1::Override>(R"(author: "alice" reason: "a test")");
  record.set_operation(operation);
  *record.mutable_scope() = scope;
  record.set_enabled(enabled);
  return record;
}

v1::Kill MakeKill(const std::string& operation, const v1::Scope& scope) {
  auto kill = FromText<v1::Kill>(R"(author: "alice" reason: "a test")");
  kill.set_operation(operation);
  *kill.mutable_scope() = scope;
  return kill;
}

// Normal, as all paths that the daemon tells: TempDir ends in a slash, or does not.
TemporaryFolder::TemporaryFolder()
    : path_((std::filesystem::path(::testing::TempDir()) / "fbXXXXXX").lexically_normal()) {
  EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // What is left behind is the temporary folder's business.
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& content) const {
  const std::string path = Path(name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  EXPECT_TRUE(file.good()) << path;
  return path;
}

std::string TemporaryFolder::WriteLibrary(const std::string& folder, v1::Manifest manifest,
                                          const std::string& content) const {
  manifest.set_sha256(Sha256(content));
  manifest.set_size_bytes(static_cast<int64_t>(content.size()));
  std::string text;
  EXPECT_TRUE(google::protobuf::TextFormat::PrintToString(manifest, &text));
  const std::string stem = absl::StrCat(folder, "/", manifest.name());
  Write(absl::StrCat(stem, ".textpb"), text);
  return Write(absl::StrCat(stem, ".so"), content);
}

std::string ReadBytes(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

}  // namespace fuseboard::testing
