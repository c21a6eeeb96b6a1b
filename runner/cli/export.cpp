#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "ledger/dsse.h"
#include "ledger/evidence.h"
#include "report/advisory.h"
#include "report/junit.h"
#include "report/openvex.h"
#include "report/zip.h"
#include "status/advisory_releases.h"
#include "status/newest.h"
#include "status/osv_feed.h"
#include "status/upstream_threads.h"
#include "status/verdict_records.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string format, slug;
  fs::path out, key;
  bool is_zip = false;
};

std::string document_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<report::Advisory> advisories(const Context& context,
                                         const ledger::RecordSet& record_set,
                                         const std::vector<std::string>& slugs) {
  const Pins pins = context.pins();
  const std::vector<Thread> threads = read_upstream_threads(context);
  std::vector<report::Advisory> out;
  for (const std::string& slug : slugs) {
    const Manifest manifest = context.manifest(slug);
    for (const UpstreamUse& use : manifest.upstreams) {
      const Upstream& upstream = pins.upstream(use.name);
      if (use.from_environment || upstream.releases.empty()) continue;
      report::Advisory advisory{.slug = slug,
                                .title = manifest.title,
                                .upstream = use.name,
                                .project = upstream.releases.front().project,
                                .number = manifest.number,
                                .classes = manifest.classes,
                                .mitigation = manifest.mitigation,
                                .threads = threads_about(threads, slug),
                                .releases = {}};
      advisory.releases = advisory_releases(record_set, manifest, upstream);
      out.push_back(std::move(advisory));
    }
  }
  return out;
}

std::string junit_of(const std::vector<NewestVerdict>& verdicts) {
  std::vector<report::JunitCase> cases;
  for (const NewestVerdict& one : verdicts) {
    std::string name = one.question_text();
    if (!one.version().empty()) name += fmt::format(" {} {}", one.upstream(), one.version());
    cases.push_back(report::junit_of_verdict(one.run.slug, name + " on " + one.device(),
                                             one.question, one.outcome, one.entry->digest));
  }
  return report::junit_xml("patchbench", cases);
}

Json row_of(const NewestVerdict& one) {
  return {{"slug", one.run.slug},       {"upstream", one.upstream()},
          {"version", one.version()},   {"question", one.question_text()},
          {"device", one.device()},     {"sentinel", one.outcome.text()},
          {"why", one.outcome.why},     {"is_isolated", one.run.is_isolated()},
          {"started", one.run.started}, {"verdict", one.entry->digest}};
}

/// RFC 4180, with a header; a cell that a spreadsheet would take for a formula gets a quote.
std::string csv_of(const std::vector<NewestVerdict>& verdicts) {
  std::string text;
  const auto cell = [](std::string value) {
    if (!value.empty() && std::string_view("=+-@\t").find(value.front()) != std::string::npos)
      value.insert(0, "'");
    std::string out = "\"";
    for (const char c : value) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
  };
  const auto line = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + cell(cells[i]);
    text += "\r\n";
  };
  line({"slug", "upstream", "version", "question", "device", "sentinel", "why", "is_isolated",
        "started", "verdict"});
  for (const NewestVerdict& one : verdicts)
    line({one.run.slug, one.upstream(), one.version(), one.question_text(), one.device(),
          one.outcome.text(), one.outcome.why, one.run.is_isolated() ? "true" : "false",
          one.run.started, one.entry->digest});
  return text;
}

/// A run as the public test-result predicate: cases by name, the verdict record by digest.
Json test_result(const NewestVerdict& one, const ledger::RecordSet& record_set) {
  Json passed = Json::array(), warned = Json::array(), failed = Json::array();
  for (const std::string& digest : cited_by(one.entry->record)) {
    const ledger::Entry* entry = record_set.find(digest);
    if (entry == nullptr) continue;
    const Observation o = observation_of(entry->record);
    const report::JunitStatus status = report::junit_status(o, one.question);
    Json& names = status == report::JunitStatus::kPassed   ? passed
                  : status == report::JunitStatus::kFailed ? failed
                                                           : warned;
    names.push_back(o.subject.text() + "/" + o.case_name);
  }
  const report::JunitStatus status =
      report::junit_of_verdict("", "", one.question, one.outcome, "").status;
  const Json configuration = Json::array(
      {{{"name", "manifest " + one.run.slug}, {"digest", {{"sha256", one.run.manifest_sha256}}}},
       {{"name", "verdict " + one.outcome.text()}, {"digest", {{"sha256", one.entry->digest}}}}});
  return {{"_type", "https://in-toto.io/Statement/v1"},
          {"subject", one.entry->record.statement.at("subject")},
          {"predicateType", "https://in-toto.io/attestation/test-result/v0.1"},
          {"predicate",
           {{"result", status == report::JunitStatus::kPassed   ? "PASSED"
                       : status == report::JunitStatus::kFailed ? "FAILED"
                                                                : "WARNED"},
            {"configuration", configuration},
            {"passedTests", passed},
            {"warnedTests", warned},
            {"failedTests", failed}}}};
}

