// A small HTTP/1.1 server for pages that the daemon makes on request: GET and HEAD of fixed paths,
// answered one after the other on the server's own thread. Knows no metric and no gRPC. Start and
// the destructor may be called from any one thread; handlers run on the server's thread.

#ifndef SERVER_HTTP_HTTP_SERVER_H_
#define SERVER_HTTP_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fuseboard {

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// "host:port" taken apart; "[::1]:9464" is understood. Errors: InvalidArgument.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

class HttpServer {
 public:
  using Handler = std::function<HttpResponse()>;

  // Listens on `address` ("host:port"; port 0 takes a free one) and serves `pages` by exact path;
  // any other path is 404, any other method 405.
  // Errors: InvalidArgument for a malformed address; FailedPrecondition if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(absl::string_view address,
                                                           std::map<std::string, Handler> pages);

  // Stops listening and joins the thread; open connections are closed.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "host:port" with the port that was really bound.
  [[nodiscard]] const std::string& Address() const { return address_; }

 private:
  class Loop;  // libevent's part, kept out of this header.

  HttpServer(std::string address, std::unique_ptr<Loop> loop);

  const std::string address_;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace fuseboard

#endif  // SERVER_HTTP_HTTP_SERVER_H_
