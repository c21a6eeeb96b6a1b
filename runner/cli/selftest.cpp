#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "cli/commands.h"
#include "core/condition.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "report/table.h"
#include "run/control_draws.h"
#include "run/drawn.h"
#include "run/names.h"
#include "run/self_test.h"

namespace patchbench::cli {
namespace {

/// What the options of the verb say.
struct SelftestOptions {
  RunRequest run;
  std::string sandbox, seeds;
};

void test_judge(Context& context, const RunRequest& request) {
  const Setup setup = prepare(context, request);
  std::filesystem::remove_all(context.cache / "selftest");
  bool holds = false;
  answer_whether_it_holds(context, [&] {
    ensure_self_test(context, setup);
    holds = true;
  });
  if (!holds) return;
  context.out() << fmt::format("{}: self-test holds ({}, {})\n", request.slug,
                               setup.target.device.text(), exec::sandbox_name(setup.sandbox))
                << report::closing("The judge saw every wrong result that it was given.",
                                   "patchbench reproduce " + request.slug);
}

/// Which subjects saw a result that is 1 % off where a condition holds, and which had cases there
/// and did not.
class Conditions {
 public:
  explicit Conditions(const std::vector<std::string>& all) : all_(all) {}

  void take(const std::string& subject, const Json& open) {
    for (const std::string& each : all_) {
      const auto found = open.find("where " + each);
      if (found == open.end())
        seen_.insert(each);
      else if (const int num = found->get<int>(); num > 0)
        missed_[each] += fmt::format("; {} of {}", num, subject);
    }
  }

  /// A subject without a case there says nothing: its spaces may not have these axes.
  bool is_seen(const std::string& each) const {
    return seen_.contains(each) && !missed_.contains(each);
  }

  std::string text(const std::string& slug) const {
    const auto num_seen = std::count_if(all_.begin(), all_.end(),
                                        [&](const std::string& each) { return is_seen(each); });
    std::string text = fmt::format("{}: {} of {} conditions seen\n", slug, num_seen, all_.size());
    for (const std::string& each : all_) {
      if (is_seen(each)) continue;
      const auto missed = missed_.find(each);
      text += fmt::format("{}: not seen: where {} ({})\n", slug, each,
                          missed == missed_.end() ? "no drawn case of any subject is there"
                                                  : "cases there that pass" + missed->second);
    }
    return text;
  }

  /// kExitNo where cases were there and did not see it.
  int status() const {
    int status = kExitYes;
    for (const std::string& each : all_)
      status = merged_status(status, is_seen(each)            ? kExitYes
                                     : missed_.contains(each) ? kExitNo
                                                              : kExitNoAnswer);
    return status;
  }

 private:
  const std::vector<std::string>& all_;
  std::set<std::string> seen_;
  std::map<std::string, std::string> missed_;
};

void draw_for_right(Context& context, const RunRequest& request) {
  Conditions conditions(request.choice.conditions);
  std::string closing = "The judge raised no false alarm.";
  draw_controls(context, request, [&](const ControlDraw& one) {
    context.out() << fmt::format("{}{}{}: {}\n", one.slug, one.version.empty() ? "" : " ",
                                 one.version, one.answer.outcome.why)
                  << drawn_text(one.setup, one.answer.trials);
    for (const Observation& o : observations_of(one.answer.trials)) {
      const int status = o.status == CaseStatus::kPresent  ? kExitNo
                         : o.status == CaseStatus::kAbsent ? kExitYes
                                                           : kExitNoAnswer;
      if (status == kExitNo)
        closing = "The judge raised a false alarm.";
      else if (status == kExitNoAnswer && context.exit_code == kExitYes)
        closing = "Not every drawn case has an answer.";
      context.exit_code = merged_status(context.exit_code, status);
      if (o.drawn.contains("regions_open"))
        conditions.take(fmt::format("{}", o.subject), o.drawn.at("regions_open"));
    }
  });
  if (!request.choice.conditions.empty()) {
    context.out() << conditions.text(request.slug);
    if (conditions.status() != kExitYes && context.exit_code == kExitYes)
      closing = "The judge missed a condition.";
    context.exit_code = merged_status(context.exit_code, conditions.status());
  }
  context.out() << report::closing(closing, "patchbench status cases " + request.slug);
}

}  // namespace

void add_selftest_command(CLI::App& env, Context& context) {
  auto options = std::make_shared<SelftestOptions>();
  CLI::App* command = env.add_subcommand(
      "selftest", "try to fool the judge on this machine; sentinels need it green");
  command->add_option("slug", options->run.slug, "one pack (default: all that are built)");
  command->add_option("--device", options->run.device, "cpu or cuda:N");
  command->add_option("--sandbox", options->sandbox, "podman, docker, bwrap or process");
  command->add_option("--seed", options->seeds,
                      "FIRST-LAST: instead draw cases of these seeds for right releases and ops, "
                      "and count false alarms; resumed from the ledger");
  command
      ->add_option("--draw", options->run.choice.num_drawn,
                   "with --seed: cases of each seed (default: the manifest's counts)")
      ->check(CLI::Range(1, 100000));
  command
      ->add_option("--where", options->run.choice.conditions,
                   "with --seed: a condition on axes and properties of inputs (repeatable): "
                   "would a result that is 1 % off there be seen?")
      ->allow_extra_args(false);
  command->add_option("--python", options->run.python,
                      "the stack installed for this interpreter or venv");
  command->footer(
      "Exit: 0 the judge holds, or no drawn case of a right subject was red and each --where was "
      "seen;\n1 it does not, or one was red or not seen; 3 a drawn case or a --where has no "
      "answer.\n"
      "Examples:\n  patchbench env selftest liger_flce_none_bwd\n"
      "  patchbench env selftest --seed 1-100 --draw 20\n"
      "  patchbench env selftest liger_flce_none_bwd --seed 1 --where 'tokens > 64 and bias'");
  command->callback([options, &context] {
    RunRequest request = options->run;
    if (!options->sandbox.empty()) request.sandbox = exec::sandbox_from(options->sandbox);
    if (options->seeds.empty() && !request.choice.conditions.empty())
      throw Error(ErrorCode::kUsage, "env selftest --where wants --seed, as --seed 1");
    for (const std::string& text : request.choice.conditions) Condition{text};
    if (!options->seeds.empty()) request.choice.seeds = seeds_of(options->seeds);
    const std::vector<std::string> slugs =
        request.slug.empty() ? context.slugs() : std::vector<std::string>{request.slug};
    int ran = 0;
    for (const std::string& slug : slugs) {
      request.slug = slug;
      if (options->run.slug.empty() && context.manifest(slug).waived(Column::kRepro)) continue;
      options->seeds.empty() ? test_judge(context, request) : draw_for_right(context, request);
      ++ran;
    }
    if (ran == 0) throw Error(ErrorCode::kNotRunnable, "selftest: no reproducer is built here");
  });
}

}  // namespace patchbench::cli
