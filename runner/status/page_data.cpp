#include "status/page_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/bench.h"
#include "status/agreement.h"
#include "status/behind.h"
#include "status/due.h"
#include "status/status_page.h"

namespace patchbench {
namespace {

report::PageCell cell_of(const Context& context, const PackRecords& verdicts, const Manifest& pack,
                         const DeviceClassWindow& window, std::size_t index,
                         report::PageDeviceClass& device_class) {
  const ReleaseState& release = window.states[index];
  report::PageCell cell{release.version, "", release.state, release.record, {}};
  if (release.record.empty()) return cell;
  const auto& devices = verdicts.verdict_index.by_key().at(
      {pack.slug.str(), window.upstream, release.version, "", "reproduce"});
  const Finding& finding = *devices.at(window.device).newest();
  cell.date = finding.started.substr(0, 10);
  const Behind status = behind(context, verdicts, pack, finding);
  cell.marks = status.marks;
  double worst_share = 0;
  for (const auto& [name, share] : status.share_by_case) worst_share = std::max(worst_share, share);
  if (worst_share > 0) device_class.errors.push_back({index, worst_share});
  return cell;
}

std::vector<report::PageRecord> records_of(const Context& context, const PackRecords& verdicts,
                                           const Manifest& pack) {
  std::vector<report::PageRecord> records;
  for (const auto& [key, devices] : verdicts.verdict_index.by_key()) {
    if (key.slug != pack.slug.str()) continue;
    for (const auto& [device, cell] : devices) {
      for (const Finding* finding : {cell.newest(), cell.newest_unsigned()}) {
        if (finding == nullptr) continue;
        const std::string version =
            key.version == "-" ? "-" : key.upstream + " " + version_text(key);
        records.push_back({finding->digest, key.question.text(), version, device, finding->sentinel,
                           finding->started.substr(0, 10),
                           behind(context, verdicts, pack, *finding).marks});
      }
    }
  }
  return records;
}

std::vector<std::string> mitigation_lines(const PackRecords& verdicts, const Manifest& pack) {
  std::vector<std::string> lines;
  const Json& m = pack.mitigation;
  if (!m.is_object() || m.empty()) return {"none"};
  if (m.contains("not_needed")) return {"not needed: " + m["not_needed"]["why"].get<std::string>()};
  std::string modes, needs;
  for (const Json& mode : m.value("modes", Json::array())) modes += " " + mode.get<std::string>();
  for (const Json& need : m.value("needs", Json::array())) needs += " " + need.get<std::string>();
  lines.push_back("modes" + modes + "; needs" + needs);
  lines.push_back(m.value("exactness", ""));
  bool has_record = false;  // of the mode without a name
  for (const auto& [key, devices] : verdicts.verdict_index.by_key()) {
    if (key.slug != pack.slug.str() || !key.question.is(Question::kMitigation)) continue;
    const std::string& mode = key.question.name();
    const std::string of_mode = mode.empty() ? "" : "mode " + mode + ": ";
    has_record |= of_mode.empty();
    for (const auto& [device, cell] : devices) {
      if (const Finding* finding = cell.newest())
        lines.push_back(fmt::format("{}{} on {} {}, {} ({})", of_mode, marked(verdicts, *finding),
                                    key.upstream, version_text(key), short_device(device),
                                    finding->started.substr(0, 10)));
    }
  }
  if (!has_record) lines.insert(lines.begin() + 2, "no record");
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

report::Page page_of(const Context& context, const PackRecords& verdicts, const std::string& date) {
  report::Page page{date, {}};
  for (const Manifest& pack : verdicts.packs) {
    report::PagePack out{.manifest = pack};
    const std::vector<DeviceClassWindow> windows = windows_of(verdicts, pack);
    for (const DeviceClassWindow& window : windows) {
      report::PageDeviceClass device_class{
          window.upstream, window.device, {}, window_text(window), {}};
      for (std::size_t i = 0; i < window.states.size(); ++i)
        device_class.cells.push_back(cell_of(context, verdicts, pack, window, i, device_class));
      out.tiers.push_back(std::move(device_class));
    }
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      const VerdictKey red{pack.slug.str(), use.name, use.red_pin, "", "reproduce"};
      const std::string agreements = agreement_text(quorum_of(verdicts.verdict_index, red)),
                        unsigned_text =
                            agreement_text(unsigned_agreements(verdicts.verdict_index, red));
      if (!agreements.empty())
        out.quorum.push_back(use.name + " " + use.red_pin + ": " + agreements);
      if (!unsigned_text.empty())
        out.unsigned_imports.push_back(use.name + " " + use.red_pin + ": " + unsigned_text);
      for (std::string& line : disagreement_lines(verdicts, pack, use))
        out.disagreements.push_back(std::move(line));
      for (const std::string& line :
           device_class_disagreements(windows, sources_of(verdicts, pack, use), use))
        out.disagreements.push_back("tiers, " + line);
    }
    out.mitigation = mitigation_lines(verdicts, pack);
    for (const Due& due : due_of(context, verdicts, pack, date))
      out.due.push_back((is_due(due) ? "due: " : "") + due.what + ": " + due.why);
    out.records = records_of(context, verdicts, pack);
    out.bars = bench_bars(context, pack.slug);
    page.packs.push_back(std::move(out));
  }
  return page;
}

}  // namespace patchbench
