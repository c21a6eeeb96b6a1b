#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/slug.h"
#include "git/checkout.h"
#include "workbench/skeleton.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct NewOptions {
  std::string slug, title, kind = "bug";
  int number = 0;
  std::vector<std::string> upstreams;
  std::optional<FoundInputs> found;
};

/// What a folder of a release holds: "liger_kernel/ holds __init__.py, ops/". `folder` is "" or
/// ends in "/". A folder that holds one folder alone is entered.
std::string content_of(const std::vector<std::string>& files, const std::string& folder) {
  std::set<std::string> names;
  for (const std::string& file : files) {
    if (!file.starts_with(folder)) continue;
    const size_t slash = file.find('/', folder.size());
    names.insert(
        file.substr(folder.size(), slash == std::string::npos ? slash : slash + 1 - folder.size()));
  }
  if (names.size() == 1 && names.begin()->ends_with("/"))
    return content_of(files, folder + *names.begin());
  return fmt::format("{} holds {}", folder.empty() ? "the release" : folder,
                     fmt::join(names, ", "));
}

/// Every file of a release; empty if it cannot be had now.
std::vector<std::string> files_of(const Pin& pin, const Context& context) {
  try {
    return git::Store(context.cache, context.root).list(pin);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kNotRunnable) throw;
    return {};
  }
}

/// The release named by `NAME@VERSION`, or by `NAME` alone the newest one in env/pins.json.
Pin read_release(const std::string& text, const Pins& pins) {
  const size_t at = text.find('@');
  if (at != std::string::npos) return pins.resolve(text.substr(0, at), text.substr(at + 1));
  const Upstream& upstream = pins.upstream(text);
  if (!upstream.releases.empty()) return upstream.releases.back();
  std::vector<std::string> commits;
  for (const Pin& pin : upstream.commits)
    commits.push_back(text + "@" + short_version(pin.version));
  throw Error(ErrorCode::kUsage,
              fmt::format("{}: env/pins.json names no release of it; write NAME@git:COMMIT=FILE{}",
                          text, did_you_mean(text, commits)));
}

/// Throws Error(kUsage) if a file is not in its release, which must lie in the cache already.
void check_files(const UpstreamUse& use, const Pin& pin, const Context& context) {
  if (!fs::exists(context.cache / "files" / pin.sha256 / pin.filename) || pin.filename.empty())
    return;
  const std::vector<std::string> known = files_of(pin, context);
  if (known.empty()) return;  // out of reach after all
  for (const std::string& file : use.files) {
    if (std::find(known.begin(), known.end(), file) != known.end()) continue;
    std::string folder = file.substr(0, file.rfind('/') + 1);  // "" without a slash
    const auto is_inside = [&](const std::string& one) { return one.starts_with(folder); };
    while (!folder.empty() && std::none_of(known.begin(), known.end(), is_inside))
      folder = folder.substr(0, folder.rfind('/', folder.size() - 2) + 1);
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: not a file of {} {}; {}", shown(file), pin.upstream, pin.version,
                            content_of(known, folder)));
  }
}

/// `NAME[@VERSION]=FILE[,FILE…]`.
UpstreamUse read_upstream(const std::string& text, const Context& context, const Pins& pins) {
  const size_t equals = text.find('=');
  const Pin pin = read_release(text.substr(0, equals), pins);
  UpstreamUse use{pin.upstream, pin.version, {}};
  if (equals != std::string::npos) {
    for (const std::string& file : CLI::detail::split(text.substr(equals + 1), ',')) {
      if (!file.empty()) use.files.push_back(file);
    }
  }
  if (use.files.empty()) {
    const std::vector<std::string> known = files_of(pin, context);
    const std::string package = pins.upstream(pin.upstream).package + "/";
    const bool has_package = std::any_of(known.begin(), known.end(), [&](const std::string& file) {
      return file.starts_with(package);
    });
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{0}: name the files with the bug: {1}@{2}=FILE[,FILE]{3}", shown(text),
                    pin.upstream, short_version(pin.version),
                    known.empty() ? "" : "; " + content_of(known, has_package ? package : "")));
  }
  check_files(use, pin, context);
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

