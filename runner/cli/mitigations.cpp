#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "cli/context.h"
#include "cli/installed.h"
#include "core/error.h"
#include "core/file_text.h"
#include "report/table.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct Words {
  std::string python, lock, requirements;
  bool has_exit_code = false;
};

/// What one pack means for an environment.
struct Diagnosis {
  std::string slug, package, version;
  std::string state;  ///< hit, not_hit, not_measured, version_unknown, not_installed
  std::string why, mitigation;
  bool acts = false;
};

/// The shipped data of each slug, `mitigations/patchbench_mitigations/data/<slug>.json`.
std::vector<Json> shipped_data(const Context& context) {
  std::vector<Json> all;
  const fs::path folder = context.root / "mitigations/patchbench_mitigations/data";
  for (const std::string& slug : context.slugs()) {
    const fs::path file = folder / (slug + ".json");
    if (fs::exists(file)) all.push_back(Json::parse(read_file(file)));
  }
  return all;
}

/// State and reason, from what was seen of the release.
void judge(Diagnosis& one, const Json& data) {
  const Json& releases = data.at("releases");
  // A local version, "0.19.2+abc", is a build of the release.
  const std::string base = one.version.substr(0, one.version.find('+'));
  const std::string version = releases.contains(one.version) ? one.version : base;
  const std::string seen =
      releases.contains(version) ? releases.at(version).value("seen", "") : std::string();
  if (seen.empty()) {
    one.state = "not_measured";
    one.why = fmt::format("patchbench reproduce {} --upstream {}", one.slug, version);
  } else if (seen == "absent" || seen == "unsupported") {
    one.state = "not_hit";
    one.why = seen == "absent" ? "the bug is not there" : "the release has no such feature";
  } else {
    one.state = "hit";
    one.why = seen;
  }
  if (one.state == "hit" && data.contains("not_needed")) {
    one.state = "not_hit";
    one.why = "no mitigation is needed";
  } else if (one.state == "hit") {
    one.acts = releases.at(version).contains("mitigated");
    one.mitigation = one.acts ? "acts" : "refuses: not verified on " + version;
  }
}

Diagnosis diagnosed(const Json& data, const Installed& installed) {
  Diagnosis one;
  one.slug = data.at("slug").get<std::string>();
  one.package = data.at("package").get<std::string>();
  const auto at = installed.find(one.package);
  if (at == installed.end()) {
    one.state = "not_installed";
  } else if (at->second.empty()) {
    one.state = "version_unknown";
    one.why = "it is named without an exact version";
  } else {
    one.version = at->second;
    judge(one, data);
  }
  return one;
}

/// "PATCHBENCH_MITIGATE=a,b python -m patchbench_mitigations train.py", "" if none acts.
std::string command_for(const std::vector<Diagnosis>& all) {
  std::string slugs;
  for (const Diagnosis& one : all) {
    if (one.acts) slugs += (slugs.empty() ? "" : ",") + one.slug;
  }
  return slugs.empty()
             ? ""
             : fmt::format("PATCHBENCH_MITIGATE={} python -m patchbench_mitigations train.py",
                           slugs);
}

void print(const Context& context, const std::vector<Diagnosis>& all, bool has_package) {
  const std::string command = command_for(all);
  if (context.json) {
    Json packs = Json::array();
    for (const Diagnosis& one : all) {
      packs.push_back({{"slug", one.slug},
                       {"package", one.package},
                       {"version", one.version},
                       {"state", one.state},
                       {"why", one.why},
                       {"mitigation", one.mitigation},
                       {"acts", one.acts}});
    }
    print_json({{"packs", packs}, {"command", command}, {"is_installed", has_package}});
    return;
  }
  report::Table table({"pack", "release", "state", "mitigation"});
  std::string owed;
  for (const Diagnosis& one : all) {
    const bool is_open = one.state == "not_measured";
    table.add({one.slug, one.package + (one.version.empty() ? "" : " " + one.version),
               one.state == "hit" ? "hit: " + one.why : one.state, one.mitigation});
    table.color(2, one.state == "hit"       ? report::Color::kRed
                   : one.state == "not_hit" ? report::Color::kGreen
                                            : report::Color::kNone);
    if (is_open) owed += "\nnot measured: " + one.why;
  }
  std::cout << table.render(report::style_of(STDOUT_FILENO)) << owed << (owed.empty() ? "" : "\n");
  if (command.empty()) return;
  if (!has_package) std::cout << "\npip install ./mitigations";
  std::cout << "\n" << command << "\n";
}

Installed environment_of(const Words& words) {
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

void doctor(Context& context, const Words& words) {
  const Installed installed = environment_of(words);
  std::vector<Diagnosis> all;
  bool is_hit = false, is_open = false;
  for (const Json& data : shipped_data(context)) {
    all.push_back(diagnosed(data, installed));
    is_hit |= all.back().state == "hit";
    is_open |= all.back().state == "not_measured" || all.back().state == "version_unknown";
  }
  print(context, all, installed.contains("patchbench-mitigations"));
  if (words.has_exit_code) context.exit_code = is_hit ? 1 : is_open ? 125 : 0;
}

}  // namespace

void add_mitigations_command(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
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
  sub->add_flag("--exit-code", words->has_exit_code, "0 not hit, 1 hit, 125 cannot be said");
  sub->footer(
      "Reads versions alone and runs nothing: no network, no import. A mitigation itself compares\n"
      "the functions' source too. What was measured: patchbench status.\nExamples:\n"
      "  patchbench mitigations doctor --python ~/venv\n"
      "  patchbench mitigations doctor --lock uv.lock --exit-code");
  sub->callback([words, &context] { doctor(context, *words); });
}

}  // namespace patchbench::cli
