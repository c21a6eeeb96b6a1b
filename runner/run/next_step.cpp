#include "run/next_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/bug_state.h"
#include "report/table.h"

namespace patchbench {
namespace {

/// "liger-kernel 0.8.0", or the package of an environment.
std::string release_of(const Setup& setup) {
  return setup.upstream.name + (setup.pin ? " " + setup.pin->version : ", as installed,");
}

/// "patchbench validate SLUG" on the release of this run.
std::string validate_command(const Setup& setup) {
  std::string words = "patchbench validate " + setup.manifest.slug.str();
  if (setup.upstream.name != setup.manifest.upstreams.front().name)
    words += " --of " + setup.upstream.name;
  if (setup.pin->version != setup.upstream.red_pin) words += " --upstream " + setup.pin->version;
  return words;
}

std::string of_bug(const Setup& setup, const Subject& subject, bool is_there) {
  const bool is_release = subject == SubjectKind::kUpstream;
  const std::string who = is_release ? release_of(setup) : "The subject " + subject.text();
  const bool has_fix = setup.pin && !setup.manifest.waived(Column::kPatches);
  return report::closing(
      who + (is_there ? " has the bug." : " is right on every case of this run."),
      has_fix && (is_there || !is_release)
          ? validate_command(setup)
          : "patchbench status windows " + setup.manifest.slug.str());
}

/// No sentinel was earned.
std::string of_nothing(Question question, const std::string& slug) {
  const std::string cases = "patchbench status cases " + slug;
  switch (question) {
    case Question::kReproduce:
      return report::closing("This run does not tell whether the bug is there.", cases);
    case Question::kOp:
      return report::closing("This run does not show that the op is right.", cases);
    case Question::kMitigation:
      return report::closing("This run does not show that the mitigation is right.", cases);
    case Question::kClaim:
      return report::closing("The claim is open: this run neither confirms nor refutes it.", cases);
    case Question::kDrawn:
      return report::closing("Drawn cases alone earn no verdict.",
                             fmt::format("patchbench reproduce {} --explore --explain", slug));
    default:
      return report::closing("This run does not show that the fix holds.", cases);
  }
}

}  // namespace

std::string next_step(const Setup& setup, const QuestionContext& question, const Outcome& outcome) {
  const std::string slug = setup.manifest.slug.str(), mode = question.subject.mode();
  if (!outcome.sentinel) return of_nothing(question.question, slug);
  switch (*outcome.sentinel) {
    case Sentinel::kBugReproduced:
    case Sentinel::kBugAbsent:
      return of_bug(setup, question.subject, outcome.sentinel == Sentinel::kBugReproduced);
    case Sentinel::kFixValidated:
      return report::closing(
          "The fix holds: the release is wrong, the patched release is right, each mutant is red.",
          "patchbench bundle " + slug);
    case Sentinel::kFixRejected:
      return report::closing("The fix does not hold.", "patchbench patch show " + slug);
    case Sentinel::kEquivalenceShown:
    case Sentinel::kEquivalenceProved:
      return report::closing("The refactor changes no bit of an output.",
                             "patchbench bundle " + slug);
    case Sentinel::kMitigationVerified:
      return report::closing(
          fmt::format("The mitigation makes {} right.", release_of(setup)),
          fmt::format("PATCHBENCH_MITIGATE={}{} python -m patchbench_mitigations train.py", slug,
                      mode.empty() ? "" : ":" + mode));
    case Sentinel::kOpValidated:
      return report::closing("The op is right on every case, and each mutant is red.",
                             "patchbench status " + slug);
    case Sentinel::kClaimConfirmed:
      return report::closing("The claim holds, and the contrast shows that it could have failed.",
                             "patchbench status claims " + slug);
    case Sentinel::kClaimRefuted:
      return report::closing("The claim does not hold.", "patchbench status claims " + slug);
    case Sentinel::kMemorySaveVerified:
    case Sentinel::kNoRegression:
    case Sentinel::kNotRun:
      break;
  }
  return report::closing("The verdict is recorded.", "patchbench status " + slug);
}

std::string next_step_of_window(const Json& document) {
  const std::string slug = document.at("slug"), upstream = document.at("upstream");
  int num_open = 0, num_hit = 0;
  std::string newest_hit;
  for (const Json& release : document.at("releases")) {
    const BugState state(release.at("state").get<std::string>());
    num_open += state.is_open();
    num_hit += state == BugStatus::kPresent;
    newest_hit = state == BugStatus::kPresent ? release.at("version") : Json("");
  }
  const std::string sentence =
      fmt::format("{} of {} releases of {} {} the bug", num_hit, document.at("releases").size(),
                  upstream, num_hit == 1 ? "has" : "have");
  if (num_open > 0)
    return report::closing(
        fmt::format("{}; {} {} not judged.", sentence, num_open, num_open == 1 ? "was" : "were"),
        fmt::format("patchbench window {} --of {} --resume", slug, upstream));
  if (newest_hit.empty())
    return report::closing(sentence + "; the newest does not.", "patchbench status due " + slug);
  return report::closing(
      sentence + ", the newest too.",
      fmt::format("patchbench patch rebase {} --upstream {} --to {}", slug, upstream, newest_hit));
}

}  // namespace patchbench
