#include "ledger/ledger.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/ledger_options.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "core/slug.h"
#include "ledger/jsonl.h"
#include "report/record_line.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;
using ledger::Entry;

constexpr std::size_t kListedDigest = 16;

struct LedgerOptions {
  std::string expect, since, slug, digest, why;
  fs::path file, key, out, trusted;
  std::vector<fs::path> files;
  bool is_whole = false;
};

std::unique_ptr<ledger::Ledger> open_existing(const Context& context) {
  // Opening makes a file; a mistyped path must not become a new, empty ledger that "holds".
  if (!fs::exists(context.ledger)) {
    throw Error(ErrorCode::kUsage, context.ledger.string() +
                                       ": no ledger there; a run makes one (patchbench reproduce "
                                       "SLUG), or name another with --ledger");
  }
  return ledger::Ledger::open(context.ledger);
}

struct Expected {
  std::optional<int64_t> count;
  std::string head;
};

Expected expected_of(const std::string& text) {
  if (text.empty()) return {};
  const auto colon = text.find(':');
  int64_t count = -1;
  if (colon != std::string::npos) {
    const auto read = std::from_chars(text.data(), text.data() + colon, count);
    if (read.ec != std::errc() || read.ptr != text.data() + colon) count = -1;
  }
  const std::string head = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (count < 0 || !is_hex(head, 64)) {
    throw Error(
        ErrorCode::kUsage,
        "--expect: '" + shown(text) + "' is not COUNT:HEAD, a number and 64 lower-case hex digits");
  }
  return {count, head};
}

