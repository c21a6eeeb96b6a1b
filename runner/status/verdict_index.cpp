#include "status/verdict_index.h"

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

Board board_from(const ledger::Archive& archive, const std::vector<Manifest>& packs,
                 const JudgedDigests& judged, const VerdictFilter& options) {
  Board board(judged);
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

/// The classes of the triggers behind a BUG_REPRODUCED, the worst first: its sentinel names one.
std::vector<std::string> classes_seen(const VerdictIndex& verdicts, const Finding& finding,
                                      const QuestionContext& question) {
  std::set<std::string> names;
  for (const Observation& o : cited_observations(verdicts.archive, finding.digest)) {
    if (o.seen == Seen::kPresent && o.role == CaseRole::kTrigger && o.subject == question.subject)
      names.insert(o.failure_class);
  }
  if (names.empty()) names.insert(finding.outcome().argument);
  return find_pack(verdicts.packs, finding.slug)->worst_first(names);
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

VerdictIndex index_verdicts(const Context& context, const VerdictFilter& options) {
  std::vector<std::string> slugs = context.slugs();
  if (!options.slug.empty()) slugs = {context.manifest(options.slug).slug.str()};
  std::vector<Manifest> packs;
  for (const std::string& slug : slugs) packs.push_back(context.manifest(slug));
  VerdictIndex verdicts{
      std::move(packs),
      context.pins(),
      {options.with_ledger ? context.ledger : std::filesystem::path(), context.root, slugs},
      context.judged(),
      Board()};
  verdicts.board = board_of(verdicts, options);
  return verdicts;
}

Board board_of(const VerdictIndex& verdicts, const VerdictFilter& options) {
  return board_from(verdicts.archive, verdicts.packs, verdicts.judged, options);
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

std::string version_text(const Place& place) {
  // Of a folder its name: where it lay concerns the machine alone.
  std::string text = place.version;
  if (text.starts_with("path:"))
    text = "path:" + std::filesystem::path(text.substr(5)).filename().string();
  if (place.beside.empty()) return text;
  const Json beside = parse_json(place.beside, "beside");
  for (const auto& [name, version] : beside.items())
    text += fmt::format(" with {} {}", name, version.get<std::string>());
  return text;
}

std::string marked(const VerdictIndex& verdicts, const Finding& finding) {
  const std::optional<Record> record = verdicts.archive.find(finding.digest);
  std::string said = finding.sentinel;
  if (record) {
    Outcome outcome = outcome_of(*record);
    const QuestionContext question = QuestionContext::from_json(record->predicate().at("question"));
    if (outcome.sentinel == Sentinel::kBugReproduced)
      outcome.argument =
          fmt::format("{}", fmt::join(classes_seen(verdicts, finding, question), ", "));
    said = described(outcome, question);
  }
  std::string marks = finding.is_isolated ? "" : "unisolated";
  if (!finding.is_counted) marks += marks.empty() ? "unsigned import" : ", unsigned import";
  return marks.empty() ? said : said + " (" + marks + ")";
}

}  // namespace patchbench
