#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/lint_claims.h"
#include "cli/patch.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "ledger/evidence.h"
#include "ledger/row_writer.h"
#include "report/table.h"
#include "report/template.h"
#include "status/bundle_body.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate = "reports/templates/body.md.mustache";

struct BundleOptions {
  std::string slug, folder, body_template;
};

/// A body that somebody edited must not be written over.
fs::path empty_folder(const BundleOptions& options) {
  const fs::path folder = options.folder.empty() ? "bundle-" + options.slug : options.folder;
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder)))
    throw Error(ErrorCode::kUsage,
                folder.string() + ": is there and not empty; name another folder");
  return folder;
}

void write_series(const PackSeries& pack, git::Store& store, const fs::path& folder,
                  BundleFacts& facts) {
  const std::string at = "patches/" + pack.at.upstream;
  const std::vector<Edit> edits = carried_series(pack, store);
  const std::vector<std::string> names = export_series(pack, store, folder / at);
  for (std::size_t i = 0; i < names.size(); ++i)
    facts.patches.push_back(
        {at + "/" + names[i], edits[i].field("Subject"), pack.at.upstream, pack.at.version});
}

/// The series of each upstream. A git pin out of reach is left out and named; the pack's first
/// upstream has to be there.
void write_patches(const Context& context, const fs::path& folder, BundleFacts& facts) {
  git::Store store(context.cache, context.root);
  for (const UpstreamUse& use : facts.manifest.upstreams) {
    if (use.from_environment) continue;
    const PackSeries pack = find_series(context, facts.manifest.slug.str(), use.name, "");
    try {
      write_series(pack, store, folder, facts);
    } catch (const Error& e) {
      if (!e.is_unreachable() || &use == &facts.manifest.upstreams.front()) throw;
      facts.left_out.push_back({use.name, pack.at.version, e.what()});
    }
  }
}

std::string lines_of(const std::vector<const Record*>& records) {
  std::vector<std::string> rows;
  for (const Record* record : records) rows.push_back(canonical_json(record->statement));
  return ledger::pack_rows(rows);
}

void write_bundle(Context& context, const BundleOptions& options) {
  const Manifest manifest = context.manifest(options.slug);
  const fs::path folder = empty_folder(options);
  const fs::path from =
      options.body_template.empty() ? context.root / kTemplate : fs::path(options.body_template);
  const std::string body_template = read_file(from);
  const ledger::RecordSet record_set(ledger::known(context.ledger, context.root, context.slugs()));
  const fs::path script = context.root / cell_path(manifest.slug, Column::kRepro) / "standalone.py";
  const Pins pins = context.pins();
  BundleFacts facts{manifest, record_set, pins, {}, {}, fs::exists(script)};
  bundle_body(facts);  // nothing is written for a pack without records
  write_patches(context, folder, facts);
  const BundleBody body = bundle_body(facts);
  const std::string text = report::fill_template(body_template, from.string(), body.values);
  write_whole(folder / "body.md", text);
  std::string commands = "#!/bin/sh\nset -eu\n";
  for (const std::string& line : body.commands) commands += line + "\n";
  write_whole(folder / "commands.sh", commands);
  write_whole(folder / "records.jsonl", lines_of(body.evidence));
  if (facts.has_script) write_whole(folder / "reproduce.py", read_file(script));
  const auto problems = report::lint_claims(text, citable_in(record_set));
  for (const report::ClaimProblem& p : problems)
    context.err() << fmt::format("patchbench: {}:{}: {}: {}\n", (folder / "body.md").string(),
                                 p.line, shown(p.what), p.todo);
  for (const LeftOutSeries& one : facts.left_out)
    context.err() << fmt::format("patchbench: the patches of {} {} are left out: {}\n",
                                 one.upstream, one.version, one.why);
  context.exit_code = problems.empty() ? kExitYes : kExitNo;
  const std::string kind = manifest.filing.at("kind");
  if (context.json) {
    print_json(context, {{"folder", folder.string()},
                         {"patches", facts.patches.size()},
                         {"left_out", facts.left_out.size()},
                         {"records", body.evidence.size()},
                         {"script", facts.has_script},
                         {"filing", kind},
                         {"problems", problems.size()}});
    return;
  }
  context.out() << fmt::format(
      "{}: body.md, {} patch(es), {} records{}\n", folder.string(), facts.patches.size(),
      body.evidence.size(),
      facts.has_script ? ", reproduce.py" : "; no stand-alone script is there");
  context.out() << fmt::format(
      "whether it may go out: patchbench status filing {} (kind {}); nothing goes out by itself\n",
      options.slug, kind);
  context.out() << report::closing("Edit body.md, then check its numbers.",
                                   "patchbench ledger lint " + (folder / "body.md").string());
}

}  // namespace

void add_bundle_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<BundleOptions>();
  CLI::App* command =
      app.add_subcommand("bundle", "write a folder with what an issue or pull request needs");
  command->add_option("slug", options->slug, "the pack")->required();
  command->add_option("dir", options->folder, "a new or empty folder (default: bundle-SLUG)");
  command->add_option("--template", options->body_template,
                      "a mustache template for body.md (default: reports/templates/)");
  command->footer(
      "body.md        what is seen, where, since when, the change, limits, environment;\n"
      "               every number is stated by the record that it cites\n"
      "patches/       mails for git am, a series an upstream\n"
      "reproduce.py   the pack's stand-alone script, where it has one\n"
      "commands.sh    the exact commands that repeat it\n"
      "records.jsonl  the cited records with their observations, for ledger verify\n"
      "Numbers of the manifest that no record states are left out (\"…\").\n"
      "Exit: 0 done, 1 a number of the template is not held, 3 no record.\n"
      "Examples:\n  patchbench bundle liger_flce_none_bwd\n"
      "  patchbench bundle te_fused_ce /tmp/te-issue");
  command->callback([options, &context] { write_bundle(context, *options); });
}

}  // namespace patchbench::cli