/// Looks at the first bytes; not at a pipe's, which would be gone for who reads it next.
bool is_sqlite(const fs::path& file) {
  if (!fs::is_regular_file(file)) return false;
  constexpr std::string_view kMark = "SQLite format 3";
  std::string head(kMark.size(), '\0');
  std::ifstream(file, std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  return head == kMark;
}

std::string origins_text(const ledger::Origins& origins) {
  std::string text =
      fmt::format("{} made here, {} signed imports", origins.num_local, origins.num_signed);
  if (origins.num_unsigned > 0)
    text += fmt::format(", {} unsigned imports (never counted)", origins.num_unsigned);
  if (origins.num_evicted > 0) text += fmt::format(", {} evicted", origins.num_evicted);
  return text;
}

void verify(Context& context, const LedgerOptions& options) {
  const Expected expected = expected_of(options.expect);
  const fs::path file = options.file.empty() ? context.ledger : options.file;
  ledger::VerifyReport report;
  std::string contents;
  if (!options.file.empty() && !is_sqlite(file)) {
    report =
        ledger::verify_jsonl(read_file(file), file.string(), trusted_keys_file(options.trusted),
                             expected.count, expected.head);
  } else {
    Context named = context;
    named.ledger = file;
    const auto opened = open_existing(named);
    report = opened->verify(expected.count, expected.head);
    if (report.ok) contents = origins_text(opened->origins());
  }
  context.exit_code = report.ok ? kExitYes : kExitNo;
  if (context.json) {
    Json json = {{"file", file.string()}, {"ok", report.ok},     {"count", report.count},
                 {"head", report.head},   {"note", report.note}, {"ahead", report.ahead}};
    if (!report.ok)
      json.update({{"where", report.where},
                   {"bad_index", report.bad_index},
                   {"bad_digest", report.bad_digest}});
    print_json(context, json);
    return;
  }
  if (!report.ok) {
    context.out() << fmt::format("{}: does not hold: {}\n", file.string(), report.where);
    return;
  }
  context.out() << fmt::format("{}: {} records hold; head {}\n", file.string(), report.count,
                               report.head);
  if (!contents.empty()) context.out() << fmt::format("{}\n", contents);
  for (const std::string& row : report.ahead)
    context.out() << fmt::format("{}; it never counts\n", row);
  if (!report.note.empty()) context.err() << "note: " << report.note << "\n";
}

std::vector<Entry> selected(const Context& context, const LedgerOptions& options) {
  check_since(options.since);
  if (!options.slug.empty()) Slug{options.slug};
  std::vector<Entry> entries;
  std::set<std::string> slugs;
  for (Entry& entry : open_existing(context)->all()) {
    const Json& run = entry.record.predicate().at("context");
    slugs.insert(run.at("slug").get<std::string>());
    if (!options.slug.empty() && run.at("slug") != options.slug) continue;
    if (run.at("started").get<std::string>() < options.since) continue;
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) {
    const bool has_slug = options.slug.empty() || slugs.contains(options.slug);
    throw Error(ErrorCode::kUsage,
                context.ledger.string() + ": no record matches" +
                    (has_slug ? "" : did_you_mean(options.slug, {slugs.begin(), slugs.end()})));
  }
  return entries;
}

void export_records(const Context& context, const LedgerOptions& options) {
  const std::vector<Entry> entries = selected(context, options);
  const std::string text = ledger::export_jsonl(
      entries, options.key,
      options.is_whole ? ledger::EvidenceFormat::kWhole : ledger::EvidenceFormat::kShared);
  if (options.out.empty()) {
    context.out() << text;
    return;
  }
  write_whole(options.out, text);
  std::string head;
  for (const Entry& entry : entries) head = chain_next(head, entry.digest);
  if (context.json) {
    context.out()
        << Json{{"file", options.out.string()}, {"count", entries.size()}, {"head", head}}.dump(2)
        << "\n";
  } else {
    context.out() << fmt::format(
        "{}: {} records; to check it: patchbench ledger verify FILE --expect {}:{}\n",
        options.out.string(), entries.size(), entries.size(), head);
  }
}

void import_records(const Context& context, const LedgerOptions& options) {
  std::vector<ledger::ImportFile> files;
  for (const fs::path& file : options.files) {
    if (is_sqlite(file)) {
      throw Error(
          ErrorCode::kUsage,
          file.string() +
              ": is a ledger; export it first (patchbench --ledger FILE ledger export -o OUT)");
    }
    files.push_back({read_file(file), file.string()});
  }
  const auto opened = ledger::Ledger::open(context.ledger);
  const int num_new = ledger::import_jsonl(*opened, files, trusted_keys_file(options.trusted));
  const std::string contents = origins_text(opened->origins());
  if (context.json) {
    print_json(context, {{"ledger", context.ledger.string()}, {"new", num_new}});
  } else {
    context.out() << fmt::format("{}: {} new records\n{}\n", context.ledger.string(), num_new,
                                 contents);
  }
}

Entry find_one(const ledger::Ledger& opened, const std::string& digest) {
  std::optional<Entry> entry = opened.find(digest);
  if (!entry)
    throw Error(ErrorCode::kUsage,
                "no record with digest " + digest + "; patchbench ledger list shows them");
  return std::move(*entry);
}

void show(const Context& context, const LedgerOptions& options) {
  const auto opened = open_existing(context);
  const Entry entry = find_one(*opened, options.digest);
  const bool is_evicted = opened->evicted().contains(entry.digest);
  if (context.json) {
    print_json(context, Json{{"index", entry.index},
                             {"digest", entry.digest},
                             {"chain", entry.chain},
                             {"received", entry.received},
                             {"origin", entry.origin},
                             {"signer", entry.signer},
                             {"evicted", is_evicted},
                             {"statement", entry.record.statement}});
    return;
  }
  context.out() << fmt::format("row {}  {}  {}\nreceived {}, origin {}, {}{}\n", entry.index,
                               entry.record.type(), entry.digest, entry.received, entry.origin,
                               entry.signer.empty() ? "unsigned" : "signed by " + entry.signer,
                               is_evicted ? ", evicted" : "");
  print_json(context, entry.record.statement);
}

void evict(const Context& context, const LedgerOptions& options) {
  if (options.why.find_first_not_of(" \t\n") == std::string::npos)
    throw Error(ErrorCode::kUsage, "--why: say why");
  const auto opened = open_existing(context);
  const Entry entry = find_one(*opened, options.digest);
  if (opened->evicted().contains(entry.digest)) {
    throw Error(ErrorCode::kUsage,
                "record " + entry.digest.substr(0, kListedDigest) + " is evicted already");
  }
  const Record record = ledger::make_evict_record(
      entry, options.why, std::string("patchbench ") + PATCHBENCH_VERSION, context.now());
  opened->append({record});
  if (context.json) {
    print_json(context, {{"evicted", entry.digest}, {"record", record.digest()}});
  } else {
    context.out() << fmt::format("{} {} is out of use (nothing is deleted): record {}\n",
                                 entry.record.type(), entry.digest, record.digest());
  }
}

void keygen(const Context& context, const LedgerOptions& options) {
  const ledger::SigningKey key = ledger::SigningKey::create(options.file);
  const Json entry = ledger::trusted_key_entry(key, options.file.stem().string());
  if (context.json) {
    print_json(context, entry);
  } else {
    context.out() << fmt::format(
        "{}: private key, keep it; give this to whoever trusts you, for \"keys\" in their "
        "trusted_keys.json:\n{}\n",
        options.file.string(), entry.dump());
  }
}

report::Table table_of(const std::vector<Entry>& entries, bool (*is_shown)(const Entry&)) {
  const std::set<std::string> evicted = ledger::evicted_digests(entries);
  report::Table table({"row", "date", "record", "type", "about", "says"});
  for (const Entry& entry : entries) {
    if (!is_shown(entry)) continue;
    const auto [about, says] = report::record_line(entry.record);
    const std::string started =
        entry.record.predicate().at("context").at("started").get<std::string>();
    table.add({std::to_string(entry.index), started.substr(0, 10), entry.digest.substr(0, 10),
               entry.record.type(), about,
               evicted.contains(entry.digest) ? "evicted: " + says : says});
  }
  return table;
}

void list(const Context& context, const LedgerOptions& options) {
  const std::vector<Entry> entries = selected(context, options);
  const report::Table counted = table_of(entries, ledger::counts_for_quorum);
  const report::Table imports =
      table_of(entries, [](const Entry& entry) { return !ledger::counts_for_quorum(entry); });
  if (context.json) {
    print_json(context, {{"records", counted.to_json({"row"})},
                         {"unsigned_imports", imports.to_json({"row"})}});
    return;
  }
  const report::Style style = table_style(context);
  if (counted.num_rows() > 0) context.out() << counted.render(style);
  if (imports.num_rows() > 0)
    context.out() << "unsigned imports (never counted):\n" << imports.render(style);
}

CLI::App* add(CLI::App& group, const std::string& name, const std::string& help,
              std::function<void()> work) {
  CLI::App* command = group.add_subcommand(name, help);
  command->callback(std::move(work));
  return command;
}

void add_selection(CLI::App& command, LedgerOptions& options) {
  command.add_option("--since", options.since,
                     "only runs from this day or time on (2026-01-31, 2026-01-31T12:00:00Z)");
  command.add_option("slug", options.slug, "only this pack");
}

void add_evict_and_keygen(CLI::App& group, const std::shared_ptr<LedgerOptions>& options,
                          Context& context) {
  CLI::App* evict_command = add(group, "evict", "take a record out of use by a further record",
                                [options, &context] { evict(context, *options); });
  evict_command->add_option("digest", options->digest, "its digest, or the first digits of it")
      ->required();
  evict_command->add_option("--why", options->why, "the reason, one line")->required();

  CLI::App* keygen_command = add(group, "keygen", "make an Ed25519 key to sign exports",
                                 [options, &context] { keygen(context, *options); });
  keygen_command->add_option("path", options->file, "file of the private key; never overwritten")
      ->required();
}

}  // namespace

