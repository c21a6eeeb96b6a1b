#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "report/table.h"
#include "status/diagnosis.h"

namespace patchbench::cli {
namespace {

struct MitigationsOptions {
  std::string python, lock, requirements;
  bool has_exit_code = false;
};

/// "PATCHBENCH_MITIGATE=a,b python -m patchbench_mitigations train.py", "" if none acts.
std::string command_for(const std::vector<Diagnosis>& all) {
  std::string slugs;
  for (const Diagnosis& one : all) {
    if (!one.acts || ("," + slugs + ",").find("," + one.slug + ",") != std::string::npos) continue;
    slugs += (slugs.empty() ? "" : ",") + one.slug;
  }
  return slugs.empty()
             ? ""
             : fmt::format("PATCHBENCH_MITIGATE={} python -m patchbench_mitigations train.py",
                           slugs);
}

bool is_open(const Diagnosis& one) {
  return one.state == Hit::kNotMeasured || one.state == Hit::kVersionUnknown;
}

Json diagnosis_json(const Diagnosis& one) {
  return {{"slug", one.slug},
          {"upstream", one.upstream},
          {"package", one.package},
          {"version", one.listed.version},
          {"source", one.listed.source},
          {"state", hit_name(one.state)},
          {"why", one.why},
          {"next", one.next},
          {"record", one.record},
          {"mitigation", one.mitigation},
          {"acts", one.acts}};
}

std::string release_text(const Diagnosis& one) {
  return one.package + (one.listed.version.empty() ? "" : " " + one.listed.version);
}

void print(const Context& context, const std::vector<Diagnosis>& all, const Installed& installed) {
  const std::string command = command_for(all);
  const bool has_package = installed.packages.contains("patchbench-mitigations");
  if (context.json) {
    Json packs = Json::array();
    for (const Diagnosis& one : all) packs.push_back(diagnosis_json(one));
    print_json(context, {{"packs", packs},
                         {"command", command},
                         {"is_installed", has_package},
                         {"unread", installed.unread}});
    return;
  }
  report::Table table({"pack", "release", "state", "mitigation"});
  std::string open;
  for (const Diagnosis& one : all) {
    table.add({one.slug, release_text(one),
               one.state == Hit::kHit ? "hit: " + one.why : hit_name(one.state), one.mitigation});
    table.color(2, one.state == Hit::kHit      ? report::Color::kRed
                   : one.state == Hit::kNotHit ? report::Color::kGreen
                                               : report::Color::kNone);
    if (!is_open(one)) continue;
    open += report::paragraph("unknown: ",
                              fmt::format("{}, {}: {}", one.slug, release_text(one), one.why));
    if (!one.next.empty()) open += "  " + one.next + "\n";
  }
  for (const std::string& line : installed.unread)
    open += report::paragraph("unknown: ", "which package is installed by: " + line);
  context.out() << table.render(report::style_of(STDOUT_FILENO)) << (open.empty() ? "" : "\n")
                << open;
  if (command.empty()) return;
  if (!has_package) context.out() << "\npip install ./mitigations";
  context.out() << "\n" << command << "\n";
}

Installed environment_of(const MitigationsOptions& words) {
  if (!words.lock.empty()) return locked_in(words.lock);
  if (!words.requirements.empty()) return required_in(words.requirements);
  const char* active = std::getenv("VIRTUAL_ENV");
  if (words.python.empty() && (active == nullptr || *active == '\0')) {
    throw Error(ErrorCode::kUsage,
                "mitigations doctor: no venv is active; name one: --python VENV, --lock FILE or "
                "--requirements FILE");
  }
  return installed_in(words.python.empty() ? active : words.python);
}

void doctor(Context& context, const MitigationsOptions& words) {
  const Installed installed = environment_of(words);
  const bool is_file = !words.lock.empty() || !words.requirements.empty();
  const char* active = std::getenv("VIRTUAL_ENV");
  const std::string python = is_file                ? ""
                             : words.python.empty() ? std::string(active)
                                                    : words.python;
  const std::vector<Diagnosis> all = diagnoses_of(context, installed, python);
  print(context, all, installed);
  if (!words.has_exit_code) return;
  const bool is_hit = std::any_of(all.begin(), all.end(),
                                  [](const Diagnosis& one) { return one.state == Hit::kHit; });
  const bool is_unknown = !installed.unread.empty() || std::any_of(all.begin(), all.end(), is_open);
  context.exit_code = is_hit ? 1 : is_unknown ? 125 : 0;
}

}  // namespace

void add_mitigations_command(CLI::App& app, Context& context) {
  auto words = std::make_shared<MitigationsOptions>();
  CLI::App* command = app.add_subcommand("mitigations", "the runtime fixes of mitigations/");
  command->require_subcommand(1);
  CLI::App* sub = command->add_subcommand(
      "doctor", "which packs hit an environment, and what would act there?");
  CLI::Option* python = sub->add_option("--python", words->python,
                                        "a venv or its interpreter (default: $VIRTUAL_ENV)");
  CLI::Option* lock =
      sub->add_option("--lock", words->lock, "uv, poetry, pdm, pylock, Pipfile.lock");
  CLI::Option* required = sub->add_option("--requirements", words->requirements, "a pip file");
  python->excludes(lock)->excludes(required);
  lock->excludes(required);
  sub->add_flag("--exit-code", words->has_exit_code,
                "0 no pack hits it, 1 one does, 125 none is known to, and something is unknown");
  sub->footer(
      "Every upstream of every pack is looked at, in every version that is listed. Runs and "
      "imports\n"
      "nothing, and needs no network: it reads versions and, in an environment, the digests of "
      "the\n"
      "files that a manifest names. Unknown: a release without a record, changed files, a version\n"
      "that is not pinned, a local version (2.9.0+abc), and what comes from git, a folder or a "
      "URL.\n"
      "A mitigation itself compares the functions' source too. What was measured: patchbench "
      "status.\n"
      "Examples:\n"
      "  patchbench mitigations doctor --python ~/venv\n"
      "  patchbench mitigations doctor --lock uv.lock --exit-code");
  sub->callback([words, &context] { doctor(context, *words); });
}

}  // namespace patchbench::cli