std::string intoto_of(const std::vector<NewestVerdict>& verdicts,
                      const ledger::RecordSet& record_set, const fs::path& key_file) {
  if (key_file.empty())
    throw Error(ErrorCode::kUsage,
                "--format intoto wants --key KEY: an envelope holds a signature (patchbench "
                "ledger keygen KEY makes one)");
  const ledger::SigningKey key = ledger::SigningKey::load(key_file);
  std::string text;
  for (const NewestVerdict& one : verdicts) {
    const std::string payload = canonical_json(test_result(one, record_set));
    const ledger::Signature signature = key.sign(payload);
    text += ledger::envelope(payload, signature.key_id, signature.signature) + "\n";
  }
  return text;
}

/// One JSON document with the records, or with --zip one file a record.
std::string osv_of(const Context& context, const std::vector<std::string>& slugs, bool is_zip) {
  std::vector<Manifest> packs;
  for (const std::string& slug : slugs) packs.push_back(context.manifest(slug));
  std::map<std::string, std::string> files;
  Json records = Json::array();
  for (const auto& [id, record] :
       osv_records(packs, verdict_table(context, ""), read_upstream_threads(context))) {
    files[id + ".json"] = document_text(record);
    records.push_back(record);
  }
  return is_zip ? report::zip_of(files) : document_text(records);
}

void check_words(const ExportOptions& options) {
  if (!options.is_zip) return;
  if (options.format != "osv") throw Error(ErrorCode::kUsage, "--zip goes with --format osv");
  if (options.out.empty())
    throw Error(ErrorCode::kUsage,
                "--zip wants -o FILE; osv-scanner reads DIR/osv-scanner/PyPI/all.zip");
}

std::string exported(const Context& context, const ExportOptions& options) {
  check_words(options);
  if (options.format == "verdicts") {
    if (!options.slug.empty())
      throw Error(ErrorCode::kUsage, "export --format verdicts has every pack: leave out the slug");
    return table_from_records(context).to_json().dump(1) + "\n";
  }
  const std::vector<std::string> slugs =
      options.slug.empty() ? context.slugs()
                           : std::vector<std::string>{context.manifest(options.slug).slug.str()};
  if (options.format == "osv") return osv_of(context, slugs, options.is_zip);
  const ledger::RecordSet record_set(ledger::known(context.ledger, context.root, context.slugs()));
  if (options.format == "openvex")
    return document_text(report::openvex_document(advisories(context, record_set, slugs)));
  const std::vector<NewestVerdict> verdicts =
      newest_verdicts(record_set, [&](const NewestVerdict& one) {
        return std::find(slugs.begin(), slugs.end(), one.run.slug) != slugs.end();
      });
  if (options.format == "junit") return junit_of(verdicts);
  if (options.format == "csv") return csv_of(verdicts);
  if (options.format == "intoto") return intoto_of(verdicts, record_set, options.key);
  Json rows = Json::array();
  for (const NewestVerdict& one : verdicts) rows.push_back(row_of(one));
  return document_text(rows);
}

}  // namespace

void add_export_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      app.add_subcommand("export", "what the records show, in forms that other tools read");
  command->add_option("slug", options->slug, "only this pack");
  command
      ->add_option("--format", options->format,
                   "osv, openvex, junit, intoto, csv, json or verdicts")
      ->required()
      ->check(CLI::IsMember({"osv", "openvex", "junit", "intoto", "csv", "json", "verdicts"}));
  command->add_option("-o,--output", options->out, "file to write (default: stdout)");
  command->add_flag("--zip", options->is_zip,
                    "osv: a zip with one file a record, as osv-scanner reads it offline");
  command->add_option("--key", options->key, "intoto: an Ed25519 private key (ledger keygen)");
  command->footer(
      "osv      an array, one record a pack and upstream: PyPI ranges over releases that\n"
      "         were measured; ids are PATCHBENCH-NN-UPSTREAM (not a registered prefix).\n"
      "         Of a release that was not measured it says nothing; scan says unknown\n"
      "openvex  one 0.2.0 document: affected with an action, fixed only where measured\n"
      "         right, under_investigation where not judged\n"
      "junit    one case a verdict        csv, json  one row a verdict\n"
      "intoto   test-result statements in signed DSSE envelopes, one a line\n"
      "verdicts the table that scan --db reads, of every pack\n"
      "The newest verdict of each question counts; unsigned imports do not.\n"
      "Examples:\n  patchbench export --format csv -o verdicts.csv\n"
      "  patchbench export liger_flce_none_bwd --format osv\n"
      "  patchbench export --format osv --zip -o db/osv-scanner/PyPI/all.zip");
  command->callback([options, &context] {
    const std::string text = exported(context, *options);
    if (options->out.empty()) {
      context.out() << text;
      return;
    }
    write_whole(options->out, text);
    if (context.json) {
      print_json(context, {{"file", options->out.string()}, {"bytes", text.size()}});
    } else {
      context.out() << fmt::format("{}: {} bytes\n", options->out.string(), text.size());
    }
  });
}

}  // namespace patchbench::cli
