#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <regex>

#include "cli/context.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/observation.h"
#include "exec/process.h"
#include "report/table.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// A file that the index has and the locks lack.
struct Proposed {
  std::string upstream, version, date, file, sha256;
};

/// "0.5.10", "2.3.2.post1" as numbers, so that 0.5.10 comes after 0.5.9. nullopt for anything but a
/// final release or a post release.
std::optional<std::vector<int>> release_of(const std::string& version) {
  static const std::regex kFinal(R"((\d{1,6}(?:\.\d{1,6})*)(?:\.post(\d{1,6}))?)");
  std::smatch match;
  if (!std::regex_match(version, match, kFinal)) return std::nullopt;
  std::vector<int> numbers;
  const std::string dotted = match[1];
  for (std::size_t at = 0; at != std::string::npos; at = dotted.find('.', at)) {
    if (at > 0) ++at;
    numbers.push_back(std::stoi(dotted.substr(at)));
  }
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();
  numbers.resize(std::max<std::size_t>(numbers.size(), 6));
  numbers.push_back(match[2].matched ? 1 + std::stoi(match[2]) : 0);
  return numbers;
}

std::string escaped(const std::string& text) {
  return std::regex_replace(text, std::regex(R"([.+*?^$()\[\]{}|\\])"), R"(\$&)");
}

/// The version in a file's name where the name is that of a locked file but for its version.
std::optional<std::string> version_in(const std::string& file, const Pin& like) {
  const auto at = like.filename.find(like.version);
  if (at == std::string::npos) return std::nullopt;
  // The platform part of a wheel's name may name another manylinux; its kind may not change.
  const std::string before = like.filename.substr(0, at);
  const bool is_sdist = like.filename.ends_with(".tar.gz");
  const std::string after = like.filename.substr(at + like.version.size());
  const std::string tags = after.substr(0, after.rfind('-') + 1);
  const bool is_any = after.ends_with("-any.whl");
  const std::string pattern =
      escaped(before) + R"(([0-9][0-9a-z.]*))" +
      (is_sdist || is_any ? escaped(after)
                          : escaped(tags) + R"([a-z0-9_.]*linux[a-z0-9_.]*x86_64\.whl)");
  std::smatch match;
  if (!std::regex_match(file, match, std::regex(pattern))) return std::nullopt;
  return match[1];
}

[[noreturn]] void malformed(const std::string& project, const std::string& reason) {
  throw Error(ErrorCode::kUsage, "the index page of " + project + ": " + reason);
}

std::string text_of(const Json& object, const std::string& key, const std::string& project) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || at == object.end() || !at->is_string())
    malformed(project, "a file without \"" + key + "\"");
  return at->get<std::string>();
}

/// Final releases that are not locked, newer than the newest locked one by version or by day.
std::vector<Proposed> newer(const Upstream& upstream, const Json& page) {
  std::vector<Proposed> out;
  if (upstream.releases.empty()) return out;
  const Pin& last = upstream.releases.back();
  const auto newest = release_of(last.version);
  const std::string project = last.project;
  const Json files = page.is_object() ? page.value("files", Json()) : Json();
  if (!files.is_array()) malformed(project, "no \"files\"; it is not PEP 691 JSON");
  for (const Json& file : files) {
    const std::string name = text_of(file, "filename", project);
    const auto version = version_in(name, last);
    const auto release = version ? release_of(*version) : std::nullopt;
    const Json yanked = file.value("yanked", Json(false));
    if (!release || (yanked.is_boolean() ? yanked.get<bool>() : true)) continue;
    const bool is_locked = std::any_of(upstream.releases.begin(), upstream.releases.end(),
                                       [&](const Pin& pin) { return pin.version == *version; });
    const std::string day = text_of(file, "upload-time", project).substr(0, 10);
    if (is_locked || (newest && *release <= *newest && day <= last.date)) continue;
    const std::string sha256 = text_of(file.value("hashes", Json::object()), "sha256", project);
    if (!is_hex(sha256, 64)) malformed(project, name + " has a malformed sha256");
    out.push_back({upstream.name, *version, day, name, sha256});
  }
  std::sort(out.begin(), out.end(), [](const Proposed& a, const Proposed& b) {
    return std::tuple(a.date, release_of(a.version), a.file) <
           std::tuple(b.date, release_of(b.version), b.file);
  });
  // Several builds of one release differ in their platform tags alone: the first is enough.
  out.erase(
      std::unique(out.begin(), out.end(),
                  [](const Proposed& a, const Proposed& b) { return a.version == b.version; }),
      out.end());
  return out;
}

/// {project: PEP 691 page}, from a file or from the index. Throws Error(kNotRunnable) without a
/// network.
Json index_pages(const Context& context, const std::string& offline,
                 const std::vector<std::string>& projects) {
  if (!offline.empty()) return parse_json(read_file(offline), offline);
  std::vector<std::string> argv = {"python3", (context.root / "env/fetch.py").string(), "index"};
  argv.insert(argv.end(), projects.begin(), projects.end());
  const exec::Exit done = exec::run({.argv = argv});
  if (!done.ok()) {
    std::string why = one_line(done.err, 300);
    throw Error(ErrorCode::kNotRunnable, "pins update: the package index is out of reach (" + why +
                                             "); --offline FILE reads its pages from a file");
  }
  return parse_json(done.out, "the package index");
}

