#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "status/page_data.h"

namespace patchbench::cli {

void add_report_command(CLI::App& app, Context& context) {
  struct Words {
    std::string slug, out;
    bool is_html = false, is_committed = false;
  };
  auto words = std::make_shared<Words>();
  CLI::App* command = app.add_subcommand(
      "report", "one page of where every pack stands: matrix, windows, errors, records");
  command->add_option("slug", words->slug, "only this pack");
  command->add_flag("--html", words->is_html, "as one self-contained HTML page, without scripts");
  command->add_option("-o,--output", words->out, "file to write (default: stdout)");
  command->add_flag("--committed", words->is_committed,
                    "from the committed evidence alone, without the ledger");
  command->footer(
      "With --json the facts of the page instead. In Markdown: patchbench status --markdown.\n"
      "Example:\n  patchbench report --html -o status.html");
  command->callback([words, &context] {
    if (!words->is_html && !context.json)
      throw Error(ErrorCode::kUsage, "report: give --html (or --json for the facts alone)");
    const VerdictIndex verdicts = index_verdicts(
        context, {.slug = words->slug, .before = {}, .with_ledger = !words->is_committed});
    const report::Page page = page_of(context, verdicts, ledger::utc_now().substr(0, 10));
    const std::string text =
        context.json ? report::page_json(page).dump(2) + "\n" : report::html_page(page);
    if (words->out.empty()) {
      std::cout << text;
    } else {
      write_whole(words->out, text);
    }
  });
}

}  // namespace patchbench::cli
