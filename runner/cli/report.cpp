#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "status/page_data.h"

namespace patchbench::cli {

CLI::App* add_page_command(CLI::App& app, Context& context, const std::string& name) {
  struct Words {
    std::string slug, out;
    bool is_html = false, is_committed = false;
  };
  auto words = std::make_shared<Words>();
  CLI::App* command = app.add_subcommand(
      name, "one page of where every pack stands: matrix, windows, errors, records");
  command->add_option("slug", words->slug, "only this pack");
  command->add_flag("--html", words->is_html, "as one self-contained HTML page, without scripts");
  command->add_option("-o,--output", words->out, "file to write (default: stdout)");
  command->add_flag("--committed", words->is_committed,
                    "from the committed evidence alone, without the ledger");
  command->footer(
      "With --json the facts of the page instead. In Markdown: patchbench status --markdown.\n"
      "Examples:\n  patchbench status page --html -o status.html");
  command->callback([words, &context] {
    if (!words->is_html && !context.json)
      throw Error(ErrorCode::kUsage, "give --html (or --json for the facts alone)");
    const VerdictIndex verdicts = index_verdicts(
        context, {.slug = words->slug, .before = {}, .with_ledger = !words->is_committed});
    const report::Page page = page_of(context, verdicts, context.today());
    const std::string text =
        context.json ? report::page_json(page).dump(2) + "\n" : report::html_page(page);
    if (words->out.empty()) {
      context.out() << text;
    } else {
      write_whole(words->out, text);
    }
  });
  return command;
}

}  // namespace patchbench::cli
