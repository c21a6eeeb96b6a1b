#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>

#include "cli/context.h"
#include "cli/skeleton.h"
#include "core/error.h"
#include "core/file_text.h"

namespace patchbench::cli {
void add_new_command(CLI::App& app, Context& context);

namespace {

namespace fs = std::filesystem;

struct Words {
  std::string slug, title, kind = "bug";
  int number = 0;
  std::vector<std::string> upstreams;
};

/// `NAME@VERSION=FILE[,FILE…]`.
UpstreamUse read_upstream(const std::string& text, const Pins& pins) {
  const size_t at = text.find('@'), equals = text.find('=');
  if (at == std::string::npos || equals == std::string::npos || equals < at) {
    throw Error(
        ErrorCode::kUsage,
        "--upstream " + shown(text) +
            ": want NAME@VERSION=FILE[,FILE], e.g. liger-kernel@0.8.0=liger_kernel/ops/a.py");
  }
  UpstreamUse use{text.substr(0, at), text.substr(at + 1, equals - at - 1), {}};
  const Pin pin = pins.resolve(use.name, use.red_pin);
  use.red_pin = pin.version;
  for (const std::string& file : CLI::detail::split(text.substr(equals + 1), ',')) {
    if (!file.empty()) use.files.push_back(file);
  }
  if (use.files.empty())
    throw Error(ErrorCode::kUsage, "--upstream " + shown(text) + ": names no file after \"=\"");
  return use;
}

/// The wanted number, or one above the highest if none (0) was asked for.
int choose_number(const Context& context, int wanted) {
  int highest = 0;
  for (const std::string& slug : context.slugs()) {
    const int number = context.manifest(slug).number;
    highest = std::max(highest, number);
    if (number == wanted) {
      throw Error(ErrorCode::kUsage, fmt::format("--number {}: that is {}", wanted, slug));
    }
  }
  return wanted == 0 ? highest + 1 : wanted;
}

/// The day a quarter from now: when the pack is looked at again.
std::string review_day() {
  const std::time_t then = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() +
                                                                std::chrono::days(91));
  std::tm parts{};
  ::gmtime_r(&then, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

void write_all(const fs::path& root, const std::map<std::string, std::string>& files) {
  for (const auto& [path, text] : files) {
    if (fs::exists(root / path))
      throw Error(ErrorCode::kUsage, path + " is there already; nothing was written");
  }
  for (const auto& [path, text] : files) {
    std::error_code failed;
    fs::create_directories((root / path).parent_path(), failed);
    std::ofstream file(root / path, std::ios::binary);
    if (!(file << text).flush())
      throw Error(ErrorCode::kInternal, (root / path).string() + ": cannot be written");
  }
}

void make_pack(const Context& context, const Words& words) {
  NewPack pack{.slug = Slug(words.slug),
               .number = 0,
               .title = words.title,
               .kind = words.kind,
               .upstreams = {}};
  const std::vector<std::string> known = context.slugs();
  if (std::find(known.begin(), known.end(), words.slug) != known.end()) {
    throw Error(ErrorCode::kUsage,
                "the pack " + words.slug + " is there already; patchbench show " + words.slug);
  }
  pack.number = choose_number(context, words.number);
  const Pins pins = context.pins();
  for (const std::string& text : words.upstreams)
    pack.upstreams.push_back(read_upstream(text, pins));
  const std::map<std::string, std::string> files = skeleton_of(pack, review_day());
  const std::string path = cell_path(pack.slug, Column::kPack) + "/manifest.json";
  parse_manifest(files.at(path), path, read_file(context.root / "packs/manifest.schema.json"));
  write_all(context.root, files);
  Json written = Json::array();
  for (const auto& [file, text] : files) written.push_back(file);
  if (context.json) {
    print_json({{"slug", words.slug}, {"number", pack.number}, {"written", written}});
    return;
  }
  fmt::print(std::cout, "{} is pack {:02}. Written:\n", words.slug, pack.number);
  for (const Json& file : written) fmt::print(std::cout, "  {}\n", file.get<std::string>());
  std::cout << "Each fails by name until it is filled in; layout_test holds the table's rules.\n";
}

}  // namespace

void add_new_command(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* command =
      app.add_subcommand("new", "write the first files of a pack; edits no file that is there");
  command->add_option("slug", words->slug, "lower-case words joined by _")->required();
  command->add_option("--title", words->title, "one line, at most 100 characters")->required();
  command->add_option("--number", words->number,
                      "the pack's number (default: one above the highest)");
  command->add_option("--kind", words->kind, "bug, refactor, memory or claim");
  command
      ->add_option("--upstream", words->upstreams,
                   "NAME@VERSION=FILE[,FILE…]: red pin and files; once an upstream")
      ->required();
  command->callback([words, &context] { make_pack(context, *words); });
}

}  // namespace patchbench::cli
