#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "ledger/evidence.h"
#include "report/markdown.h"
#include "report/record_line.h"
#include "report/table.h"
#include "status/claims.h"

namespace patchbench::cli {
namespace {

/// What a cited record is: who ran it on what, and what it says.
struct Cited {
  std::string digest, started, device, about, says;
  std::string what() const { return about + (says.empty() ? "" : ": " + says); }
};

Cited cited_of(const ledger::Entry& entry) {
  const RunContext run = RunContext::from_json(entry.record.predicate().at("context"));
  const report::RecordLine line = report::record_line(entry.record);
  return {entry.digest, run.started, run.machine.value("device", "cpu"), line.about, line.says};
}

/// Whether neither a record nor a word says why the row stands open.
bool lacks_reason(const ScopeRow& row) {
  const bool is_open =
      row.verdict == "claimed" || row.verdict == "held" || row.verdict == "not_testable_here";
  return is_open && row.records.empty() && row.why.empty();
}

struct ClaimRow {
  const ScopeRow* scope = nullptr;
  std::vector<Cited> records;
};

Json row_json(const Manifest& manifest, const ClaimRow& row) {
  Json records = Json::array();
  for (const Cited& c : row.records) {
    records.push_back({{"digest", c.digest},
                       {"started", c.started},
                       {"device", c.device},
                       {"about", c.about},
                       {"says", c.says}});
  }
  return {{"slug", manifest.slug.str()},
          {"number", manifest.number},
          {"claim", row.scope->claim},
          {"of", row.scope->of},
          {"architecture", row.scope->architecture},
          {"verdict", row.scope->verdict},
          {"why", row.scope->why},
          {"cases", row.scope->cases},
          {"records", records}};
}

std::string row_text(const ClaimRow& row) {
  std::string out = report::paragraph("  ", fmt::format("{} · {} · {}", row.scope->verdict,
                                                        row.scope->of, row.scope->architecture)) +
                    report::paragraph("    ", row.scope->claim);
  if (!row.scope->why.empty()) out += report::paragraph("      why: ", row.scope->why);
  if (lacks_reason(*row.scope)) out += "      why: not said\n";
  for (const Cited& c : row.records) {
    const std::string lead = "      " + c.digest.substr(0, kShortDigest) + " ";
    out += report::paragraph(lead,
                             fmt::format("{} {}, {}", c.started.substr(0, 10), c.device, c.what()));
  }
  return out;
}

std::string rows_markdown(const std::vector<ClaimRow>& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const ClaimRow& row : rows) {
    std::string records;
    for (const Cited& c : row.records)
      records += fmt::format("{}{} {}", records.empty() ? "" : "<br>",
                             report::code_span(c.digest.substr(0, kShortDigest)),
                             report::code_span(c.what()));
    cells.push_back({report::code_span(row.scope->claim), row.scope->of,
                     report::code_span(row.scope->architecture), row.scope->verdict,
                     records.empty() ? report::code_span(row.scope->why) : records});
  }
  return report::markdown_table(
      {"claim", "whose", "architecture", "verdict", "records, or why there is none"}, cells);
}

enum class Form { kText, kMarkdown, kJson };

struct Totals {
  std::map<std::string, int> by_verdict;
  int num_rows = 0, num_without_reason = 0;
  std::vector<std::string> problems;
};

void print_pack(const Context& context, const Manifest& manifest, const std::vector<ClaimRow>& rows,
                Form form) {
  if (form == Form::kMarkdown) {
    context.out() << fmt::format("\n## {}\n\n", manifest.slug.str()) << rows_markdown(rows);
  } else {
    context.out() << manifest.slug.str() << "\n";
    for (const ClaimRow& row : rows) context.out() << row_text(row);
    context.out() << "\n";
  }
}

std::string total_line(const Totals& totals) {
  std::vector<std::string> parts;
  for (const auto& [verdict, count] : totals.by_verdict)
    parts.push_back(fmt::format("{} {}", count, verdict));
  std::string line = fmt::format("{} claims: {}", totals.num_rows, fmt::join(parts, ", "));
  if (totals.num_without_reason > 0)
    line += fmt::format("; {} open without a reason", totals.num_without_reason);
  return line;
}

void print_claims(Context& context, const std::vector<std::string>& slugs, Form form) {
  const ledger::RecordSet record_set(ledger::known(context.ledger, context.root, context.slugs()));
  Totals totals;
  Json claims = Json::array();
  if (form == Form::kMarkdown) context.out() << "# Claims\n";
  for (const std::string& slug : slugs) {
    const Manifest manifest = context.manifest(slug);
    for (const std::string& problem : claim_problems(manifest, record_set))
      totals.problems.push_back(problem);
    std::vector<ClaimRow> rows;
    for (const ScopeRow& scope : manifest.scope) {
      ClaimRow row{&scope, {}};
      for (const std::string& digest : scope.records) {
        if (const ledger::Entry* entry = record_set.find(digest))
          row.records.push_back(cited_of(*entry));
      }
      ++totals.by_verdict[scope.verdict];
      ++totals.num_rows;
      totals.num_without_reason += lacks_reason(scope) ? 1 : 0;
      if (form == Form::kJson) claims.push_back(row_json(manifest, row));
      rows.push_back(std::move(row));
    }
    if (form != Form::kJson) print_pack(context, manifest, rows, form);
  }
  if (form == Form::kJson) {
    print_json(context, Json{{"claims", claims},
                             {"counts", totals.by_verdict},
                             {"without_reason", totals.num_without_reason},
                             {"problems", totals.problems}});
  } else {
    context.out() << (form == Form::kMarkdown ? "\n" + total_line(totals) + "\n"
                                              : report::paragraph("", total_line(totals)));
  }
  for (const std::string& problem : totals.problems)
    context.err() << "patchbench: " << problem << "\n";
  context.exit_code = totals.problems.empty() ? kExitYes : kExitNo;
}

}  // namespace

void add_claims_command(CLI::App& status, Context& context, const bool& is_markdown) {
  auto named = std::make_shared<std::string>();
  CLI::App* command = status.add_subcommand(
      "claims", "every claim of every pack, its verdict and the records behind it");
  command->add_option("slug", *named, "only this pack");
  command->footer(
      "Each row of a manifest's scope: confirmed and refuted rest on records, which are\n"
      "looked up in reports/evidence and in the ledger; an open row says why. A record\n"
      "that is not there, of another pack or contrary to the row is an error, and so\n"
      "are records of which none earned a sentinel.\n"
      "Exit: 0 every cited record holds, 1 one does not (named on stderr).\n"
      "See also: patchbench claim SLUG, which settles a claim by a run.");
  command->callback([named, &is_markdown, &context] {
    std::vector<std::string> slugs = context.slugs();
    if (!named->empty()) slugs = {context.manifest(*named).slug.str()};
    if (is_markdown && context.json)
      throw Error(ErrorCode::kUsage, "claims: --markdown and --json are two forms; choose one");
    print_claims(context, slugs,
                 context.json  ? Form::kJson
                 : is_markdown ? Form::kMarkdown
                               : Form::kText);
  });
}

}  // namespace patchbench::cli
