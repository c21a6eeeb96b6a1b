#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/observation.h"
#include "exec/process.h"
#include "git/checkout.h"
#include "status/verdict_table.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// File -> the functions of it that some pack names.
using Wanted = std::map<std::string, std::vector<std::string>>;
using Texts = std::map<std::string, std::optional<std::string>>;

struct FunctionsOptions {
  std::string upstream;
  bool is_written = false;
};

/// What the packs name, by upstream.
std::map<std::string, Wanted> wanted_of(const Context& context, const std::string& upstream) {
  std::map<std::string, Wanted> wanted;
  for (const std::string& slug : context.slugs()) {
    for (const UpstreamUse& use : context.manifest(slug).upstreams) {
      if (use.functions.empty() || (!upstream.empty() && use.name != upstream)) continue;
      Wanted& files = wanted[use.name];
      for (const std::string& file : use.code_files()) files[file];
      for (const auto& [file, names] : use.functions)
        files[file].insert(files[file].end(), names.begin(), names.end());
    }
  }
  return wanted;
}

/// What env/fetch.py prints.
std::string fetched(const Context& context, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"python3", (context.root / "env/fetch.py").string()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const exec::Exit done = exec::run({.argv = argv});
  if (!done.ok())
    throw Error(ErrorCode::kNotRunnable, "pins functions: " + one_line(done.err, 300));
  return done.out.substr(0, done.out.find_last_not_of('\n') + 1);
}

/// The texts of one version's files. Nothing where it is not in the cache and `words` do not ask
/// to fetch.
std::optional<Texts> texts_of(const Context& context, const Pin& pin, const Wanted& files,
                              const FunctionsOptions& options) {
  Texts texts;
  if (pin.kind == PinKind::kGit) {
    if (!options.is_written) return std::nullopt;
    git::Store store(context.cache, context.root);
    for (const auto& [file, names] : files) texts[file] = store.read(pin, file);
    return texts;
  }
  fs::path archive = context.cache / "files" / pin.sha256 / pin.filename;
  if (!fs::exists(archive)) {
    if (!options.is_written) return std::nullopt;
    archive = fetched(context, {"file", pin.project, pin.filename, pin.sha256});
  }
  std::vector<std::string> read = {"read", archive.string()};
  for (const auto& [file, names] : files) read.push_back(pin.prefix + file);
  const Json found = parse_json(fetched(context, read), archive.string());
  for (const auto& [file, names] : files) {
    const Json& text = found.at(pin.prefix + file);
    texts[file] = text.is_null() ? std::nullopt : std::optional(text.get<std::string>());
  }
  return texts;
}

/// What was read, and how many versions were left out.
struct Read {
  FunctionTable table;
  int num_versions = 0, num_left_out = 0;
};

/// Every version that `scan` answers for.
Read read_versions(const Context& context, const std::map<std::string, Wanted>& wanted,
                   const FunctionsOptions& options) {
  const Pins pins = context.pins();
  Read read;
  std::set<std::pair<std::string, std::string>> versions;
  for (const auto& [slug, pack] : verdict_table(context, "").packs) {
    for (const TableUpstream& upstream : pack.upstreams) {
      if (!wanted.contains(upstream.name)) continue;
      for (const TableRelease& release : upstream.releases)
        versions.emplace(upstream.name, release.version);
    }
  }
  for (const auto& [upstream, version] : versions) {
    const Wanted& files = wanted.at(upstream);
    const std::optional<Texts> texts =
        texts_of(context, pins.resolve(upstream, version), files, options);
    ++(texts ? read.num_versions : read.num_left_out);
    if (!texts) continue;
    for (const auto& [file, names] : files) {
      const std::optional<std::string>& text = texts->at(file);
      std::optional<PythonCode> code;
      if (text) code = python_code(*text, upstream + " " + version + " " + file);
      read.table.take(upstream, version, file, code ? &*code : nullptr, names);
    }
  }
  return read;
}

void run_functions(Context& context, const FunctionsOptions& options) {
  const fs::path path = context.root / "env/functions.json";
  const std::map<std::string, Wanted> wanted = wanted_of(context, options.upstream);
  if (wanted.empty())
    throw Error(ErrorCode::kUsage,
                "pins functions: no pack names functions of " + options.upstream);
  FunctionTable table = FunctionTable::parse(file_text(path).value_or("{}"), path.string());
  const Read read = read_versions(context, wanted, options);
  const std::vector<std::string> differences = table.differences(read.table);
  if (options.is_written) {
    for (const auto& [upstream, files] : wanted) table.replace(upstream, read.table);
    write_whole(path, table.text());
  }
  context.exit_code = differences.empty() || options.is_written ? kExitYes : kExitNo;
  if (context.json) {
    return print_json(context, {{"read", read.num_versions},
                                {"not_cached", read.num_left_out},
                                {"differences", differences},
                                {"written", options.is_written}});
  }
  for (const std::string& one : differences)
    context.out() << (options.is_written ? "written: " : "differs: ") << one << "\n";
  context.out() << fmt::format("{} versions read, {} not in the cache, {} digests {}\n",
                               read.num_versions, read.num_left_out, differences.size(),
                               options.is_written ? "written" : "differ");
}

}  // namespace

void add_pins_functions(CLI::App& pins, Context& context) {
  auto options = std::make_shared<FunctionsOptions>();
  CLI::App* command = pins.add_subcommand(
      "functions", "compare the digests of the packs' functions with the archives in the cache");
  command->add_option("upstream", options->upstream, "only this one");
  command->add_flag("--write", options->is_written,
                    "read every version, fetch what is not in the cache, and write "
                    "env/functions.json");
  command->footer(
      "A digest is over the tokens of a function: comments, docstrings and layout do not count.\n"
      "Without --write nothing is fetched: a version that is not in the cache, and every commit,\n"
      "is left out.\n"
      "Exit: 0 all equal or written, 1 a digest differs, 4 an archive cannot be had.");
  command->callback([options, &context] { run_functions(context, *options); });
}

}  // namespace patchbench::cli
