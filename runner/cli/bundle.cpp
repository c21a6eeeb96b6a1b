#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/lint_claims.h"
#include "cli/patch.h"
#include "core/edit.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "git/mail.h"
#include "ledger/evidence.h"
#include "ledger/row_writer.h"
#include "report/table.h"
#include "report/template.h"
#include "status/bundle_body.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct BundleOptions {
  std::string slug, folder, body_template, signer;
};

/// A body that somebody edited must not be written over.
fs::path empty_folder(const BundleOptions& options) {
  const fs::path folder = options.folder.empty() ? "bundle-" + options.slug : options.folder;
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder)))
    throw Error(ErrorCode::kUsage,
                folder.string() + ": is there and not empty; name another folder");
  return folder;
}

/// All edits as one text.
std::string whole_diff(const PackSeries& pack, git::Store& store, const std::vector<Edit>& edits) {
  std::string diff;
  std::vector<Edit> before;
  for (const Edit& edit : edits) {
    diff += git::unified_diff(edit, pack.at, store, before);
    before.push_back(edit);
  }
  return diff;
}

void write_series(const PackSeries& pack, git::Store& store, const BundleOptions& options,
                  BundleFacts& facts) {
  const std::string at = "patches/" + pack.at.upstream;
  const std::vector<Edit> edits = carried_series(pack, store);
  const std::vector<std::string> names =
      export_series(pack, store, fs::path(options.folder) / at, options.signer);
  if (facts.diff.empty()) facts.diff = whole_diff(pack, store, edits);
  for (std::size_t i = 0; i < names.size(); ++i)
    facts.patches.push_back(
        {at + "/" + names[i], edits[i].field("Subject"), pack.at.upstream, pack.at.version});
}

