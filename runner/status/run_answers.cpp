#include "status/run_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/scan_text.h"
#include "status/scan.h"

namespace patchbench {
namespace {

/// What decides the answers of a list that has no files: the packages that a pack asks about.
std::string key_of_list(const PackageList& list, const std::set<std::string>& relevant) {
  Json key = Json::array();
  for (const auto& [name, versions] : list.packages) {
    if (!relevant.contains(name)) continue;
    for (const Listed& one : versions)
      key.push_back({name, one.version, one.range, one.source, one.commit});
  }
  return key.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::set<std::string> packages_of_packs(const std::vector<Manifest>& packs,
                                        const VerdictTable& table) {
  std::set<std::string> names;
  for (const auto& [slug, pack] : table.packs) {
    for (const TableUpstream& one : pack.upstreams) names.insert(one.package);
  }
  for (const Manifest& pack : packs) {
    for (const UpstreamUse& use : pack.upstreams) names.insert(normalised(use.name));
    for (const Requirement& needed : pack.requirements) {
      for (const NeededPackage& one : needed.any_of) names.insert(normalised(one.package));
    }
  }
  return names;
}

/// Takes the classes that the run did not meet from a hit; without any other it is none.
void apply_settings(RunAnswer& run, std::size_t at, ScanAnswer& answer, const Manifest& pack,
                    const RunSettings& settings) {
  std::vector<ScanClass> left;
  for (const ScanClass& one : answer.classes) {
    const ConditionState condition = condition_of_run(pack, one.name, settings);
    run.classes.push_back({at, one, condition});
    if (condition != ConditionState::kNotMet) left.push_back(one);
  }
  answer.classes = std::move(left);
  if (!answer.classes.empty()) return;
  answer.state = ScanState::kNotHit;
  answer.why = "the run's settings do not meet its condition";
}

struct RunCounts {
  std::size_t hit = 0, unknown = 0, not_hit = 0, not_listed = 0;
};

RunCounts counts_of(const RunsReport& runs) {
  RunCounts counts;
  for (const RunAnswer& run : runs.runs) {
    const std::string state = run_state(runs, run);
    ++(state == "hit"       ? counts.hit
       : state == "unknown" ? counts.unknown
       : state == "not_hit" ? counts.not_hit
                            : counts.not_listed);
  }
  return counts;
}

std::string condition_cell(const ScanAnswer& answer, const RunClass& row) {
  return answer.ignored.empty() ? condition_state_name(row.condition)
                                : "ignored: " + answer.ignored;
}

std::string next_of(const RunsReport& runs) {
  const auto first = [&](ScanState state) {
    const auto at = std::find_if(
        runs.report.answers.begin(), runs.report.answers.end(),
        [&](const ScanAnswer& one) { return one.state == state && one.ignored.empty(); });
    return at == runs.report.answers.end() ? "" : at->slug;
  };
  if (const std::string slug = first(ScanState::kHit); !slug.empty())
    return "patchbench show " + slug;
  const std::string slug = first(ScanState::kUnknown);
  return slug.empty() ? "patchbench scan" : "patchbench status windows " + slug;
}

}  // namespace

RunsReport runs_report(const std::vector<Manifest>& packs, const VerdictTable& table,
                       PastRuns found) {
  const std::set<std::string> relevant = packages_of_packs(packs, table);
  std::map<std::string, std::vector<ScanAnswer>> known;
  std::map<std::string, const Manifest*> by_slug;
  for (const Manifest& pack : packs) by_slug[pack.slug.str()] = &pack;
  RunsReport all;
  all.report.verdicts_of = table.date;
  for (PastRun& past : found.runs) {
    RunAnswer run{.name = past.name, .tracker = past.tracker, .day = past.day};
    auto [at, is_new] = known.try_emplace(key_of_list(past.inventory.list, relevant));
    if (is_new) at->second = answers_without_upgrades(packs, table, past.inventory);
    run.first = all.report.answers.size();
    for (ScanAnswer answer : at->second) {
      answer.input = run.name;
      answer.file = past.inventory.name;
      answer.line = 0;
      if (answer.state == ScanState::kHit)
        apply_settings(run, all.report.answers.size(), answer, *by_slug.at(answer.slug),
                       past.settings);
      all.report.answers.push_back(std::move(answer));
    }
    run.last = all.report.answers.size();
    run.num_unread = past.inventory.list.unread.size();
    for (std::string& line : past.inventory.list.unread)
      all.report.unread.push_back(std::move(line));
    all.report.inputs.push_back(run.name);
    all.runs.push_back(std::move(run));
  }
  for (std::string& line : found.unread) all.report.unread.push_back(std::move(line));
  return all;
}

std::string run_state(const RunsReport& runs, const RunAnswer& run) {
  bool is_unknown = run.num_unread > 0, is_listed = false;
  for (const RunClass& one : run.classes) {
    const bool is_hit =
        runs.report.answers[one.answer].ignored.empty() && one.condition != ConditionState::kNotMet;
    if (is_hit) return "hit";
  }
  for (std::size_t i = run.first; i < run.last; ++i) {
    const ScanAnswer& one = runs.report.answers[i];
    is_listed |= one.state != ScanState::kNotInstalled;
    is_unknown |= one.state == ScanState::kUnknown && one.ignored.empty();
  }
  return is_unknown ? "unknown" : is_listed ? "not_hit" : "not_listed";
}

std::string runs_text(const RunsReport& runs, int exit_code, const report::Style& style) {
  report::Table table({"run", "day", "pack", "release", "class", "condition"});
  for (const RunAnswer& run : runs.runs) {
    for (const RunClass& one : run.classes) {
      const ScanAnswer& answer = runs.report.answers[one.answer];
      table.add({printable(run.name), run.day, answer.slug, report::release_text(answer),
                 one.shown.name, condition_cell(answer, one)});
      if (one.condition == ConditionState::kMet) table.color(5, report::Color::kRed);
    }
    for (std::size_t i = run.first; i < run.last; ++i) {
      const ScanAnswer& answer = runs.report.answers[i];
      if (answer.state != ScanState::kUnknown) continue;
      table.add({printable(run.name), run.day, answer.slug, report::release_text(answer), "unknown",
                 printable(answer.why)});
      table.color(4, report::Color::kYellow);
    }
  }
  std::string text = table.num_rows() == 0 ? "" : table.render(style) + "\n";
  for (const std::string& line : runs.report.unread) text += "unknown: " + printable(line) + "\n";
  for (const std::string& line : runs.report.notes) text += "note: " + printable(line) + "\n";
  const RunCounts counts = counts_of(runs);
  const std::string sentence = fmt::format(
      "{} of {} runs were hit, {} unknown, {} not hit, {} with no package that a pack asks about; "
      "exit {}; verdicts of {}",
      counts.hit, runs.runs.size(), counts.unknown, counts.not_hit, counts.not_listed, exit_code,
      runs.report.verdicts_of);
  return text + report::closing(sentence, next_of(runs));
}

Json runs_json(const RunsReport& runs, int exit_code) {
  Json rows = Json::array();
  std::size_t unread = 0;
  for (const RunAnswer& run : runs.runs) {
    Json classes = Json::array(), open = Json::array(), lines = Json::array();
    for (const RunClass& one : run.classes) {
      const ScanAnswer& answer = runs.report.answers[one.answer];
      classes.push_back({{"slug", answer.slug},
                         {"id", answer.id()},
                         {"package", answer.package},
                         {"version", answer.version},
                         {"class", one.shown.name},
                         {"impact", one.shown.impact},
                         {"condition", condition_state_name(one.condition)},
                         {"when", one.shown.condition},
                         {"record", one.shown.record},
                         {"ignored", answer.ignored}});
    }
    for (std::size_t i = run.first; i < run.last; ++i) {
      const ScanAnswer& answer = runs.report.answers[i];
      if (answer.state == ScanState::kUnknown)
        open.push_back({{"slug", answer.slug},
                        {"package", answer.package},
                        {"version", answer.version},
                        {"why", answer.why},
                        {"ignored", answer.ignored}});
    }
    for (std::size_t i = 0; i < run.num_unread; ++i) lines.push_back(runs.report.unread[unread++]);
    rows.push_back({{"run", run.name},
                    {"tracker", run.tracker},
                    {"day", run.day},
                    {"state", run_state(runs, run)},
                    {"classes", classes},
                    {"unknown", open},
                    {"unread", lines}});
  }
  const RunCounts counts = counts_of(runs);
  return {{"verdicts_of", runs.report.verdicts_of},
          {"runs", rows},
          {"num_hit", counts.hit},
          {"num_unknown", counts.unknown},
          {"unread", runs.report.unread},
          {"notes", runs.report.notes},
          {"exit", exit_code}};
}

}  // namespace patchbench
