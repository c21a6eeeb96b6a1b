#include "status/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "status/table_style.h"

namespace patchbench {

std::vector<std::string> device_class_disagreements(const std::vector<DeviceClassWindow>& windows,
                                                    const std::vector<SourceState>& sources,
                                                    const UpstreamUse& use) {
  std::map<std::string, std::map<std::string, BugState>> by_version;  // version -> tier -> state
  std::map<std::string, BugState> at_red_pin;                         // tier -> state
  std::vector<std::string> order;
  for (const DeviceClassWindow& window : windows) {
    if (window.upstream != use.name) continue;
    for (const ReleaseState& release : window.states) {
      if (order.size() < window.states.size()) order.push_back(release.version);
      if (release.state.is_open()) continue;
      by_version[release.version].insert_or_assign(short_device(window.device), release.state);
      if (release.version == use.red_pin)
        at_red_pin.insert_or_assign(short_device(window.device), release.state);
    }
  }
  for (const SourceState& source : sources) {
    std::set<BugState> red;
    for (const auto& [device_class, state] : at_red_pin) red.insert(state);
    if (source.state == "as_red_pin" && red.size() == 1 && by_version.contains(source.version))
      by_version[source.version].insert_or_assign("source", *red.begin());
  }
  std::vector<std::string> lines;
  for (const std::string& version : order) {
    std::set<BugState> distinct;
    std::string line;
    for (const auto& [device_class, state] : by_version[version]) {
      distinct.insert(state);
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", device_class, state);
    }
    if (distinct.size() > 1) lines.push_back(version + ": " + line);
  }
  return lines;
}

std::string agreement_text(const std::vector<Agreement>& agreements) {
  std::map<std::string, std::string> by_sentinel;
  for (const Agreement& vote : agreements) {
    std::string& list = by_sentinel[vote.sentinel];
    list += fmt::format("{}{} ×{}", list.empty() ? "" : ", ", short_device(vote.device), vote.runs);
    if (vote.unisolated == vote.runs) list += " (unisolated)";
    if (vote.unisolated > 0 && vote.unisolated < vote.runs)
      list += fmt::format(" ({} unisolated)", vote.unisolated);
  }
  std::string text;
  for (const auto& [sentinel, list] : by_sentinel) {
    const BugState state = state_of(Outcome::from_text(sentinel));
    const std::string said = state == BugStatus::kAbsent       ? "green"
                             : state == BugStatus::kUnresolved ? sentinel
                                                               : "red (" + state.text() + ")";
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", said, list);
  }
  return text;
}

std::vector<Agreement> unsigned_agreements(const VerdictIndex& verdict_index,
                                           const VerdictKey& key) {
  std::map<std::pair<std::string, std::string>, Agreement> runs;
  if (const auto at = verdict_index.by_key().find(key); at != verdict_index.by_key().end()) {
    for (const auto& [device, cell] : at->second) {
      for (const auto& [what, tally] : cell.unsigned_imports) {
        Agreement& one =
            runs.try_emplace({what.first, device}, Agreement{what.first, device}).first->second;
        one.runs += tally.runs;
        one.unisolated += tally.unisolated;
      }
    }
  }
  std::vector<Agreement> agreements;
  for (const auto& [what, one] : runs) agreements.push_back(one);
  return agreements;
}

std::vector<std::string> disagreement_lines(const PackRecords& verdicts, const Manifest& pack,
                                            const UpstreamUse& use) {
  std::vector<std::string> lines;
  for (const Disagreement& one : disagreements_of(verdicts.verdict_index)) {
    if (one.key.slug != pack.slug.str() || one.key.upstream != use.name) continue;
    lines.push_back(fmt::format("{} {}: {}", version_text(one.key), one.key.question.text(),
                                agreement_text(one.agreements)));
  }
  return lines;
}

std::string render_windows(const PackRecords& verdicts, const Manifest& pack,
                           const UpstreamUse& use, const std::vector<DeviceClassWindow>& windows,
                           const report::Style& style) {
  const Upstream& upstream = verdicts.pins.upstream(use.name);
  std::string out =
      fmt::format("{} · {}, {} locked {}\n", pack.slug.str(), use.name, upstream.versions().size(),
                  upstream.releases.empty() ? "commits" : "releases");
  report::Table table({"device", "class", "first bad", "last bad", "good before", "good after"});
  std::string tallies;
  for (const DeviceClassWindow& window : windows) {
    if (window.upstream != use.name) continue;
    const std::string device_class = short_device(window.device);
    for (const Interval& i : window.intervals) {
      const auto or_none = [](const std::string& version) {
        return version.empty() ? std::string("none") : short_version(version);
      };
      const bool is_last = &i == &window.intervals.back();
      table.add({device_class, i.failure_class, short_version(i.first_bad),
                 short_version(i.last_bad), or_none(i.last_good_before),
                 is_last && window.is_open() ? "open" : or_none(i.first_good_after)});
      table.color(1, report::Color::kRed);
    }
    if (window.intervals.empty()) {
      table.add({device_class, window_text(window)});
      table.color(
          1, color_of(BugState(window.count(BugStatus::kAbsent) > 0 ? BugStatus::kAbsent
                                                                    : BugStatus::kNotMeasured)));
    }
    tallies += fmt::format(
        "{}: {} absent, {} without such code, {} unresolved, {} unmeasured\n", device_class,
        window.count(BugStatus::kAbsent), window.count(BugStatus::kUnsupported),
        window.count(BugStatus::kUnresolved), window.count(BugStatus::kNotMeasured));
    std::vector<std::string> gaps;
    for (const ReleaseState& release : window.states) {
      if (release.state.is_open()) gaps.push_back(short_version(release.version));
    }
    if (!gaps.empty() && gaps.size() < window.states.size())
      tallies += report::paragraph("  gaps ", fmt::format("{}", fmt::join(gaps, " ")));
  }
  if (table.num_rows() == 0) return out + "  no release measured\n";
  out += table.render(style) + tallies;
  for (const std::string& line :
       device_class_disagreements(windows, sources_of(verdicts, pack, use), use))
    out += report::paragraph("tiers disagree ", line);
  return out;
}

}  // namespace patchbench
