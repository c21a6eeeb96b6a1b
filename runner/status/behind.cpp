#include "status/behind.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/device.h"
#include "core/digest.h"
#include "core/edit_over.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// Digests of the pack's edits as they are now.
std::set<std::string> edit_digests(const Context& context, const Slug& slug) {
  std::set<std::string> digests;
  const fs::path folder = context.root / cell_path(slug, Column::kPatches);
  if (!fs::is_directory(folder)) return digests;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".edit")
      digests.insert(sha256_hex(format_edit(load_edit(file.path()))));
  }
  return digests;
}

/// The cases that a question about a subject of an upstream has on a kind of device today.
std::set<std::string> cases_today(const Manifest& pack, const Finding& finding) {
  const std::string_view kind = kind_name(recorded_kind(finding.device));
  const bool runs_no_release = finding.version == "-";
  const std::string subject = runs_no_release                              ? finding.question.text()
                              : finding.question.is(Question::kMitigation) ? "mitigated"
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
  if (!o.counts || (o.status != CaseStatus::kPresent && o.status != CaseStatus::kAbsent))
    return worst;
  for (const Measure& m : o.measures) {
    if (m.limit > 0 && std::isfinite(m.got)) worst = std::max(worst, m.got / m.limit);
  }
  return worst;
}

}  // namespace

Behind behind(const Context& context, const PackRecords& verdicts, const Manifest& pack,
              const Finding& finding) {
  Behind out;
  if (!finding.is_isolated) out.marks.push_back("unisolated");
  if (!finding.is_counted) out.marks.push_back("unsigned import");
  const std::optional<Record> verdict = verdicts.records.find(finding.digest);
  if (!verdict) return out;
  std::set<std::string> missing = cases_today(pack, finding), edits;
  const std::size_t num_today = missing.size();
  for (const std::string& digest : cited_by(*verdict)) {
    const std::optional<Record> record = verdicts.records.find(digest);
    if (!record) continue;
    const Observation o = observation_of(*record);
    missing.erase(o.case_name);
    if (o.subject == SubjectKind::kUpstream || o.subject == SubjectKind::kOp) {
      double& share = out.share_by_case[o.case_name];
      share = std::max(share, share_of(o));
    }
    if (o.subject == SubjectKind::kAltered) continue;  // the pack has no such edit
    for (const std::string& edit : RunContext::from_json(record->predicate().at("context")).edits)
      edits.insert(edit);
  }
  const bool is_of_cases =
      finding.question.is(Question::kReproduce) || finding.question.is(Question::kValidate) ||
      finding.question.is(Question::kEquivalence) || finding.question.is(Question::kOp);
  if (is_of_cases && !missing.empty())
    out.marks.push_back(fmt::format("{} of {} cases", num_today - missing.size(), num_today));
  // Only at the red pin do the edits match the files; elsewhere they were carried.
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

}  // namespace patchbench
