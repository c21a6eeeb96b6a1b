#include "status/standing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "report/table.h"
#include "status/status_page.h"

namespace patchbench {
namespace {

const Manifest* find_pack(const std::vector<Manifest>& packs, const std::string& slug) {
  const auto at = std::find_if(packs.begin(), packs.end(),
                               [&](const Manifest& pack) { return pack.slug.str() == slug; });
  return at == packs.end() ? nullptr : &*at;
}

Board board_from(const ledger::Archive& archive, const std::vector<Manifest>& packs,
                 const StandingOptions& options) {
  Board board;
  archive.each_finding({.slug = options.slug, .before = options.before},
                       [&](const Finding& finding) {
                         const Manifest* pack = find_pack(packs, finding.slug);
                         if (pack == nullptr) return;
                         Finding normal = finding;
                         normal.beside = unusual(finding.beside, *pack);
                         board.add(normal);
                       });
  return board;
}

/// Its releases; of what is never released, the commits.
std::vector<std::string> versions_of(const Upstream& upstream) {
  std::vector<std::string> versions;
  for (const Pin& pin : upstream.releases.empty() ? upstream.commits : upstream.releases)
    versions.push_back(pin.version);
  return versions;
}

TierWindow window_on(const Standing& standing, const std::string& slug, const Upstream& upstream,
                     const std::string& device) {
  TierWindow window{upstream.name, device, {}, {}};
  window.states = states_of(standing.board, slug, upstream.name, device, versions_of(upstream));
  for (ReleaseState& state : window.states) {
    if (state.state == "unresolved" &&
        has_no_such_code(cited_observations(standing.archive, state.record)))
      state.state = "unsupported";
  }
  window.intervals = intervals_of(window.states);
  return window;
}

}  // namespace

std::string unusual(const std::string& beside, const Manifest& pack) {
  if (beside.empty()) return "";
  Json left = parse_json(beside, "beside");
  for (const UpstreamUse& use : pack.upstreams) {
    if (left.value(use.name, "") == use.red_pin) left.erase(use.name);
  }
  return left.empty() ? "" : canonical_json(left);
}

Standing standing_of(const Context& context, const StandingOptions& options) {
  std::vector<std::string> slugs = context.slugs();
  if (!options.slug.empty()) slugs = {context.manifest(options.slug).slug.str()};
  std::vector<Manifest> packs;
  for (const std::string& slug : slugs) packs.push_back(context.manifest(slug));
  Standing standing{
      std::move(packs),
      context.pins(),
      {options.with_ledger ? context.ledger : std::filesystem::path(), context.root, slugs},
      {}};
  standing.board = board_of(standing, options);
  return standing;
}

Board board_of(const Standing& standing, const StandingOptions& options) {
  return board_from(standing.archive, standing.packs, options);
}

std::vector<Observation> cited_observations(const ledger::Archive& archive,
                                            const std::string& verdict) {
  std::vector<Observation> observations;
  const std::optional<Record> record = archive.find(verdict);
  if (!record) return observations;
  for (const std::string& digest : cited_by(*record)) {
    if (const std::optional<Record> cited = archive.find(digest))
      observations.push_back(observation_of(*cited));
  }
  return observations;
}

int64_t TierWindow::count(const std::string& state) const {
  return std::count_if(states.begin(), states.end(),
                       [&](const ReleaseState& release) { return release.state == state; });
}

bool TierWindow::is_open() const {
  return !intervals.empty() && !states.empty() &&
         intervals.back().last_bad == states.back().version;
}

std::vector<TierWindow> windows_of(const Standing& standing, const Manifest& pack) {
  std::vector<TierWindow> windows;
  for (const UpstreamUse& use : pack.upstreams) {
    if (use.from_environment) continue;
    const Upstream& upstream = standing.pins.upstream(use.name);
    std::set<std::string> devices;
    for (const auto& [place, cells] : standing.board.places()) {
      if (place.slug != pack.slug.str() || place.upstream != use.name || place.asked != "reproduce")
        continue;
      for (const auto& [device, cell] : cells) {
        if (cell.newest() != nullptr) devices.insert(device);
      }
    }
    for (const std::string& device : devices)
      windows.push_back(window_on(standing, pack.slug.str(), upstream, device));
  }
  return windows;
}

std::vector<SourceState> sources_of(const Standing& standing, const Manifest& pack,
                                    const UpstreamUse& use) {
  std::map<std::string, Json> files;  // version -> digests
  for (const auto& [place, cells] : standing.board.places()) {
    if (place.slug != pack.slug.str() || place.upstream != use.name || place.asked != "reproduce")
      continue;
    for (const auto& [device, cell] : cells) {
      const Finding* finding = cell.newest();
      if (finding == nullptr || files.contains(place.version)) continue;
      const std::optional<Record> record = standing.archive.find(finding->digest);
      const Json context = record ? record->predicate().at("context") : Json::object();
      Json named = context.value("files", Json::object());
      bool has_all = true;
      for (const std::string& file : use.files) has_all &= named.contains(file);
      if (has_all && !use.files.empty()) files[place.version] = std::move(named);
    }
  }
  std::vector<SourceState> states;
  const auto red = files.find(use.red_pin);
  if (red == files.end()) return states;
  for (const Pin& pin : standing.pins.upstream(use.name).releases) {
    const auto at = files.find(pin.version);
    if (at == files.end()) continue;
    bool is_same = true, is_absent = true;
    for (const std::string& file : use.files) {
      is_same &= at->second.at(file) == red->second.at(file);
      is_absent &= at->second.at(file) == "absent";
    }
    states.push_back({pin.version, is_absent ? "no_such_file"
                                   : is_same ? "as_red_pin"
                                             : "differs"});
  }
  return states;
}

std::string window_text(const TierWindow& window) {
  if (window.intervals.empty()) {
    const int64_t num_absent = window.count("absent");
    return num_absent > 0 ? fmt::format("absent from all {} judged releases", num_absent)
                          : "no release judged";
  }
  std::string text;
  for (const Interval& interval : window.intervals) {
    const std::string range = interval.first_bad == interval.last_bad
                                  ? interval.first_bad
                                  : interval.first_bad + "-" + interval.last_bad;
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", range, interval.failure_class,
                        interval.has_gap ? " (gap)" : "");
  }
  const std::string& good = window.intervals.back().first_good_after;
  return text + (window.is_open() ? "; open at the newest release"
                 : good.empty()   ? "; no good release after it measured"
                                  : "; first good " + good);
}

