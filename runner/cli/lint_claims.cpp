#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/lint_claims.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "ledger/evidence.h"

namespace patchbench::cli {

report::FindRecord citable_in(const ledger::RecordSet& record_set) {
  return [&record_set](std::string_view digest) -> const Record* {
    const ledger::Entry* entry = record_set.find(digest);
    return entry != nullptr && ledger::counts_for_quorum(*entry) ? &entry->record : nullptr;
  };
}

void add_ledger_lint(CLI::App& ledger, Context& context) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = ledger.add_subcommand(
      "lint", "fail on every number of a Markdown text that no cited record states");
  command->add_option("file", *file, "the body of an issue or pull request, e.g. of a bundle")
      ->required();
  command->footer(report::claim_rule() +
                  "Unsigned imports cannot be cited. Exit: 0 every number is held, 1 one is not\n"
                  "(line, number, what to do).\n"
                  "Example: patchbench ledger lint issue.md");
  command->callback([file, &context] {
    const ledger::RecordSet record_set(
        ledger::known(context.ledger, context.root, context.slugs()));
    const std::vector<report::ClaimProblem> problems =
        report::lint_claims(read_file(*file), citable_in(record_set));
    context.exit_code = problems.empty() ? kExitYes : kExitNo;
    Json rows = Json::array();
    for (const report::ClaimProblem& p : problems) {
      rows.push_back({{"line", p.line}, {"what", p.what}, {"todo", p.todo}});
      if (!context.json)
        context.out() << fmt::format("{}:{}: {}: {}\n", *file, p.line, shown(p.what), p.todo);
    }
    if (context.json) {
      print_json(context, rows);
    } else if (problems.empty()) {
      context.out() << fmt::format("{}: every number is stated by a record it cites\n", *file);
    }
  });
}

}  // namespace patchbench::cli
