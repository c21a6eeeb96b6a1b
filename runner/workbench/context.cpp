#include "workbench/context.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <fstream>
#include <iostream>
#include <mutex>
#include <streambuf>
#include <utility>

#include "core/day.h"
#include "core/error.h"
#include "core/file_text.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// Folders under packs/ that hold a manifest, in the order of their names.
std::vector<std::string> pack_folders(const fs::path& root) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "packs", error)) {
    if (fs::exists(entry.path() / "manifest.json")) out.push_back(entry.path().filename().string());
  }
  if (error) {
    throw Error(ErrorCode::kUsage, (root / "packs").string() + ": " + error.message() +
                                       "; PATCHBENCH_ROOT must name the repository");
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::atomic<bool> is_line_pending = false;

void write_stderr(const std::string& text) {
  // A run goes on when a progress line cannot be written.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void clear_line() {
  if (is_line_pending.exchange(false)) write_stderr("\r\x1b[K");
}

/// A stream that std::cout and std::cerr are tied to: what they print starts on a clear line.
class LineClearer : public std::streambuf {
 protected:
  int sync() override {
    clear_line();
    return 0;
  }
};

void tie_streams() {
  // Never destroyed: both streams are flushed after the destructors of statics have run.
  static std::ostream* clearer = new std::ostream(new LineClearer);
  std::cout.tie(clearer);
  std::cerr.tie(clearer);
}

size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Manifest Context::manifest(const std::string& slug) const {
  const std::vector<std::string> known = pack_folders(root);
  if (std::find(known.begin(), known.end(), slug) == known.end()) {
    throw Error(ErrorCode::kUsage,
                "no pack \"" + shown(slug) + "\"" + did_you_mean(shown(slug), known));
  }
  const std::string path = "packs/" + slug + "/manifest.json";
  Manifest out =
      parse_manifest(read_file(root / path), path, read_file(root / "packs/manifest.schema.json"));
  if (out.slug.str() != slug) {
    throw Error(ErrorCode::kUsage,
                path + ": the slug is " + out.slug.str() + ", the folder " + slug);
  }
  return out;
}

std::vector<std::string> Context::slugs() const {
  std::vector<std::pair<int, std::string>> numbered;
  for (const std::string& slug : pack_folders(root))
    numbered.emplace_back(manifest(slug).number, slug);
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> out;
  for (auto& [number, slug] : numbered) out.push_back(std::move(slug));
  return out;
}

Pins Context::pins() const {
  return Pins::parse(read_file(root / "env/pins.json"), "env/pins.json");
}

void check_since(const std::string& since) {
  if (!since.empty() && !is_day(since) && !is_time(since)) {
    throw Error(ErrorCode::kUsage,
                "--since: '" + shown(since) + "' is neither 2026-01-31 nor 2026-01-31T12:00:00Z");
  }
}

const Clock& system_clock() {
  class System : public Clock {
   public:
    std::string now() const override {
      return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
    }
  };
  static const System clock;
  return clock;
}

void print_json(const Context& context, const Json& document) {
  context.out() << document.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void write_whole(const fs::path& path, const std::string& text) {
  std::error_code failed;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), failed);
  const fs::path part = path.string() + ".tmp";
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  if (!out)
    throw Error(ErrorCode::kUsage,
                path.string() + ": cannot be written; check the folder and its permissions");
  fs::rename(part, path);
}

void progress(const std::string& text) {
  if (::isatty(STDERR_FILENO) != 1) {
    write_stderr("patchbench: " + text + "\n");
    return;
  }
  static std::once_flag is_tied;
  std::call_once(is_tied, tie_streams);
  const size_t columns = terminal_columns();
  write_stderr("\r\x1b[K" + (text.size() < columns ? text : text.substr(0, columns - 1)));
  is_line_pending = true;
}

}  // namespace patchbench
