#include "status/pack_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace patchbench {
namespace {

const Manifest* find_pack(const std::vector<Manifest>& packs, const std::string& slug) {
  const auto at = std::find_if(packs.begin(), packs.end(),
                               [&](const Manifest& pack) { return pack.slug.str() == slug; });
  return at == packs.end() ? nullptr : &*at;
}

VerdictIndex verdict_index_from(const ledger::RecordIndex& archive,
                                const std::vector<Manifest>& packs, const JudgedDigests& judged,
                                const VerdictFilter& options) {
  VerdictIndex verdict_index(judged);
  archive.each_finding({.slug = options.slug, .before = options.before},
                       [&](const Finding& finding) {
                         const Manifest* pack = find_pack(packs, finding.slug);
                         if (pack == nullptr) return;
                         Finding normal = finding;
                         normal.companions = unusual(finding.companions, *pack);
                         verdict_index.add(normal);
                       });
  return verdict_index;
}

/// The classes of the triggers behind a BUG_REPRODUCED, the worst first: its sentinel names one.
std::vector<std::string> classes_seen(const PackRecords& verdicts, const Finding& finding,
                                      const QuestionContext& question) {
  std::set<std::string> names;
  for (const Observation& o : cited_observations(verdicts.records, finding.digest)) {
    if (o.status == CaseStatus::kPresent && o.role == CaseRole::kTrigger &&
        o.subject == question.subject)
      names.insert(o.failure_class);
  }
  if (names.empty()) names.insert(finding.outcome().argument);
  return find_pack(verdicts.packs, finding.slug)->worst_first(names);
}

}  // namespace

std::string unusual(const std::string& companions, const Manifest& pack) {
  if (companions.empty()) return "";
  Json left = parse_json(companions, "beside");
  for (const UpstreamUse& use : pack.upstreams) {
    if (left.value(use.name, "") == use.red_pin) left.erase(use.name);
  }
  return left.empty() ? "" : canonical_json(left);
}

PackRecords read_pack_records(const Context& context, const VerdictFilter& options) {
  std::vector<std::string> slugs = context.slugs();
  if (!options.slug.empty()) slugs = {context.manifest(options.slug).slug.str()};
  std::vector<Manifest> packs;
  for (const std::string& slug : slugs) packs.push_back(context.manifest(slug));
  PackRecords verdicts{
      std::move(packs),
      context.pins(),
      {options.with_ledger ? context.ledger : std::filesystem::path(), context.root, slugs},
      context.judged(),
      VerdictIndex()};
  verdicts.verdict_index = verdict_index_of(verdicts, options);
  return verdicts;
}

VerdictIndex verdict_index_of(const PackRecords& verdicts, const VerdictFilter& options) {
  return verdict_index_from(verdicts.records, verdicts.packs, verdicts.judged, options);
}

std::vector<Observation> cited_observations(const ledger::RecordIndex& archive,
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

std::string version_text(const VerdictKey& key) {
  // Of a folder its name: where it lay concerns the machine alone.
  std::string text = key.version;
  if (text.starts_with("path:"))
    text = "path:" + std::filesystem::path(text.substr(5)).filename().string();
  if (key.companions.empty()) return text;
  const Json companions = parse_json(key.companions, "beside");
  for (const auto& [name, version] : companions.items())
    text += fmt::format(" with {} {}", name, version.get<std::string>());
  return text;
}

bool is_older_run(const PackRecords& verdicts, const Finding& finding,
                  const QuestionContext& question) {
  const std::optional<Sentinel> sentinel = finding.outcome().sentinel;
  const Manifest* pack = find_pack(verdicts.packs, finding.slug);
  if (pack == nullptr || !sentinel || !is_of_all_cases(*sentinel)) return false;
  return !question.has_regions || !verdicts.judged.is_same(finding.manifest_sha256, pack->sha256);
}

std::string marked(const PackRecords& verdicts, const Finding& finding) {
  const std::optional<Record> record = verdicts.records.find(finding.digest);
  std::string said = finding.sentinel;
  if (record) {
    Outcome outcome = outcome_of(*record);
    const QuestionContext question = QuestionContext::from_json(record->predicate().at("question"));
    if (outcome.sentinel == Sentinel::kBugReproduced)
      outcome.argument =
          fmt::format("{}", fmt::join(classes_seen(verdicts, finding, question), ", "));
    said = described(outcome, question,
                     is_older_run(verdicts, finding, question) ? RunAge::kOlder : RunAge::kCurrent);
  }
  std::string marks = finding.is_isolated ? "" : "unisolated";
  if (!finding.is_counted) marks += marks.empty() ? "unsigned import" : ", unsigned import";
  return marks.empty() ? said : said + " (" + marks + ")";
}

}  // namespace patchbench