/// The series of each upstream. A git pin out of reach is left out and named; the pack's first
/// upstream has to be there.
void write_patches(const Context& context, const BundleOptions& options, BundleFacts& facts) {
  git::Store store(context.cache, context.root);
  for (const UpstreamUse& use : facts.manifest.upstreams) {
    if (use.from_environment) continue;
    const PackSeries pack = find_series(context, facts.manifest.slug.str(), use.name, "");
    try {
      write_series(pack, store, options, facts);
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

/// The text of a file that a pack may do without; "" without it.
std::string text_of(const fs::path& path) { return fs::exists(path) ? read_file(path) : ""; }

/// What the pack has for a reader who does not know us.
void read_for_upstream(const Context& context, BundleFacts& facts) {
  const std::string& slug = facts.manifest.slug.str();
  const fs::path pack = context.root / cell_path(facts.manifest.slug, Column::kPack);
  facts.reproducer = text_of(pack / "reproducer.py");
  facts.reproducer_output = text_of(pack / "reproducer.txt");
  facts.upstream_test = text_of(pack / "upstream_test.py");
  for (const Thread& thread : read_upstream_threads(context)) {
    for (const Thread::Relation& relation : thread.packs) {
      const std::string& target =
          facts.manifest.filing.at("repositories").front().get_ref<const std::string&>();
      if (relation.slug == slug && relation.relation == "introduced" &&
          thread.name.starts_with(target + "#"))
        facts.introduced.push_back(thread);
    }
  }
}

/// A text with one blank line where there are several in a row; fenced code stays as it is.
std::string squeezed(const std::string& text) {
  std::string out;
  bool is_fenced = false, was_blank = false;
  for (const std::string_view line : split_lines(text)) {
    if (line.starts_with("```")) is_fenced = !is_fenced;
    if (!(line.empty() && was_blank) || is_fenced) out += std::string(line) + "\n";
    was_blank = line.empty();
  }
  return out;
}

/// Names every number of a text that no cited record states; how many there are.
std::size_t num_unheld(const Context& context, const fs::path& path,
                       const ledger::RecordSet& record_set) {
  const auto problems = report::lint_claims(read_file(path), citable_in(record_set));
  for (const report::ClaimProblem& p : problems)
    context.err() << fmt::format("patchbench: {}:{}: {}: {}\n", path.string(), p.line,
                                 shown(p.what), p.todo);
  return problems.size();
}

/// The files of the folder but the patches; how many numbers are not held, of evidence.md and of a
/// body.md by a template of the user's.
std::size_t write_texts(const Context& context, const BundleOptions& options,
                        const BundleFacts& facts, const BundleBody& body) {
  const fs::path folder = options.folder, templates = context.root / "reports/templates";
  std::size_t problems = 0;
  for (const std::string name : {"body.md", "advisory.md", "evidence.md"}) {
    const bool is_own = name == "body.md" && !options.body_template.empty();
    const fs::path from =
        is_own ? fs::path(options.body_template) : templates / (name + ".mustache");
    write_whole(folder / name,
                squeezed(report::fill_template(read_file(from), from.string(), body.values)));
    if (is_own || name == "evidence.md")
      problems += num_unheld(context, folder / name, facts.record_set);
  }
  std::string commands = "#!/bin/sh\nset -eu\n";
  for (const std::string& line : body.commands) commands += line + "\n";
  write_whole(folder / "commands.sh", commands);
  write_whole(folder / "records.jsonl", lines_of(body.evidence));
  if (!facts.reproducer.empty()) write_whole(folder / "reproducer.py", facts.reproducer);
  if (!facts.upstream_test.empty()) write_whole(folder / "upstream_test.py", facts.upstream_test);
  return problems;
}

void print_bundle(const Context& context, const BundleOptions& options, const BundleFacts& facts,
                  std::size_t num_records) {
  std::string parts = fmt::format("body.md, evidence.md, advisory.md, {} patch(es), {} records",
                                  facts.patches.size(), num_records);
  parts += facts.has_script ? ", reproduce.py" : "; no stand-alone script is there";
  parts += facts.reproducer.empty() ? "; no short reproducer is there" : ", reproducer.py";
  if (!facts.upstream_test.empty()) parts += ", upstream_test.py";
  context.out() << options.folder << ": " << parts << "\n";
  if (options.signer.empty() && !facts.patches.empty())
    context.out() << "nobody signed the patches off: give --from \"Name <mail>\" of who files\n";
  context.out() << report::closing("Read body.md as its reader will, and edit it.",
                                   "patchbench status filing " + options.slug);
}

void write_bundle(Context& context, BundleOptions options) {
  const Manifest manifest = context.manifest(options.slug);
  const fs::path folder = empty_folder(options);
  options.folder = folder.string();
  if (!options.body_template.empty()) read_file(options.body_template);
  const ledger::RecordSet record_set(ledger::known(context.ledger, context.root, context.slugs()));
  const fs::path script = context.root / cell_path(manifest.slug, Column::kRepro) / "standalone.py";
  const Pins pins = context.pins();
  BundleFacts facts{manifest, record_set, pins, {}, {}, fs::exists(script), {}, {}, {}, {}, {}};
  bundle_body(facts);  // nothing is written for a pack without records
  read_for_upstream(context, facts);
  write_patches(context, options, facts);
  const BundleBody body = bundle_body(facts);
  const std::size_t problems = write_texts(context, options, facts, body);
  if (facts.has_script) write_whole(folder / "reproduce.py", read_file(script));
  for (const LeftOutSeries& one : facts.left_out)
    context.err() << fmt::format("patchbench: the patches of {} {} are left out: {}\n",
                                 one.upstream, one.version, one.why);
  context.exit_code = problems == 0 ? kExitYes : kExitNo;
  if (!context.json) return print_bundle(context, options, facts, body.evidence.size());
  print_json(context, {{"folder", folder.string()},
                       {"patches", facts.patches.size()},
                       {"left_out", facts.left_out.size()},
                       {"records", body.evidence.size()},
                       {"script", facts.has_script},
                       {"reproducer", !facts.reproducer.empty()},
                       {"upstream_test", !facts.upstream_test.empty()},
                       {"signed_off", !options.signer.empty()},
                       {"filing", manifest.filing.at("kind")},
                       {"problems", problems}});
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
  add_signer(*command, options->signer);
  command->footer(
      "body.md        what a maintainer reads: who is hit, a reproducer with its output,\n"
      "               since when, the line, main, the fix; 60 lines at most\n"
      "evidence.md    each input, release and environment, with the records that it cites\n"
      "advisory.md    for users of the upstream: hit if, since when, what to do\n"
      "patches/       mails for git am, a series an upstream\n"
      "reproducer.py upstream_test.py reproduce.py\n"
      "               the short program, a test for the upstream's suite, a longer script\n"
      "               that compares with float64; each where the pack has it\n"
      "commands.sh records.jsonl\n"
      "               the commands that repeat it; the cited records, for ledger verify\n"
      "In evidence.md numbers that no record states are left out (\"…\").\n"
      "Exit: 0 done, 1 a number of the template is not held, 3 no record.\n"
      "Examples:\n  patchbench bundle liger_flce_none_bwd\n"
      "  patchbench bundle te_fused_ce /tmp/te-issue --from \"Ada Byron <ada@example.org>\"");
  command->callback([options, &context] { write_bundle(context, *options); });
}

}  // namespace patchbench::cli
