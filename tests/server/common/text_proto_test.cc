#include "server/common/text_proto.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fuseboard/v1/catalog.pb.h"
#include "fuseboard/v1/config.pb.h"
#include "server/common/utf8.h"
#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::ResultOf;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

absl::Status Parse(absl::string_view text) {
  v1::DaemonConfig config;
  return ParseTextProto(text, "config", &config);
}

// A list in a list in a list, `depth` times.
std::string NestedLists(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += "list_value { values { ";
  for (int i = 0; i < depth; ++i) text += "} } ";
  return text;
}

TEST(TextProtoTest, EmptyTextIsAMessageWithNoFieldSet) {
  for (const char* text : {"", "\n\n", "# only a comment", "# and one\r\n"}) {
    v1::DaemonConfig config;
    config.set_home("/before");
    ASSERT_THAT(ParseTextProto(text, "config", &config), IsOk());
    EXPECT_EQ(config.ByteSizeLong(), 0U);
  }
}

TEST(TextProtoTest, FieldsCommentsAndLineEndsOfBothKindsAreRead) {
  v1::DaemonConfig config;
  ASSERT_THAT(ParseTextProto("home: \"/opt/f\"  # where\r\ncatalog_dirs: [\"/a\",\n \"/b\"]\n"
                             "catalog_dirs: '/c' drain_seconds: 0",
                             "config", &config),
              IsOk());
  EXPECT_EQ(config.home(), "/opt/f");
  EXPECT_EQ(config.catalog_dirs_size(), 3);
  EXPECT_TRUE(config.has_drain_seconds());
}

TEST(TextProtoTest, ErrorNamesTheFileTheLineAndTheColumnCountedFromOne) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(homee: "/a")",
       R"(config:1:6: Message type "fuseboard.v1.DaemonConfig" has no field named "homee".)"},
      {"\n  home \"/a\"", R"(config:2:8: Expected ":", found ""/a"".)"},
      {"home: 3", "config:1:7: Expected string, got: 3"},
      {R"(home: "/a" home: "/b")",
       R"(config:1:16: Non-repeated field "home" is specified multiple times.)"},
      {"max_request_bytes: 9223372036854775808",
       "config:1:20: Integer out of range (9223372036854775808)"},
      {"max_request_bytes: 1.5", "config:1:20: Expected integer, got: 1.5"},
      {R"(home: "/a)", "config:1:10: Unexpected end of string."},
      {"home", R"(config:1:5: Expected ":", found "".)"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(Parse(text), StatusIs(kInvalid, HasSubstr(message))) << text;
  }
}

TEST(TextProtoTest, RefusedTextLeavesNothingOfItInTheMessage) {
  v1::DaemonConfig config;
  config.set_home("/before");
  EXPECT_THAT(ParseTextProto(R"(home: "/a" bad)", "config", &config), StatusIs(kInvalid));
  EXPECT_EQ(config.ByteSizeLong(), 0U);
}

TEST(TextProtoTest, UnknownValueOfAnEnumIsRefused) {
  v1::Manifest manifest;
  EXPECT_THAT(ParseTextProto("kind: ARTIFACT_KIND_TOY", "m", &manifest),
              StatusIs(kInvalid,
                       "m:1:24: Unknown enumeration value of \"ARTIFACT_KIND_TOY\" for "
                       "field \"kind\"."));
}

TEST(TextProtoTest, TextThatIsNoUtf8IsRefusedWithItsField) {
  // Neither as bytes nor as an escape: no client could decode a message with it.
  for (const char* text : {"home: \"/\xff\"", R"(home: "/\377")"}) {
    EXPECT_THAT(Parse(text), StatusIs(kInvalid, R"(config: home is "/\xff", want UTF-8)")) << text;
  }
  EXPECT_THAT(Parse(R"(kernel_dirs: ["/a", "/\377"])"),
              StatusIs(kInvalid, R"(config: kernel_dirs is "/\xff", want UTF-8)"));
  EXPECT_THAT(Parse("home: \"/\xc3\xbc\\303\\274\""), IsOk());
  v1::CatalogFile file;
  EXPECT_THAT(ParseTextProto(R"(entries { conditions { child { name: "\377" } } })", "c", &file),
              StatusIs(kInvalid, R"(c: name is "\xff", want UTF-8)"));
  EXPECT_THAT(ParseTextProto(R"(entries { parameters { key: "a" value: "\377" } })", "c", &file),
              StatusIs(kInvalid, R"(c: value is "\xff", want UTF-8)"));
  EXPECT_EQ(file.ByteSizeLong(), 0U);
}

TEST(TextProtoTest, ErrorsAreUtf8WhateverTheFileIs) {
  EXPECT_THAT(Parse("\xff\xfe binary"), StatusIs(kInvalid, ResultOf(IsUtf8, true)));
  EXPECT_THAT(Parse("home \"\xff\""),
              StatusIs(kInvalid, R"(config:1:6: Expected ":", found ""\xff"".)"));
}

TEST(TextProtoTest, DeepNestingIsRefusedAndDoesNotEndTheProcess) {
  google::protobuf::Value value;
  EXPECT_THAT(ParseTextProto(NestedLists(10), "deep", &value), IsOk());
  EXPECT_THAT(ParseTextProto(NestedLists(100'000), "deep", &value),
              StatusIs(kInvalid, HasSubstr("Message is too deep")));
}

TEST(TextProtoTest, AtMostEightErrorsAreTold) {
  std::string text = "home: \"";
  for (int i = 0; i < 20; ++i) text += "\\q";  // No such escape.
  const absl::Status status = Parse(text + "\"");
  EXPECT_THAT(status, StatusIs(kInvalid, HasSubstr("config:1:9: Invalid escape sequence")));
  const std::string message(status.message());
  const std::vector<std::string> errors = absl::StrSplit(message, "; ");
  EXPECT_THAT(errors, SizeIs(8));
}

TEST(TextProtoTest, LoadedFileIsNamedByItsPath) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("config.textpb", "home: \"/opt/f\"\n");
  v1::DaemonConfig config;
  ASSERT_THAT(LoadTextProto(path, &config), IsOk());
  EXPECT_EQ(config.home(), "/opt/f");
  folder.Write("config.textpb", "home: 1");
  EXPECT_THAT(LoadTextProto(path, &config),
              StatusIs(kInvalid, absl::StrCat(path, ":1:7: Expected string, got: 1")));
}

TEST(TextProtoTest, FileThatCannotBeReadLeavesTheErrorOfReading) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("config.textpb");
  v1::DaemonConfig config;
  EXPECT_THAT(LoadTextProto(path, &config),
              StatusIs(absl::StatusCode::kNotFound, path + ": No such file or directory"));
  EXPECT_THAT(
      LoadTextProto(folder.path(), &config),
      StatusIs(absl::StatusCode::kFailedPrecondition, folder.path() + " is not a regular file"));
  folder.Write("config.textpb", R"(home: "/a")");
  EXPECT_THAT(
      LoadTextProto(path, &config, /*max_bytes=*/9),
      StatusIs(absl::StatusCode::kResourceExhausted, path + " has 10 bytes, want at most 9"));
}

}  // namespace
}  // namespace fuseboard
