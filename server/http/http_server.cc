#include "server/http/http_server.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

// A scraper sends a few hundred bytes; a client that sends more, or none for 10 s, is cut off.
constexpr int kMaxHeaderBytes = 8192;
constexpr int kMaxBodyBytes = 1024;
constexpr int kTimeoutSeconds = 10;

template <typename T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* object) const { Free(object); }
};
using EventBase = std::unique_ptr<event_base, Deleter<event_base, event_base_free>>;
using Event = std::unique_ptr<event, Deleter<event, event_free>>;
using Http = std::unique_ptr<evhttp, Deleter<evhttp, evhttp_free>>;

std::string FormatHostPort(const HostPort& address) {
  const bool v6 = absl::StrContains(address.host, ":");
  return absl::StrCat(v6 ? "[" : "", address.host, v6 ? "]" : "", ":", address.port);
}

uint16_t BoundPort(evutil_socket_t fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is not host:port with a port of 0 to 65535"));
  }
  absl::string_view host = address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && absl::StrContains(host, ":")) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\": write an IPv6 host in brackets, as [::1]:9464"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

class HttpServer::Loop {
 public:
  explicit Loop(std::map<std::string, Handler> pages) : pages_(std::move(pages)) {}

  ~Loop() {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      // Cannot fail: the counter is far from its maximum and the descriptor is ours.
      [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
      thread_.join();
    }
    http_.reset();
    stop_event_.reset();
    base_.reset();
    if (stop_fd_ >= 0) close(stop_fd_);
  }

  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Returns the bound port.
  absl::StatusOr<uint16_t> Bind(const HostPort& address) {
    base_.reset(event_base_new());
    http_.reset(evhttp_new(base_.get()));
    stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (base_ == nullptr || http_ == nullptr || stop_fd_ < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot create the HTTP server: ", std::strerror(errno)));
    }
    stop_event_.reset(event_new(
        base_.get(), stop_fd_, EV_READ,
        [](evutil_socket_t, int16_t, void* base) {
          event_base_loopbreak(static_cast<event_base*>(base));
        },
        base_.get()));
    event_add(stop_event_.get(), nullptr);
    evhttp_set_max_headers_size(http_.get(), kMaxHeaderBytes);
    evhttp_set_max_body_size(http_.get(), kMaxBodyBytes);
    evhttp_set_timeout(http_.get(), kTimeoutSeconds);
    evhttp_set_gencb(http_.get(), &Loop::Answer, this);
    evhttp_bound_socket* socket =
        evhttp_bind_socket_with_handle(http_.get(), address.host.c_str(), address.port);
    if (socket == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot listen on ", FormatHostPort(address), ": ", std::strerror(errno)));
    }
    return BoundPort(evhttp_bound_socket_get_fd(socket));
  }

  void Run() {
    thread_ = std::thread([base = base_.get()] { event_base_dispatch(base); });
  }

 private:
  static void Answer(evhttp_request* request, void* self) {
    const HttpResponse response = static_cast<Loop*>(self)->Respond(request);
    evkeyvalq* headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Content-Type", response.content_type.c_str());
    // NOTE: libevent 2.1 would send a body in answer to HEAD.
    if (evhttp_request_get_command(request) != EVHTTP_REQ_HEAD) {
      evbuffer* body = evhttp_request_get_output_buffer(request);
      evbuffer_add(body, response.body.data(), response.body.size());
    }
    evhttp_send_reply(request, response.code, nullptr, nullptr);
  }

  HttpResponse Respond(evhttp_request* request) const {
    const evhttp_cmd_type method = evhttp_request_get_command(request);
    if (method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD) {
      return {.code = HTTP_BADMETHOD, .body = "only GET and HEAD\n"};
    }
    const char* path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(request));
    const auto page = pages_.find(path == nullptr ? "" : path);
    if (page == pages_.end()) return {.code = HTTP_NOTFOUND, .body = "no such page\n"};
    return page->second();
  }

  const std::map<std::string, Handler> pages_;
  int stop_fd_ = -1;
  EventBase base_;
  Event stop_event_;
  Http http_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    absl::string_view address, std::map<std::string, Handler> pages) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return parsed.status();
  auto loop = std::make_unique<Loop>(std::move(pages));
  absl::StatusOr<uint16_t> port = loop->Bind(*parsed);
  if (!port.ok()) return port.status();
  parsed->port = *port;
  loop->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(FormatHostPort(*parsed), std::move(loop)));
}

HttpServer::HttpServer(std::string address, std::unique_ptr<Loop> loop)
    : address_(std::move(address)), loop_(std::move(loop)) {}

HttpServer::~HttpServer() = default;

}  // namespace fuseboard
