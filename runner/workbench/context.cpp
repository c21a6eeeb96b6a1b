#include "workbench/context.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
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

JudgedDigests Context::judged() const {
  const std::string path = "reports/evidence/judged.json";
  const std::optional<std::string> text = file_text(root / path);
  JudgedDigests digests = text ? JudgedDigests::parse(*text, path) : JudgedDigests();
  for (const std::string& slug : pack_folders(root)) {
    const Manifest pack = manifest(slug);
    digests.add(pack.sha256, pack.judged);
  }
  return digests;
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

}  // namespace patchbench
