#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "status/page_data.h"

namespace patchbench::cli {

void add_page_command(CLI::App& status, Context& context) {
  struct Options {
    std::string slug, out;
    bool is_committed = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = status.add_subcommand(
      "page", "one HTML page of every pack: matrix, windows, errors, records; no scripts");
  command->add_option("slug", options->slug, "only this pack");
  command->add_option("-o,--output", options->out, "file to write (default: stdout)");
  command->add_flag("--committed", options->is_committed,
                    "from the committed evidence alone, without the ledger");
  command->footer(
      "With --json the facts of the page instead. In Markdown: patchbench status --markdown.\n"
      "Examples:\n  patchbench status page -o status.html");
  command->callback([options, &context] {
    const PackRecords verdicts = read_pack_records(
        context, {.slug = options->slug, .before = {}, .with_ledger = !options->is_committed});
    const report::Page page = page_of(context, verdicts, context.today());
    const std::string text =
        context.json ? report::page_json(page).dump(2) + "\n" : report::html_page(page);
    if (options->out.empty()) {
      context.out() << text;
    } else {
      write_whole(options->out, text);
    }
  });
}

}  // namespace patchbench::cli
