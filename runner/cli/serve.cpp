#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "core/error.h"
#include "status/osv_feed.h"

namespace patchbench::cli {
namespace {

constexpr int kDefaultPort = 8039, kBacklog = 128, kIdleSeconds = 5, kServerError = 500;
constexpr std::size_t kMaxBodyBytes = std::size_t{1} << 20, kMaxHeaderBytes = std::size_t{16} << 10;

struct ServeOptions {
  int port = kDefaultPort;
  std::string db;
};

struct Freed {
  void operator()(event_base* base) const { event_base_free(base); }
  void operator()(evhttp* http) const { evhttp_free(http); }
  void operator()(event* one) const { event_free(one); }
  void operator()(evbuffer* buffer) const { evbuffer_free(buffer); }
};
template <typename Thing>
using Owned = std::unique_ptr<Thing, Freed>;

/// What the library returns; null means that it has no memory or no descriptor left.
template <typename Thing>
Thing* made(Thing* thing, const char* what) {
  if (thing == nullptr)
    throw Error(ErrorCode::kInternal, std::string("serve: cannot make ") + what);
  return thing;
}

/// One feed, and what its user was told.
struct Service {
  Context& context;
  OsvFeed feed;
  std::set<std::string> told;
};

/// Says once of each release that it is unknown, which OSV has no word for.
void tell_unknown(Service& service, const std::vector<std::string>& unknown) {
  constexpr std::size_t kMaxTold = 10'000;
  for (const std::string& one : unknown) {
    if (service.told.size() >= kMaxTold || !service.told.insert(one).second) continue;
    service.context.err() << fmt::format(
        "patchbench: serve: {}: a pack does not know whether it is hit; patchbench scan says why\n",
        one);
  }
}

void reply(evhttp_request* request, void* data) {
  Service& service = *static_cast<Service*>(data);
  OsvAnswer answer;
  try {
    const evhttp_uri* uri = evhttp_request_get_evhttp_uri(request);
    const char* path = uri == nullptr ? nullptr : evhttp_uri_get_path(uri);
    evbuffer* input = evhttp_request_get_input_buffer(request);
    std::string body(evbuffer_get_length(input), '\0');
    evbuffer_copyout(input, body.data(), body.size());
    const char* method = evhttp_request_get_command(request) == EVHTTP_REQ_POST ? "POST" : "GET";
    answer = service.feed.answer(method, path == nullptr ? "" : path, body);
    tell_unknown(service, answer.unknown);
  } catch (const std::exception& error) {
    // One request that fails ends no other.
    answer = {.status = kServerError, .body = {{"message", error.what()}}, .unknown = {}};
  }
  const Owned<evbuffer> out(evbuffer_new());
  const std::string text = answer.body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  evbuffer_add(out.get(), text.data(), text.size());
  evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", "application/json");
  evhttp_send_reply(request, answer.status, nullptr, out.get());
}

void end(evutil_socket_t, short, void* base) {
  event_base_loopbreak(static_cast<event_base*>(base));
}

void listen_again(evutil_socket_t, short, void* listener) {
  evconnlistener_enable(static_cast<evconnlistener*>(listener));
}

/// No descriptor is left: new clients wait until others have gone.
void rest(evconnlistener* listener, void*) {
  constexpr timeval kRest{.tv_sec = 0, .tv_usec = 100'000};
  evconnlistener_disable(listener);
  event_base_once(evconnlistener_get_base(listener), -1, EV_TIMEOUT, listen_again, listener,
                  &kRest);
}

/// Listens on the loopback alone; the port that it has.
int listen_on(event_base* base, evhttp* http, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  evconnlistener* listener = evconnlistener_new_bind(
      base, nullptr, nullptr, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
      kBacklog, reinterpret_cast<sockaddr*>(&address), sizeof address);
  if (listener == nullptr)
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("serve: port {} of 127.0.0.1: {}; --port 0 takes a free one", port,
                            std::strerror(errno)));
  made(evhttp_bind_listener(http, listener), "a listener");
  evconnlistener_set_error_cb(listener, rest);
  socklen_t size = sizeof address;
  getsockname(evconnlistener_get_fd(listener), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

void serve(Context& context, const ServeOptions& options) {
  std::vector<Manifest> packs;
  for (const std::string& slug : context.slugs()) packs.push_back(context.manifest(slug));
  VerdictTable table = verdict_table(context, options.db);
  const std::string day = table.date;
  Service service{
      context, OsvFeed(std::move(packs), std::move(table), read_upstream_threads(context)), {}};

  std::signal(SIGPIPE, SIG_IGN);  // a client that left
  const Owned<event_base> base(made(event_base_new(), "an event loop"));
  const Owned<evhttp> http(made(evhttp_new(base.get()), "a server"));
  evhttp_set_gencb(http.get(), reply, &service);
  evhttp_set_allowed_methods(http.get(), EVHTTP_REQ_GET | EVHTTP_REQ_POST);
  evhttp_set_max_body_size(http.get(), kMaxBodyBytes);
  evhttp_set_max_headers_size(http.get(), kMaxHeaderBytes);
  evhttp_set_timeout(http.get(), kIdleSeconds);
  std::vector<Owned<event>> signals;
  for (const int number : {SIGINT, SIGTERM}) {
    signals.emplace_back(made(evsignal_new(base.get(), number, end, base.get()), "a signal"));
    event_add(signals.back().get(), nullptr);
  }
  const int port = listen_on(base.get(), http.get(), options.port);
  const std::string url = fmt::format("http://127.0.0.1:{}/v1/query", port);
  if (context.json) {
    print_json(context, {{"url", url}, {"port", port}, {"verdicts_of", day}});
  } else {
    context.out() << fmt::format("OSV queries at {}; verdicts of {}; Ctrl-C ends it\n", url, day);
  }
  context.out().flush();
  event_base_dispatch(base.get());
}

}  // namespace

void add_serve_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      app.add_subcommand("serve", "answer the query API of OSV on this machine, from the verdicts");
  constexpr int kMaxPort = 65535;
  command
      ->add_option("--port", options->port,
                   fmt::format("of 127.0.0.1; 0 takes a free one (default: {})", kDefaultPort))
      ->check(CLI::Range(0, kMaxPort));
  command->add_option("--db", options->db, "a newer verdict table (export --format verdicts)");
  command->footer(
      "POST /v1/query, POST /v1/querybatch, GET /v1/vulns/ID, on the loopback alone. A release "
      "has\n"
      "the packs of which scan says hit, or hit with a package that the query does not name. OSV\n"
      "has no word for unknown: an empty answer does not mean right; serve names such a release "
      "on\n"
      "stderr. Ctrl-C ends it.\n"
      "Examples:\n"
      "  patchbench serve\n"
      "  patchbench serve --port 0 --db verdicts.json");
  command->callback([options, &context] { serve(context, *options); });
}

}  // namespace patchbench::cli
