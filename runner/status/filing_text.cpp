#include "status/filing_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/edit.h"
#include "core/finding.h"
#include "core/window.h"
#include "report/advisory.h"
#include "status/advisory_releases.h"

namespace patchbench {
namespace {

constexpr std::size_t kMaxRows = 3, kMaxDiffLines = 12, kShortCommit = 8;

std::string_view without_indent(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \t");
  return begin == line.npos ? std::string_view() : line.substr(begin);
}

std::string without_end(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Whether a line does nothing by itself: an import, a comment, a blank one.
bool is_idle(std::string_view line) {
  return line.empty() || line.starts_with("import ") || line.starts_with("from ") ||
         line.starts_with('#') || line.starts_with("//");
}

/// The first line of the old file in "@@ -86,7 +86,8 @@".
int first_of_hunk(std::string_view line) {
  int first = 0;
  std::from_chars(line.data() + 4, line.data() + line.size(), first);
  return first;
}

/// The file of "--- a/x"; "" for a new one.
std::string old_file(std::string_view line) {
  return line.starts_with("--- a/") ? std::string(line.substr(6)) : std::string();
}

/// Calls `take(file, line of the old file, text)` for each line of a diff that is not context.
template <typename Take>
void each_change(std::string_view diff, const Take& take) {
  std::string file;
  int at = 0;
  bool is_in_hunk = false;
  for (const std::string_view line : split_lines(diff)) {
    if (line.starts_with("diff ")) {
      is_in_hunk = false;
    } else if (line.starts_with("@@ -")) {
      is_in_hunk = true;
      at = first_of_hunk(line);
    } else if (!is_in_hunk) {
      if (line.starts_with("--- ")) file = old_file(line);
    } else if (line.starts_with('-') || line.starts_with('+')) {
      take(file, at, line);
      if (line.starts_with('-')) ++at;
    } else if (line.starts_with(' ')) {
      ++at;
    }
  }
}

Json hits_of(const Manifest& manifest, const std::set<std::string>& known) {
  Json rows = Json::array();
  for (const std::string& name : manifest.classes_order) {
    if (rows.size() == kMaxRows || (!known.empty() && !known.contains(name))) continue;
    rows.push_back({{"when", manifest.condition_of(name)}, {"what", manifest.classes.at(name)}});
  }
  return rows;
}

/// The releases of an upstream as bad or good, whatever the failure class and the device.
std::vector<ReleaseState> merged_states(const std::vector<report::AdvisoryRelease>& releases) {
  std::vector<ReleaseState> out;
  for (const report::AdvisoryRelease& release : releases) {
    const auto any = [&](BugStatus status) {
      return std::any_of(release.states.begin(), release.states.end(),
                         [&](const report::DeviceState& s) { return s.state == status; });
    };
    BugState state = BugStatus::kNotMeasured;
    if (any(BugStatus::kPresent)) {
      state = "bad";
    } else if (any(BugStatus::kAbsent)) {
      state = any(BugStatus::kUnresolved) ? BugStatus::kUnresolved : BugStatus::kAbsent;
    } else if (!release.states.empty()) {
      state = any(BugStatus::kUnresolved) ? BugStatus::kUnresolved : BugStatus::kUnsupported;
    }
    out.push_back({release.version, state, ""});
  }
  return out;
}

/// `newest`: the newest release that was measured.
std::string span_text(const std::string& upstream, const Interval& span,
                      const std::string& newest) {
  std::string text = fmt::format("{}: first bad release {}", upstream, span.first_bad);
  text += span.last_good_before.empty() ? ", and no older one is known to be good"
                                        : ", last good one before it " + span.last_good_before;
  if (span.last_bad == newest)
    return text + fmt::format("; {}, the newest measured, is bad", newest);
  text += "; last bad release " + span.last_bad;
  return text + (span.first_good_after.empty()
                     ? ", and no newer one is known to be good"
                     : ", first good one after it " + span.first_good_after);
}

std::string newest_measured(const std::vector<ReleaseState>& states) {
  const auto newest = std::find_if(states.rbegin(), states.rend(),
                                   [](const ReleaseState& one) { return !one.state.is_open(); });
  return newest == states.rend() ? "" : newest->version;
}

std::string main_text(const Json& filing) {
  if (!filing.contains("main")) return "main was not measured.";
  const Json& main = filing.at("main");
  std::string text = fmt::format(
      "main at {} ({}) {}", main.at("commit").get<std::string>().substr(0, kShortCommit),
      main.at("date").get<std::string>(),
      main.at("shows") == "present" ? "has it, too" : "no longer has it");
  if (main.contains("applies"))
    text += main.at("applies").get<bool>() ? "; the patch applies there"
                                           : "; the patch does not apply there as it is";
  return text + ".";
}

bool is_fix(const Outcome& outcome) {
  return outcome.sentinel == Sentinel::kFixValidated ||
         outcome.sentinel == Sentinel::kEquivalenceShown ||
         outcome.sentinel == Sentinel::kEquivalenceProved;
}

/// What each machine showed of the first upstream, as released and patched, in runs of all inputs
/// within a sandbox.
Json machines_of(const std::vector<NewestVerdict>& current, const std::string& upstream) {
  std::map<std::string, std::pair<std::string, std::string>> machines;
  for (const NewestVerdict& one : current) {
    if (one.upstream() != upstream || !one.run.is_isolated() || one.question.is_partial) continue;
    auto& [released, patched] = machines[short_device(one.device())];
    if (one.question.question == Question::kReproduce) {
      released = one.outcome.sentinel == Sentinel::kBugReproduced ? "has the bug" : "not shown";
    } else if (one.question.question == Question::kValidate ||
               one.question.question == Question::kEquivalence) {
      patched = is_fix(one.outcome) ? "right" : "not shown";
    }
  }
  Json rows = Json::array();
  for (const auto& [machine, shown] : machines) {
    if (shown.first.empty() || rows.size() == kMaxRows) continue;
    rows.push_back(fmt::format("| {} | {} | {} |", machine, shown.first,
                               shown.second.empty() ? "not run" : shown.second));
  }
  return rows;
}

/// What a user of the upstream can do, the best first.
Json todo_of(const BundleFacts& facts, const std::vector<NewestVerdict>& current,
             const std::vector<Interval>& spans) {
  const Manifest& manifest = facts.manifest;
  Json rows = Json::array();
  if (!spans.empty()) {
    const Interval& last = spans.back();
    if (!last.first_good_after.empty()) {
      rows.push_back("Upgrade to " + last.first_good_after +
                     ", the first newer release without it; it may have other bugs.");
    } else if (!last.last_good_before.empty()) {
      rows.push_back("No newer release is known to be without it; the last one before it is " +
                     last.last_good_before + ".");
    }
  }
  std::set<std::string> machines;
  for (const NewestVerdict& one : current) {
    const bool is_default = one.question_text() == "mitigation" && !one.question.is_partial;
    if (one.outcome.sentinel == Sentinel::kMitigationVerified && is_default &&
        one.run.is_isolated())
      machines.insert(
          fmt::format("{} {} on {}", one.upstream(), one.version(), short_device(one.device())));
  }
  if (!machines.empty())
    rows.push_back(fmt::format(
        "Keep the release and correct it at run time, with the package patchbench-mitigations: "
        "`PATCHBENCH_MITIGATE={} python -m patchbench_mitigations train.py` (verified with {}).",
        manifest.slug.str(), fmt::join(machines, ", ")));
  rows.push_back(
      "Ask whether your environment, or the release you choose, is hit: `patchbench scan`.");
  return rows;
}

}  // namespace

std::vector<ChangedPlace> changed_places(std::string_view diff) {
  std::vector<ChangedPlace> places;
  each_change(diff, [&](const std::string& file, int at, std::string_view line) {
    const std::string_view text = without_indent(line.substr(1));
    if (file.empty() || is_idle(text)) return;
    const std::string code = line.front() == '-' ? std::string(text) : std::string();
    const auto known = std::find_if(places.begin(), places.end(),
                                    [&](const ChangedPlace& place) { return place.file == file; });
    if (known == places.end()) {
      places.push_back({file, code, at});
    } else if (known->text.empty() && !code.empty()) {
      *known = {file, code, at};
    }
  });
  return places;
}

std::string changed_text(std::string_view diff, std::size_t most) {
  std::string out;
  std::size_t count = 0;
  each_change(diff, [&](const std::string&, int, std::string_view line) {
    ++count;
    out += std::string(line) + "\n";
  });
  return count > most ? "" : out;
}

Json filing_values(const BundleFacts& facts, const std::vector<NewestVerdict>& current,
                   const std::set<std::string>& known) {
  const Manifest& manifest = facts.manifest;
  Json span_rows = Json::array(), place_rows = Json::array(), introduced = Json::array();
  std::vector<Interval> first_spans;
  for (const UpstreamUse& use : manifest.upstreams) {
    const std::vector<ReleaseState> states =
        merged_states(advisory_releases(facts.record_set, manifest, facts.pins.upstream(use.name)));
    const std::vector<Interval> spans = intervals_of(states);
    if (&use == &manifest.upstreams.front()) first_spans = spans;
    for (const Interval& span : spans) {
      if (span_rows.size() < kMaxRows)
        span_rows.push_back(span_text(use.name, span, newest_measured(states)));
    }
  }
  const std::string& prefix = facts.pins.upstream(manifest.upstreams.front().name).git_prefix;
  for (const ChangedPlace& place : changed_places(facts.diff)) {
    if (place_rows.size() < kMaxRows)
      place_rows.push_back(fmt::format("`{}{}:{}`{}", prefix, place.file, place.line,
                                       place.text.empty() ? "" : ", `" + place.text + "`"));
  }
  for (const Thread& thread : facts.introduced)
    introduced.push_back(thread.name + ": " + thread.about);
  const Json machines = machines_of(current, manifest.upstreams.front().name);
  return {{"name", manifest.title},
          {"hits", hits_of(manifest, known)},
          {"has_more", known.size() > kMaxRows},
          {"reproducer", without_end(facts.reproducer)},
          {"reproducer_output", without_end(facts.reproducer_output)},
          {"spans", span_rows},
          {"places", place_rows},
          {"introduced", introduced},
          {"main", main_text(manifest.filing)},
          {"diff", without_end(changed_text(facts.diff, kMaxDiffLines))},
          {"machines", machines},
          {"has_machines", !machines.empty()},
          {"has_upstream_test", !facts.upstream_test.empty()},
          {"answer", manifest.filing.value("answer", "")},
          {"todo", todo_of(facts, current, first_spans)}};
}

}  // namespace patchbench
