#include "status/newest.h"

#include <map>
#include <tuple>

#include "core/finding.h"

namespace patchbench {

std::string NewestVerdict::question_text() const {
  std::string text = question_name(question.question);
  if (question.question == Question::kReproduce && question.subject != SubjectKind::kUpstream)
    text += " " + question.subject.text();
  if (question.question == Question::kMitigation && !question.subject.mode().empty())
    text += " " + question.subject.mode();
  return question.claim.empty() ? text : text + " " + question.claim;
}

std::vector<NewestVerdict> newest_verdicts(
    const ledger::RecordSet& record_set, const std::function<bool(const NewestVerdict&)>& counts) {
  using Key =
      std::tuple<std::string, std::string, std::string, std::string, std::string, std::string>;
  std::map<Key, NewestVerdict> newest;
  for (const auto& [digest, entry] : record_set.entries()) {
    if (entry.record.type() != "verdict" || !ledger::counts_for_quorum(entry)) continue;
    const Json& p = entry.record.predicate();
    NewestVerdict one{&entry, RunContext::from_json(p.at("context")),
                      QuestionContext::from_json(p.at("question")), outcome_of(entry.record)};
    // One over named cases says nothing of the others.
    if (is_of_named_cases(one.question) || !counts(one)) continue;
    const Key key(one.run.slug, one.upstream(), one.version(),
                  canonical_json(one.run.pin.companions()), one.question_text(), one.device());
    const auto [held, is_new] = newest.emplace(key, one);
    if (!is_new && held->second.entry->made < one.entry->made) held->second = one;
  }
  std::vector<NewestVerdict> out;
  for (auto& [key, one] : newest) out.push_back(std::move(one));
  return out;
}

}  // namespace patchbench
