#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "tests/testing/status_matchers.h"

namespace fuseboard {
namespace {

using ::fuseboard::testing::IsOk;
using ::fuseboard::testing::StatusIs;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The whole answer to one request, which asks that the connection be closed.
std::string Exchange(const HttpServer& server, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return "no socket";
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(ParseHostPort(server.Address())->port);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> buffer{};
  for (ssize_t size = 0; (size = read(fd, buffer.data(), buffer.size())) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(size));
  }
  close(fd);
  return answer;
}

std::string Request(const std::string& method, const std::string& path) {
  return method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
}

std::unique_ptr<HttpServer> StartOnFreePort() {
  auto server = HttpServer::Start(
      "127.0.0.1:0", {{"/page", [] { return HttpResponse{.body = "content\n"}; }},
                      {"/busy", [] { return HttpResponse{.code = 503, .body = "draining\n"}; }}});
  EXPECT_THAT(server, IsOk());
  return *std::move(server);
}

TEST(HttpServerTest, ServesPagesWithTheirCode) {
  const auto server = StartOnFreePort();
  EXPECT_THAT(Exchange(*server, Request("GET", "/page")), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Exchange(*server, Request("GET", "/page?x=1")), EndsWith("\r\n\r\ncontent\n"));
  EXPECT_THAT(Exchange(*server, Request("GET", "/busy")), StartsWith("HTTP/1.1 503"));
}

TEST(HttpServerTest, HeadHasNoBody) {
  const auto server = StartOnFreePort();
  EXPECT_THAT(Exchange(*server, Request("HEAD", "/page")), EndsWith("\r\n\r\n"));
}

TEST(HttpServerTest, RefusesOtherPathsAndMethods) {
  const auto server = StartOnFreePort();
  EXPECT_THAT(Exchange(*server, Request("GET", "/other")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Exchange(*server, Request("POST", "/page")), StartsWith("HTTP/1.1 405"));
}

TEST(HttpServerTest, GarbageAndOversizedHeadersDoNotStopIt) {
  const auto server = StartOnFreePort();
  Exchange(*server, "\x01\x02\x03 no request at all\r\n\r\n");
  Exchange(*server, "GET /page HTTP/1.1\r\nX: " + std::string(1 << 16, 'x') + "\r\n\r\n");
  EXPECT_THAT(Exchange(*server, Request("GET", "/page")), HasSubstr("content"));
}

TEST(HttpServerTest, TakenPortIsRefusedByAddress) {
  const auto server = StartOnFreePort();
  EXPECT_THAT(HttpServer::Start(server->Address(), {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(server->Address())));
}

TEST(ParseHostPortTest, TakesNamesAndBothKindsOfAddress) {
  EXPECT_EQ(ParseHostPort("localhost:9464")->host, "localhost");
  EXPECT_EQ(ParseHostPort("127.0.0.1:0")->port, 0);
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "::1");
}

TEST(ParseHostPortTest, RefusesWhatIsNeither) {
  for (const char* text : {"", "9464", ":9464", "host:", "host:65536", "host:-1", "::1:80"}) {
    EXPECT_THAT(ParseHostPort(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace fuseboard