Json window_json(const TierWindow& window) {
  Json states = Json::array(), intervals = Json::array();
  for (const ReleaseState& release : window.states)
    states.push_back(
        {{"version", release.version}, {"state", release.state}, {"verdict", release.record}});
  for (const Interval& i : window.intervals) {
    intervals.push_back({{"class", i.failure_class},
                         {"first_bad", i.first_bad},
                         {"last_bad", i.last_bad},
                         {"last_good_before", i.last_good_before},
                         {"first_good_after", i.first_good_after},
                         {"has_gap", i.has_gap}});
  }
  return {{"upstream", window.upstream},
          {"device", window.device},
          {"is_open", window.is_open()},
          {"releases", states},
          {"intervals", intervals}};
}

std::vector<std::string> tier_disagreements(const std::vector<TierWindow>& windows,
                                            const std::vector<SourceState>& sources,
                                            const UpstreamUse& use) {
  std::map<std::string, std::map<std::string, std::string>> by_version;  // version -> tier -> state
  std::map<std::string, std::string> at_red_pin;                         // tier -> state
  std::vector<std::string> order;
  for (const TierWindow& window : windows) {
    if (window.upstream != use.name) continue;
    for (const ReleaseState& release : window.states) {
      if (order.size() < window.states.size()) order.push_back(release.version);
      if (release.state == "unresolved" || release.state == "not_measured") continue;
      by_version[release.version][short_device(window.device)] = release.state;
      if (release.version == use.red_pin) at_red_pin[short_device(window.device)] = release.state;
    }
  }
  for (const SourceState& source : sources) {
    std::set<std::string> red;
    for (const auto& [tier, state] : at_red_pin) red.insert(state);
    if (source.state == "as_red_pin" && red.size() == 1 && by_version.contains(source.version))
      by_version[source.version]["source"] = *red.begin();
  }
  std::vector<std::string> lines;
  for (const std::string& version : order) {
    std::set<std::string> distinct;
    std::string line;
    for (const auto& [tier, state] : by_version[version]) {
      distinct.insert(state);
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", tier, state);
    }
    if (distinct.size() > 1) lines.push_back(version + ": " + line);
  }
  return lines;
}

