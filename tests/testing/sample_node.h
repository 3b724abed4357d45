// A small node for tests: a catalogue of three operations, one library for each that has one, a
// binding, and a process that trains a model with three kinds of sites. What a test is about, it
// changes; all else is as on a node where everything fits.
//
//   operation                   role     default  library        when it is off
//   rms_norm                    module   on       rms_norm       native
//   swiglu                      module   off      swiglu         native
//   fused_linear_cross_entropy  lm_head  on       cross_entropy  composite

#ifndef TESTS_TESTING_SAMPLE_NODE_H_
#define TESTS_TESTING_SAMPLE_NODE_H_

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fuseboard/v1/catalog.pb.h"
#include "fuseboard/v1/control.pb.h"
#include "fuseboard/v1/plan.pb.h"
#include "fuseboard/v1/resolver.pb.h"
#include "server/registry/library_set.h"
#include "server/resolver/snapshot.h"

namespace fuseboard::testing {

// The message that `text` (text Protobuf) is; fails the test if it is none.
template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// "fb1:" and 64 times `digit`. The sample's are those of 'a' (norm), 'b' (mlp) and 'c' (head).
std::string SampleFingerprint(char digit);

v1::CatalogFile SampleCatalog();

// Version 0.1.0, verified, for CPU and sm_80, sm_90; the binding is for torch 2.11.0 and CUDA 13.0.
Library SampleKernel(const std::string& name);
Library SampleBinding();
std::vector<Library> SampleLibraries();

// Job "train", rank 0, on an sm_90 GPU. Sites "norm" (65 modules), "mlp" (32) and "head" (1).
v1::ResolveRequest SampleRequest();

// "00000000-0000-4000-8000-00000000000<number>", for number 0 to 9.
std::string SampleInstance(int number);

// At 2026-01-02T03:04:05Z, revision 7, nothing switched and nothing denied.
Snapshot SampleSnapshot();

v1::Scope NodeScope();
v1::Scope FleetScope();
v1::Scope JobScope(const std::string& name);

// By alice, because of a test; never expires.
v1::Override MakeOverride(const std::string& operation, const v1::Scope& scope, bool enabled);
v1::Kill MakeKill(const std::string& operation, const v1::Scope& scope);

// A folder of its own, deleted with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Path of an entry of the folder, whether or not it is there.
  [[nodiscard]] std::string Path(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file, with the folders it lies in, and returns its path.
  std::string Write(const std::string& name, const std::string& content) const;
  // Writes <folder>/<name>.so and the manifest beside it, true to the file's digest and size.
  // Returns the library's path.
  std::string WriteLibrary(const std::string& folder, v1::Manifest manifest,
                           const std::string& content) const;

 private:
  std::string path_;
};

// All bytes of a file; fails the test if it cannot be read.
std::string ReadBytes(const std::string& path);

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_SAMPLE_NODE_H_
