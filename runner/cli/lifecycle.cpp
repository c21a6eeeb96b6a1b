#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "report/table.h"
#include "status/due.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

void print_due(Context& context, const std::string& slug, const std::string& today) {
  check_since(today);
  const PackRecords verdicts = read_pack_records(context, {.slug = slug, .before = {}});
  report::Table table({"pack", "role", "keep", "review on", "due", "why"});
  Json rows = Json::array();
  for (const Manifest& pack : verdicts.packs) {
    const std::string keep = pack.lifecycle.value("keep", ""),
                      review = pack.lifecycle.value("review_on", ""),
                      role = pack.lifecycle.value("catalog", Json::object()).value("role", "");
    const std::vector<Due> due = due_of(context, verdicts, pack, today);
    Json list = Json::array(), notes = Json::array();
    const bool is_any = std::any_of(due.begin(), due.end(), is_due);
    if (!is_any) table.add({pack.slug.str(), role, keep, review, "nothing", ""});
    for (const Due& one : due) {
      const bool is_first = is_any && &one == &due.front();
      table.add({is_first ? pack.slug.str() : "", is_first ? role : "", is_first ? keep : "",
                 is_first ? review : "", one.what, one.why});
      (is_due(one) ? list : notes)
          .push_back({{"what", one.what}, {"why", one.why}, {"records", one.records}});
    }
    if (is_any) context.exit_code = kExitNo;
    rows.push_back({{"slug", pack.slug.str()},
                    {"catalog", pack.lifecycle.value("catalog", Json::object())},
                    {"admission", pack.lifecycle.value("admission", "")},
                    {"keep", keep},
                    {"review_on", review},
                    {"retire_when", pack.lifecycle.value("retire_when", "")},
                    {"due", list},
                    {"notes", notes}});
  }
  if (context.json) {
    print_json(context, {{"on", today}, {"packs", rows}});
  } else {
    context.out() << table.render(table_style(context));
  }
}

}  // namespace

void add_due_command(CLI::App& status, Context& context, const std::string& day) {
  auto slug = std::make_shared<std::string>();
  CLI::App* command = status.add_subcommand(
      "due", "what the packs' lifecycle asks for now: review, retirement, demotion");
  command->add_option("slug", *slug, "only this pack");
  command->footer(
      "review: the day in the manifest has passed. admission: the manifest still owes it.\n"
      "deletion: its keep level is drop. retirement: the newest locked release is green on every\n"
      "trigger that was red at the tested release; of the upstream that the mitigation acts on,\n"
      "where there is one. demotion: the op's worst error grew by more than 5 % in each of its\n"
      "last two runs, or neither was validated, or a bench shows the plain computation faster\n"
      "beyond both spreads and at no larger peak of memory. note: nothing is due, but something\n"
      "was found: another upstream is green, or the plain computation is faster and takes more\n"
      "memory.\n"
      "All but the first three are computed from records. Exit: 0 nothing is due, 1 something is.");
  command->callback(
      [slug, &day, &context] { print_due(context, *slug, day.empty() ? context.today() : day); });
}

}  // namespace patchbench::cli
