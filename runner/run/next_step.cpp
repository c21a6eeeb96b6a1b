#include "run/next_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/pin_arguments.h"
#include "core/verdict_index.h"
#include "report/table.h"

namespace patchbench {
namespace {

/// "liger-kernel 0.8.0", or the package of an environment.
std::string release_of(const Setup& setup) {
  return setup.target.upstream.name +
         (setup.target.pin ? " " + setup.target.pin->version : ", as installed,");
}

/// "patchbench validate SLUG" on the release of this run.
std::string validate_command(const Setup& setup) {
  std::string command = "patchbench validate " + setup.target.manifest.slug.str();
  const UpstreamUse& upstream = setup.target.upstream;
  if (upstream.name != setup.target.manifest.upstreams.front().name ||
      setup.target.pin->version != upstream.red_pin)
    command += " " + pin_word(upstream.name, setup.target.pin->version);
  return command;
}

std::string of_bug(const Setup& setup, const Subject& subject, bool is_there) {
  const bool is_release = subject == SubjectKind::kUpstream;
  const std::string who = is_release ? release_of(setup) : "The subject " + subject.text();
  const bool has_fix = setup.target.pin && !setup.target.manifest.waived(Column::kPatches);
  return report::closing(
      who + (is_there ? " has the bug." : " is right on every case of this run."),
      has_fix && (is_there || !is_release)
          ? validate_command(setup)
          : "patchbench status windows " + setup.target.manifest.slug.str());
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
  const std::string slug = setup.target.manifest.slug.str(), mode = question.subject.mode();
  if (!outcome.sentinel) return of_nothing(question.question, slug);
  switch (*outcome.sentinel) {
    case Sentinel::kBugReproduced:
    case Sentinel::kBugAbsent:
      return of_bug(setup, question.subject, outcome.sentinel == Sentinel::kBugReproduced);
    case Sentinel::kFixValidated:
      return report::closing(question.is_partial
                                 ? "The fix holds on the named cases."
                                 : "The fix holds: the release is wrong, the patched release is "
                                   "right, each mutant is red.",
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
        fmt::format("patchbench window {} {} --resume", slug, upstream));
  if (newest_hit.empty())
    return report::closing(sentence + "; the newest does not.", "patchbench status due " + slug);
  return report::closing(
      sentence + ", the newest too.",
      fmt::format("patchbench patch rebase {} {}", slug, pin_word(upstream, newest_hit)));
}

namespace {

/// What an edit comes to on the newest version, the worst first.
enum class Carried { kStale, kStuck, kUnknown, kLanded, kYes };

Carried carried(const std::string& state) {
  if (state == "conflict" || state == "file_gone" || state == "missing_file")
    return Carried::kStuck;
  if (state == "not_run") return Carried::kUnknown;
  return state == "landed" ? Carried::kLanded : Carried::kYes;
}

Carried carried(const Json& edit) {
  for (const Json& release : edit.at("releases")) {
    const std::string state = release.at("state");
    if (release.at("version") == edit.at("base") && state != "applies" && state != "not_run")
      return Carried::kStale;
  }
  return carried(edit.at("releases").back().at("state").get<std::string>());
}

std::string on_release(const Json& of, const std::string& version) {
  return fmt::format("{} {}", of.at("slug").get<std::string>(),
                     pin_word(of.at("upstream").get<std::string>(), version));
}

}  // namespace

std::string next_step_of_check(const Json& edits) {
  if (edits.empty()) return "";
  std::map<Carried, std::vector<Json>> found;
  for (const Json& edit : edits) found[carried(edit)].push_back(edit);
  const auto& [worst, list] = *found.begin();
  const Json& first = list.front();
  const std::string slug = first.at("slug"), upstream = first.at("upstream"),
                    newest = first.at("releases").back().at("version"),
                    num = fmt::format("{} of {}.", list.size(), edits.size());
  switch (worst) {
    case Carried::kStale:
      return report::closing("Edits that do not apply to the release they were written for: " + num,
                             fmt::format("patchbench patch new {} {} DIR", slug, upstream));
    case Carried::kStuck:
      return report::closing(
          "Edits that cannot be carried to the newest version: " + num,
          fmt::format("patchbench patch rebase {} {}", slug, pin_word(upstream, newest)));
    case Carried::kUnknown:
      return report::closing("Edits that were not tried, since a version is out of reach: " + num,
                             "patchbench env doctor");
    case Carried::kLanded:
      return report::closing("Edits whose change the newest version has already: " + num,
                             "patchbench status due " + slug);
    case Carried::kYes:
      break;
  }
  return report::closing("Every edit applies to the newest version, or a merge carries it there.",
                         "patchbench validate " + on_release(first, newest));
}

std::string next_step_of_rebase(const Json& document) {
  const Json& rows = document.at("rows");
  const auto num = std::count_if(rows.begin(), rows.end(), [](const Json& row) {
    return carried(row.at("state").get<std::string>()) != Carried::kStuck;
  });
  const std::string slug = document.at("slug"), version = rows.back().at("version"),
                    where = document.at("upstream").get<std::string>() + " " + version;
  const std::string all =
      rows.size() == 1 ? "" : fmt::format("The edits reach {} of {} releases. ", num, rows.size());
  switch (carried(rows.back().at("state").get<std::string>())) {
    case Carried::kYes:
      return report::closing(all + "The edits are carried to " + where + ".",
                             "patchbench validate " + on_release(document, version));
    case Carried::kLanded:
      return report::closing(all + where + " has the change already.",
                             "patchbench status due " + slug);
    default:
      return report::closing(all + "The edits cannot be carried to " + where + ".",
                             "patchbench reproduce " + on_release(document, version));
  }
}

std::string next_step_of_together(const Json& groups) {
  std::size_t num = 0;
  for (const Json& group : groups) num += group.at("clashes").size();
  return report::closing(
      num == 0 ? "No two packs conflict." : fmt::format("Pairs of packs that conflict: {}.", num),
      num == 0 ? "patchbench patch check --all" : "patchbench patch check --all --sides");
}

std::string next_step_of_sweep(const Json& sweep) {
  const std::size_t num = sweep.at("cells").size(), done = sweep.at("counts").at("done");
  if (done < num)
    return report::closing(
        fmt::format("{} of {} cells have a result{}.", done, num,
                    sweep.at("is_cancelled").get<bool>() ? ", and the sweep is cancelled" : ""),
        "patchbench sweep status --dir " + sweep.at("dir").get<std::string>());
  int present = 0, absent = 0, open = 0;
  for (const Json& cell : sweep.at("cells")) {
    const BugState state = state_of(Outcome::from_text(cell.at("sentinel")));
    present += state == BugStatus::kPresent;
    absent += state == BugStatus::kAbsent;
    open += state.is_open();
  }
  return report::closing(
      fmt::format("Every cell has a result: the bug in {}, no bug in {}, no answer in {}.", present,
                  absent, open),
      "patchbench status windows");
}

}  // namespace patchbench