std::string votes_text(const std::vector<Votes>& votes) {
  std::map<std::string, std::string> by_sentinel;
  for (const Votes& vote : votes) {
    std::string& list = by_sentinel[vote.sentinel];
    list += fmt::format("{}{} ×{}", list.empty() ? "" : ", ", short_device(vote.device), vote.runs);
  }
  std::string text;
  for (const auto& [sentinel, list] : by_sentinel) {
    const std::string state = state_of_sentinel(sentinel);
    const std::string said = state == "absent"       ? "green"
                             : state == "unresolved" ? sentinel
                                                     : "red (" + state + ")";
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", said, list);
  }
  return text;
}

std::vector<Votes> votes_apart(const Board& board, const Place& place) {
  std::map<std::pair<std::string, std::string>, int64_t> runs;
  if (const auto at = board.places().find(place); at != board.places().end()) {
    for (const auto& [device, cell] : at->second) {
      for (const auto& [what, tally] : cell.apart) runs[{what.first, device}] += tally.runs;
    }
  }
  std::vector<Votes> votes;
  for (const auto& [what, count] : runs) votes.push_back({what.first, what.second, count});
  return votes;
}

std::vector<std::string> disagreement_lines(const Standing& standing, const Manifest& pack,
                                            const UpstreamUse& use) {
  std::vector<std::string> lines;
  for (const Disagreement& one : disagreements_of(standing.board)) {
    if (one.place.slug != pack.slug.str() || one.place.upstream != use.name) continue;
    lines.push_back(
        fmt::format("{} {}: {}", version_text(one.place), one.place.asked, votes_text(one.votes)));
  }
  return lines;
}

std::string render_windows(const Standing& standing, const Manifest& pack, const UpstreamUse& use,
                           const std::vector<TierWindow>& windows) {
  const Upstream& upstream = standing.pins.upstream(use.name);
  std::string out =
      fmt::format("{:02} {} · {}, {} locked {}\n", pack.number, pack.slug.str(), use.name,
                  versions_of(upstream).size(), upstream.releases.empty() ? "commits" : "releases");
  report::Table table({"tier", "class", "first bad", "last bad", "good before", "good after"});
  std::string tallies;
  for (const TierWindow& window : windows) {
    if (window.upstream != use.name) continue;
    const std::string tier = short_device(window.device);
    for (const Interval& i : window.intervals) {
      const auto or_none = [](const std::string& version) {
        return version.empty() ? std::string("none") : short_version(version);
      };
      const bool is_last = &i == &window.intervals.back();
      table.add({tier, i.failure_class, short_version(i.first_bad), short_version(i.last_bad),
                 or_none(i.last_good_before),
                 is_last && window.is_open() ? "open" : or_none(i.first_good_after)});
    }
    if (window.intervals.empty()) table.add({tier, window_text(window)});
    tallies += fmt::format("{}: {} absent, {} without such code, {} unresolved, {} unmeasured\n",
                           tier, window.count("absent"), window.count("unsupported"),
                           window.count("unresolved"), window.count("not_measured"));
    std::vector<std::string> gaps;
    for (const ReleaseState& release : window.states) {
      if (release.state == "unresolved" || release.state == "not_measured")
        gaps.push_back(short_version(release.version));
    }
    if (!gaps.empty() && gaps.size() < window.states.size())
      tallies += report::paragraph("  gaps ", fmt::format("{}", fmt::join(gaps, " ")));
  }
  if (table.num_rows() == 0) return out + "  no release measured\n";
  out += table.render(report::style_of(STDOUT_FILENO)) + tallies;
  for (const std::string& line : tier_disagreements(windows, sources_of(standing, pack, use), use))
    out += report::paragraph("tiers disagree ", line);
  return out;
}

}  // namespace patchbench
