#include "server/config/daemon_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/sample_node.h"
#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::FromText;
using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::fuseboard::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status Validate(const std::string& text) {
  auto config = FromText<v1::DaemonConfig>(text);
  ApplyDefaults("/opt/fuseboard", &config);
  return ValidateConfig(config);
}

TEST(LoadConfigTest, SyntaxErrorIsToldWithItsPosition) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("c.textpb", "home: \"/x\"\nliveness_seconds 5 {\n");
  EXPECT_THAT(LoadConfig(path),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path + ":2:")));
}

TEST(LoadConfigTest, UnknownFieldRefusesTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("c.textpb", "home: \"/x\"\nlivenes_seconds: 5\n");
  EXPECT_THAT(LoadConfig(path), StatusIs(absl::StatusCode::kInvalidArgument,
                                         AllOf(HasSubstr(path), HasSubstr("livenes_seconds"))));
}

TEST(LoadConfigTest, WrongTypeRefusesTheFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(LoadConfig(folder.Write("c.textpb", "max_request_bytes: \"many\"")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("c.textpb:1:")));
}

TEST(LoadConfigTest, TooLargeFileIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("c.textpb", std::string(kMaxConfigBytes + 1, '\n'));
  EXPECT_THAT(LoadConfig(path), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(path)));
  EXPECT_THAT(LoadConfig(folder.Write("d.textpb", std::string(kMaxConfigBytes, '\n'))), IsOk());
}

TEST(LoadConfigTest, MissingFileIsNotFound) {
  EXPECT_THAT(LoadConfig("/nonexistent/c"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/c")));
}

TEST(ApplyDefaultsTest, FillsWhatIsNotSetAndNothingElse) {
  auto config = FromText<v1::DaemonConfig>(R"(http_address: "" drain_seconds: 0)");
  ApplyDefaults("/opt/fuseboard", &config);
  EXPECT_EQ(config.home(), "/opt/fuseboard");
  EXPECT_EQ(config.liveness_seconds(), 30);
  EXPECT_EQ(config.max_request_bytes(), 4194304);
  EXPECT_EQ(config.http_address(), "");
  EXPECT_EQ(config.drain_seconds(), 0);
  EXPECT_EQ(config.idle_exit_seconds(), 0);
}

TEST(ValidateConfigTest, DefaultsAreValid) { EXPECT_THAT(Validate(""), IsOk()); }

TEST(ValidateConfigTest, EveryRangeIsCheckedAtBothEnds) {
  for (const char* text :
       {"liveness_seconds: 1", "liveness_seconds: 3600", "drain_seconds: 0", "drain_seconds: 300",
        "max_request_bytes: 4096", "max_request_bytes: 268435456", "http_address: '[::1]:65535'",
        "http_address: 'localhost:0'"}) {
    EXPECT_THAT(Validate(text), IsOk()) << text;
  }
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"liveness_seconds: 0.5", "liveness_seconds is 0.5, want 1 to 3600"},
      {"liveness_seconds: 3601", "liveness_seconds is 3601, want 1 to 3600"},
      {"liveness_seconds: nan", "liveness_seconds is nan, want 1 to 3600"},
      {"drain_seconds: -1", "drain_seconds is -1, want 0 to 300"},
      {"drain_seconds: 301", "drain_seconds is 301, want 0 to 300"},
      {"idle_exit_seconds: inf", "idle_exit_seconds is inf, want 0 to 3.16224e+07"},
      {"max_request_bytes: 4095", "max_request_bytes is 4095, want 4096 to 268435456"},
      {"max_request_bytes: 268435457", "max_request_bytes is 268435457, want 4096 to 268435456"},
      {"home: 'opt'", R"(home is "opt", want an absolute path)"},
      {"catalog_dirs: 'c'", R"(catalog_dirs is "c", want an absolute path)"},
      {"kernel_dirs: 'k'", R"(kernel_dirs is "k", want an absolute path)"},
      {"http_address: '9464'",
       R"(http_address is "9464", want host:port with a port of 0 to 65535)"},
      {"http_address: ':9464'",
       R"(http_address is ":9464", want host:port with a port of 0 to 65535)"},
      {"http_address: 'h:65536'",
       R"(http_address is "h:65536", want host:port with a port of 0 to 65535)"},
      {"job_socket: '/s' admin_socket: '/s'",
       R"(job_socket and admin_socket are both "/s", want two sockets)"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(Validate(text), StatusIs(absl::StatusCode::kInvalidArgument, message));
  }
}

TEST(ValidateConfigTest, PathMustBeUtf8BecauseTheStatusNamesIt) {
  v1::DaemonConfig config;
  ApplyDefaults("/opt/fuseboard", &config);
  config.set_state_dir("/var/\xff");
  EXPECT_THAT(ValidateConfig(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                               R"(state_dir is "/var/\xff", want UTF-8)"));
}

TEST(ValidateConfigTest, SocketPathMustFitIntoASocketAddress) {
  const std::string longest = "/" + std::string(106, 's');
  EXPECT_THAT(Validate("job_socket: '" + longest + "'"), IsOk());
  EXPECT_THAT(Validate("job_socket: '" + longest + "s'"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("with 108 characters, want at most 107")));
}

TEST(ValidateConfigTest, AllErrorsAreToldAtOnce) {
  EXPECT_THAT(Validate("home: 'x' drain_seconds: 301"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       R"(home is "x", want an absolute path; drain_seconds is 301, )"
                       "want 0 to 300"));
}

}  // namespace
}  // namespace fuseboard