fs::path trusted_keys_file(const fs::path& named) {
  if (!named.empty()) return named;
  const auto from = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? fs::path(value) : fs::path();
  };
  fs::path config = from("XDG_CONFIG_HOME");
  if (!config.is_absolute()) config = from("HOME") / ".config";
  config = config / "patchbench" / "trusted_keys.json";
  return fs::exists(config) ? config : fs::path();
}

void add_ledger_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<LedgerOptions>();
  CLI::App* group = app.add_subcommand(
      "ledger", "the record of every run: list, verify, replay, export, import, sign");
  group->require_subcommand(1);
  group->footer(
      "Nothing in a ledger is ever changed or deleted. Exit: 0 done, 1 it does not hold.\n"
      "Examples:\n  patchbench ledger verify\n  patchbench ledger list\n"
      "  patchbench ledger export -o records.jsonl");

  CLI::App* verify_command =
      add(*group, "verify", "recompute digests, chain, signatures and every sentinel",
          [options, &context] {
            answer_whether_it_holds(context, [&] { verify(context, *options); });
          });
  verify_command->add_option("file", options->file,
                             "another ledger, or an exported .jsonl (default: the ledger)");
  verify_command->add_option("--expect", options->expect,
                             "COUNT:HEAD noted earlier; without it a cut-off end goes unseen");
  verify_command->add_option("--trusted", options->trusted,
                             "trusted_keys.json, to check signatures of a .jsonl");

  CLI::App* list_command = add(*group, "list", "one line per record; unsigned imports apart",
                               [options, &context] { list(context, *options); });
  add_selection(*list_command, *options);

  CLI::App* show_command =
      add(*group, "show", "one record whole", [options, &context] { show(context, *options); });
  show_command->add_option("digest", options->digest, "its digest, or the first digits of it")
      ->required();

  CLI::App* export_command = add(*group, "export", "records as JSON lines",
                                 [options, &context] { export_records(context, *options); });
  add_selection(*export_command, *options);
  export_command->add_option("--key", options->key,
                             "sign what was recorded here with this private key (ledger keygen)");
  export_command->add_option("-o,--output", options->out, "file to write (default: stdout)");
  export_command->add_flag(
      "--whole", options->is_whole,
      "each line a whole in-toto Statement (default: what records share is written once)");

  CLI::App* import_command =
      add(*group, "import", "take in records of other machines: all of them or none",
          [options, &context] {
            answer_whether_it_holds(context, [&] { import_records(context, *options); });
          });
  import_command->add_option("files", options->files, "exported .jsonl files")->required();
  import_command->add_option(
      "--trusted", options->trusted,
      "trusted_keys.json (default: $XDG_CONFIG_HOME/patchbench/trusted_keys.json if it is there)");

  add_evict_and_keygen(*group, options, context);
  add_ledger_sign(*group, context);
  add_ledger_replay(*group, context);
  add_ledger_lint(*group, context);
}

}  // namespace patchbench::cli
