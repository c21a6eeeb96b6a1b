#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <tuple>

#include "cli/commands.h"
#include "core/condition.h"
#include "core/error.h"
#include "run/drawn.h"
#include "run/names.h"
#include "run/right_ones.h"

namespace patchbench::cli {
namespace {

/// What the options of the verb say.
struct SelftestOptions {
  RunOptions run;
  std::string sandbox, seeds;
};

void test_judge(const Context& context, const RunOptions& options) {
  const Setup setup = prepare(context, options);
  std::filesystem::remove_all(context.cache / "selftest");
  ensure_selftest(context, setup);
  context.out() << fmt::format("{}: self-test holds ({}, {})\n", options.slug, setup.device,
                               exec::sandbox_name(setup.sandbox));
}

void draw_for_right(Context& context, const RunOptions& options) {
  // A condition may speak of axes that one subject's spaces alone have: one that sees it is enough.
  std::set<std::string> unseen;
  for (const std::string& condition : options.conditions) unseen.insert("where " + condition);
  draw_for_right_ones(context, options, [&](const RightOne& one) {
    context.out() << fmt::format("{}{}{}: {}\n", one.slug, one.version.empty() ? "" : " ",
                                 one.version, one.answer.outcome.why)
                  << drawn_text(one.setup, one.answer.trials);
    for (const Observation& o : observations_of(one.answer.trials)) {
      if (o.seen != Seen::kAbsent) context.exit_code = 3;
      if (!o.drawn.contains("regions_open")) continue;
      const auto open = o.drawn.at("regions_open").get<std::set<std::string>>();
      std::erase_if(unseen, [&](const std::string& each) { return !open.contains(each); });
    }
  });
  if (options.conditions.empty()) return;
  context.out() << fmt::format("{}: {} of {} conditions seen\n", options.slug,
                               options.conditions.size() - unseen.size(),
                               options.conditions.size());
  for (const std::string& each : unseen)
    context.out() << fmt::format("{}: not seen by any subject: {}\n", options.slug, each);
  if (!unseen.empty()) context.exit_code = 3;
}

}  // namespace

void add_selftest_command(CLI::App& app, Context& context) {
  auto words = std::make_shared<SelftestOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "try to fool the judge on this machine; sentinels need it green");
  command->add_option("slug", words->run.slug, "one pack (default: all that are built)");
  command->add_option("--device", words->run.device, "cpu or cuda:N");
  command->add_option("--sandbox", words->sandbox, "podman, docker, bwrap or process");
  command->add_option("--seeds", words->seeds,
                      "FIRST-LAST: instead draw cases of these seeds for right releases and ops, "
                      "and count false alarms; resumed from the ledger");
  command
      ->add_option("--draw", words->run.num_drawn,
                   "with --seeds: cases of each seed (default: the manifest's counts)")
      ->check(CLI::Range(1, 100000));
  command->add_option("--where", words->run.conditions,
                      "with --seeds: a condition on axes and properties of inputs (repeatable): "
                      "would a result that is 1 % off there be seen?");
  command->add_option("--python", words->run.python,
                      "the stack installed for this interpreter or venv");
  command->footer(
      "Exit: 0 the judge holds, or no drawn case of a right subject was red and each --where was "
      "seen;\n3 otherwise.\n"
      "Examples:\n  patchbench selftest liger_flce_none_bwd\n"
      "  patchbench selftest --seeds 1-100 --draw 20\n"
      "  patchbench selftest liger_flce_none_bwd --seeds 1 --where 'tokens > 64 and bias'");
  command->callback([words, &context] {
    RunOptions options = words->run;
    if (!words->sandbox.empty()) options.sandbox = exec::sandbox_from(words->sandbox);
    if (words->seeds.empty() && !options.conditions.empty())
      throw Error(ErrorCode::kUsage, "selftest --where wants --seeds, as --seeds 1");
    for (const std::string& text : options.conditions) Condition{text};
    if (!words->seeds.empty()) std::tie(options.seed, options.last_seed) = seeds_of(words->seeds);
    const std::vector<std::string> slugs =
        options.slug.empty() ? context.slugs() : std::vector<std::string>{options.slug};
    int ran = 0;
    for (const std::string& slug : slugs) {
      options.slug = slug;
      if (words->run.slug.empty() && context.manifest(slug).waived(Column::kRepro)) continue;
      words->seeds.empty() ? test_judge(context, options) : draw_for_right(context, options);
      ++ran;
    }
    if (ran == 0) throw Error(ErrorCode::kNotRunnable, "selftest: no reproducer is built here");
  });
}

}  // namespace patchbench::cli