/// "owner/name" of "https://host/owner/name.git".
std::string repository_of(std::string url) {
  if (url.ends_with(".git")) url.resize(url.size() - 4);
  const fs::path path(url);
  return path.parent_path().filename().string() + "/" + path.filename().string();
}

/// Writes the first files of a pack; returns it and their paths.
std::pair<NewPack, Json> write_pack(const Context& context, const NewOptions& options) {
  NewPack pack{.slug = Slug(options.slug),
               .number = 0,
               .title = options.title,
               .kind = options.kind,
               .upstreams = {},
               .repository = "",
               .found = options.found};
  const std::vector<std::string> known = context.slugs();
  if (std::find(known.begin(), known.end(), options.slug) != known.end()) {
    throw Error(ErrorCode::kUsage,
                "the pack " + options.slug + " is there already; patchbench show " + options.slug);
  }
  pack.number = choose_number(context, options.number);
  const Pins pins = context.pins();
  for (const std::string& text : options.upstreams)
    pack.upstreams.push_back(read_upstream(text, context, pins));
  pack.repository = repository_of(pins.upstream(pack.upstreams.front().name).url);
  const std::map<std::string, std::string> files = skeleton_of(pack, review_day());
  const std::string path = cell_path(pack.slug, Column::kPack) + "/manifest.json";
  parse_manifest(files.at(path), path, read_file(context.root / "packs/manifest.schema.json"));
  write_all(context.root, files);
  Json written = Json::array();
  for (const auto& [file, text] : files) written.push_back(file);
  return {pack, written};
}

void make_pack(const Context& context, const NewOptions& options) {
  const auto [pack, written] = write_pack(context, options);
  if (context.json) {
    print_json(context, {{"slug", options.slug}, {"number", pack.number}, {"written", written}});
    return;
  }
  context.out() << fmt::format("{} is pack {:02}. Written:\n", options.slug, pack.number);
  for (const Json& file : written) context.out() << fmt::format("  {}\n", file.get<std::string>());
  context.out()
      << "Each fails by name until it is filled in; layout_test holds the table's rules.\n";
}

}  // namespace

Json write_found_pack(const Context& context, const std::string& slug, const std::string& title,
                      const std::string& upstream, const FoundInputs& found) {
  NewOptions options;
  options.slug = slug;
  options.title = title;
  options.upstreams = {upstream};
  options.found = found;
  return write_pack(context, options).second;
}

void add_new_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<NewOptions>();
  CLI::App* command =
      app.add_subcommand("new", "write the first files of a pack; edits no file that is there");
  command->add_option("slug", options->slug, "lower-case words joined by _")->required();
  command->add_option("--title", options->title, "one line, at most 100 characters")->required();
  command->add_option("--number", options->number,
                      "the pack's number (default: one above the highest)");
  command->add_option("--kind", options->kind, "bug, refactor, memory or claim");
  command
      ->add_option(
          "upstream", options->upstreams,
          "NAME[@VERSION]=FILE[,FILE…]: the release that has the bug (default: the newest in "
          "env/pins.json) and the files; a NAME or a folder alone lists files; once an upstream")
      ->required();
  command->footer(
      "Examples:\n"
      "  patchbench new my_bug liger-kernel@0.8.5=liger_kernel/ops/jsd.py \\\n"
      "      --title \"The gradient of row 1 is lost\"\n"
      "  patchbench new my_saving liger-kernel=liger_kernel/ops/dyt.py --kind memory \\\n"
      "      --title \"Logits are kept twice\"");
  command->callback([options, &context] { make_pack(context, *options); });
}

}  // namespace patchbench::cli
