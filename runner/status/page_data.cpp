#include "status/page_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/digest.h"
#include "core/file_text.h"
#include "report/bench.h"
#include "status/lifecycle.h"
#include "status/status_page.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// Digests of the pack's edits as they are now.
std::set<std::string> edit_digests(const Context& context, const Slug& slug) {
  std::set<std::string> digests;
  const fs::path folder = context.root / cell_path(slug, Column::kPatches);
  if (!fs::is_directory(folder)) return digests;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".edit") digests.insert(sha256_hex(read_file(file.path())));
  }
  return digests;
}

/// The cases that a question about a subject of an upstream has on a kind of device today.
std::set<std::string> cases_today(const Manifest& pack, const Finding& finding) {
  const std::string kind = finding.device == "cpu" ? "cpu" : "cuda";
  const bool runs_no_release = finding.version == "-";
  const std::string subject = runs_no_release                 ? finding.asked
                              : finding.asked == "mitigation" ? "mitigated"
                                                              : "upstream";
  std::set<std::string> names;
  for (const Case& item : pack.cases) {
    bool is_of_it = item.upstream.empty() || item.upstream == finding.upstream;
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.name == finding.upstream) is_of_it = item.runs_on(use);
    }
    const bool is_judged = item.role != CaseRole::kSurvey && item.role != CaseRole::kCode;
    if (is_judged && is_of_it && item.is_for(subject) && item.counts_on(kind))
      names.insert(item.name);
  }
  return names;
}

double share_of(const Observation& o) {
  double worst = 0;
  if (!o.counts || (o.seen != Seen::kPresent && o.seen != Seen::kAbsent)) return worst;
  for (const Measure& m : o.measures) {
    if (m.limit > 0 && std::isfinite(m.got)) worst = std::max(worst, m.got / m.limit);
  }
  return worst;
}

report::PageCell cell_of(const Context& context, const Standing& standing, const Manifest& pack,
                         const TierWindow& window, std::size_t index, report::PageTier& tier) {
  const ReleaseState& release = window.states[index];
  report::PageCell cell{release.version, "", release.state, release.record, {}};
  if (release.record.empty()) return cell;
  const auto& devices = standing.board.places().at(
      {pack.slug.str(), window.upstream, release.version, "", "reproduce"});
  const Finding& finding = *devices.at(window.device).newest();
  cell.date = finding.started.substr(0, 10);
  const Behind seen = behind(context, standing, pack, finding);
  cell.marks = seen.marks;
  double worst_share = 0;
  for (const auto& [name, share] : seen.share_by_case) worst_share = std::max(worst_share, share);
  if (worst_share > 0) tier.errors.push_back({index, worst_share});
  return cell;
}

std::vector<report::PageRecord> records_of(const Context& context, const Standing& standing,
                                           const Manifest& pack) {
  std::vector<report::PageRecord> records;
  for (const auto& [place, devices] : standing.board.places()) {
    if (place.slug != pack.slug.str()) continue;
    for (const auto& [device, cell] : devices) {
      for (const Finding* finding : {cell.newest(), cell.newest_apart()}) {
        if (finding == nullptr) continue;
        const std::string version =
            place.version == "-" ? "-" : place.upstream + " " + version_text(place);
        records.push_back({finding->digest, place.asked, version, device, finding->sentinel,
                           finding->started.substr(0, 10),
                           behind(context, standing, pack, *finding).marks});
      }
    }
  }
  return records;
}

std::vector<std::string> mitigation_lines(const Standing& standing, const Manifest& pack) {
  std::vector<std::string> lines;
  const Json& m = pack.mitigation;
  if (!m.is_object() || m.empty()) return {"none"};
  if (m.contains("not_needed")) return {"not needed: " + m["not_needed"]["why"].get<std::string>()};
  std::string modes, needs;
  for (const Json& mode : m.value("modes", Json::array())) modes += " " + mode.get<std::string>();
  for (const Json& need : m.value("needs", Json::array())) needs += " " + need.get<std::string>();
  lines.push_back("modes" + modes + "; needs" + needs);
  lines.push_back(m.value("exactness", ""));
  for (const auto& [place, devices] : standing.board.places()) {
    if (place.slug != pack.slug.str() || place.asked != "mitigation") continue;
    for (const auto& [device, cell] : devices) {
      if (const Finding* finding = cell.newest())
        lines.push_back(fmt::format("{} on {} {}, {} ({})", marked(standing, *finding),
                                    place.upstream, version_text(place), short_device(device),
                                    finding->started.substr(0, 10)));
    }
  }
  if (lines.size() == 2) lines.push_back("no record");
  return lines;
}