std::string lock_line(const Proposed& p) {
  return fmt::format(R"({{"version": "{}", "date": "{}", "file": "{}", "sha256": "{}"}})",
                     p.version, p.date, p.file, p.sha256);
}

/// env/pins.json with the lines put after the newest release of their upstream.
std::string with_lines(std::string text, const Upstream& upstream,
                       const std::vector<Proposed>& proposed) {
  const std::string last = "\"sha256\": \"" + upstream.releases.back().sha256 + "\"";
  const auto at = text.find(last);
  const auto end = at == std::string::npos ? at : text.find('}', at);
  if (end == std::string::npos || text.find(last, at + 1) != std::string::npos)
    throw Error(ErrorCode::kUsage, "env/pins.json: the newest release of " + upstream.name +
                                       " was not found as one line; add the lines by hand");
  const auto line = text.rfind('\n', at) + 1;
  const std::string indent = text.substr(line, text.find('{', line) - line);
  std::string lines;
  for (const Proposed& p : proposed) lines += ",\n" + indent + lock_line(p);
  return text.insert(end + 1, lines);
}

/// The packs whose windows get a cell that is not measured, with each proposed release.
std::vector<std::string> packs_on(const Context& context, const std::string& upstream) {
  std::vector<std::string> packs;
  for (const std::string& slug : context.slugs()) {
    for (const UpstreamUse& use : context.manifest(slug).upstreams) {
      if (use.name == upstream && !use.from_environment) packs.push_back(slug);
    }
  }
  return packs;
}

struct Words {
  std::string upstream, offline;
  bool is_written = false;
};

void run_update(Context& context, const Words& words) {
  const Pins pins = context.pins();
  std::vector<std::string> projects;
  std::vector<const Upstream*> asked;
  if (!words.upstream.empty()) {
    asked = {&pins.upstream(words.upstream)};
  } else {
    for (const auto& [name, upstream] : pins.all()) asked.push_back(&upstream);
  }
  std::erase_if(asked, [](const Upstream* upstream) { return upstream->releases.empty(); });
  for (const Upstream* upstream : asked) projects.push_back(upstream->releases.back().project);
  const Json pages = index_pages(context, words.offline, projects);
  std::string text = read_file(context.root / "env/pins.json");
  report::Table table({"upstream", "version", "date", "file", "not measured for"});
  Json rows = Json::array();
  std::string lines;
  for (const Upstream* upstream : asked) {
    const std::string project = upstream->releases.back().project;
    if (!pages.is_object() || !pages.contains(project)) continue;
    const std::vector<Proposed> proposed = newer(*upstream, pages.at(project));
    const std::vector<std::string> packs = packs_on(context, upstream->name);
    if (!proposed.empty()) text = with_lines(std::move(text), *upstream, proposed);
    for (const Proposed& p : proposed) {
      table.add({p.upstream, p.version, p.date, p.file, fmt::format("{}", fmt::join(packs, " "))});
      lines += lock_line(p) + "\n";
      rows.push_back({{"upstream", p.upstream},
                      {"version", p.version},
                      {"date", p.date},
                      {"file", p.file},
                      {"sha256", p.sha256},
                      {"unmeasured", packs}});
    }
  }
  if (words.is_written && !rows.empty()) {
    Pins::parse(text, "env/pins.json");
    write_whole(context.root / "env/pins.json", text);
  }
  if (context.json) {
    print_json({{"releases", rows}, {"written", words.is_written && !rows.empty()}});
  } else if (rows.empty()) {
    std::cout << "the locks hold every release of the index\n";
  } else {
    std::cout << table.render(report::style_of(STDOUT_FILENO)) << "\n"
              << (words.is_written ? "written to env/pins.json:\n"
                                   : "lines for env/pins.json (--write puts them in):\n")
              << lines << "their cells are unmeasured until: patchbench window SLUG --resume\n";
  }
}

}  // namespace

void add_pins_command(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* group = app.add_subcommand("pins", "the locked releases of the upstreams");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand(
      "update", "look at the package index for releases newer than the locks and propose lines");
  command->add_option("upstream", words->upstream, "only this one");
  command->add_option("--offline", words->offline,
                      "read the index from FILE: {project: its PEP 691 JSON page}");
  command->add_flag("--write", words->is_written, "put the lines into env/pins.json");
  command->footer(
      "A proposed release has the same kind of file as the newest locked one, is final and not\n"
      "yanked, and is newer by version or by day. Nothing is downloaded but the index pages.\n"
      "Exit: 0 done, 4 the index is out of reach.");
  command->callback([words, &context] { run_update(context, *words); });
}

}  // namespace patchbench::cli