std::vector<report::PagePack::Bars> bench_bars(const Context& context, const Slug& slug) {
  std::vector<report::PagePack::Bars> bars;
  for (const Bench& bench : benches_of(context, slug)) {
    for (report::PagePack::Bars& one : report::bars_of(bench.document))
      bars.push_back(std::move(one));
  }
  return bars;
}

}  // namespace

Behind behind(const Context& context, const Standing& standing, const Manifest& pack,
              const Finding& finding) {
  Behind out;
  if (!finding.is_isolated) out.marks.push_back("unisolated");
  if (!finding.is_counted) out.marks.push_back("unsigned import");
  const std::optional<Record> verdict = standing.archive.find(finding.digest);
  if (!verdict) return out;
  std::set<std::string> missing = cases_today(pack, finding), edits;
  const std::size_t num_today = missing.size();
  for (const std::string& digest : cited_by(*verdict)) {
    const std::optional<Record> record = standing.archive.find(digest);
    if (!record) continue;
    const Observation o = observation_of(*record);
    missing.erase(o.case_name);
    if (o.subject == "upstream" || o.subject == "op") {
      double& share = out.share_by_case[o.case_name];
      share = std::max(share, share_of(o));
    }
    for (const std::string& edit : RunContext::from_json(record->predicate().at("context")).edits)
      edits.insert(edit);
  }
  const bool is_of_cases = finding.asked == "reproduce" || finding.asked == "validate" ||
                           finding.asked == "equivalence" || finding.asked == "op";
  if (is_of_cases && !missing.empty())
    out.marks.push_back(fmt::format("{} of {} cases", num_today - missing.size(), num_today));
  // Only at the red pin are the edits those of the files, elsewhere they were carried.
  const bool is_red =
      std::any_of(pack.upstreams.begin(), pack.upstreams.end(), [&](const auto& use) {
        return use.name == finding.upstream && use.red_pin == finding.version;
      });
  const std::set<std::string> now = edit_digests(context, pack.slug);
  const bool is_changed = std::any_of(edits.begin(), edits.end(),
                                      [&](const std::string& edit) { return !now.contains(edit); });
  if (is_red && is_changed) out.marks.push_back("stale: an edit was changed since");
  return out;
}

report::Page page_of(const Context& context, const Standing& standing, const std::string& date) {
  report::Page page{date, {}};
  for (const Manifest& pack : standing.packs) {
    report::PagePack out{.manifest = pack};
    const std::vector<TierWindow> windows = windows_of(standing, pack);
    for (const TierWindow& window : windows) {
      report::PageTier tier{window.upstream, window.device, {}, window_text(window), {}};
      for (std::size_t i = 0; i < window.states.size(); ++i)
        tier.cells.push_back(cell_of(context, standing, pack, window, i, tier));
      out.tiers.push_back(std::move(tier));
    }
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      const Place red{pack.slug.str(), use.name, use.red_pin, "", "reproduce"};
      const std::string votes = votes_text(quorum_of(standing.board, red)),
                        apart = votes_text(votes_apart(standing.board, red));
      if (!votes.empty()) out.quorum.push_back(use.name + " " + use.red_pin + ": " + votes);
      if (!apart.empty()) out.apart.push_back(use.name + " " + use.red_pin + ": " + apart);
      for (std::string& line : disagreement_lines(standing, pack, use))
        out.disagreements.push_back(std::move(line));
      for (const std::string& line :
           tier_disagreements(windows, sources_of(standing, pack, use), use))
        out.disagreements.push_back("tiers, " + line);
    }
    out.mitigation = mitigation_lines(standing, pack);
    for (const Due& due : due_of(context, standing, pack, date))
      out.due.push_back((is_due(due) ? "due: " : "") + due.what + ": " + due.why);
    out.records = records_of(context, standing, pack);
    out.bars = bench_bars(context, pack.slug);
    page.packs.push_back(std::move(out));
  }
  return page;
}

}  // namespace patchbench
