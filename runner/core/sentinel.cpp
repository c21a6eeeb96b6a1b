#include "core/sentinel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"

namespace patchbench {
namespace {

constexpr std::array kSentinelNames = {"BUG_REPRODUCED",
                                       "BUG_ABSENT",
                                       "FIX_VALIDATED",
                                       "FIX_REJECTED",
                                       "OP_VALIDATED",
                                       "MITIGATION_VERIFIED",
                                       "MEMORY_SAVE_VERIFIED",
                                       "EQUIVALENCE_SHOWN",
                                       "EQUIVALENCE_PROVED",
                                       "CLAIM_CONFIRMED",
                                       "CLAIM_REFUTED",
                                       "NO_REGRESSION",
                                       "NOT_RUN"};
constexpr std::array kVerdictNames = {"reproduced", "validated",   "unexpectedly_absent",
                                      "not_fixed",  "present",     "absent",
                                      "unjudged",   "unsupported", "unresolved"};
constexpr std::array kExpectationNames = {"present", "absent", "nothing"};

/// Repeats of one subject × case × seed, folded into one: equal ones become one, mixed ones
/// unresolved.
std::vector<Observation> fold_repeats(const std::vector<Observation>& observations,
                                      Question question) {
  std::map<std::tuple<std::string, std::string, uint64_t>, std::vector<const Observation*>> groups;
  for (const Observation& o : observations) {
    const bool is_asked = o.role == CaseRole::kSurvey ? question == Question::kClaim
                          : o.role == CaseRole::kCode ? question == Question::kEquivalence ||
                                                            question == Question::kValidate
                                                      : true;
    if (o.counts && is_asked) groups[{o.subject, o.case_name, o.seed}].push_back(&o);
  }
  std::vector<Observation> folded;
  for (const auto& [key, group] : groups) {
    Observation one = *group.front();
    const auto same = [&](const Observation* o) {
      return o->seen == one.seen && o->failure_class == one.failure_class;
    };
    const auto same_inputs = [&](const Observation* o) {
      return o->inputs_sha256 == one.inputs_sha256;
    };
    const auto same_outputs = [&](const Observation* o) {
      return o->outputs_sha256 == one.outputs_sha256;
    };
    if (question == Question::kEquivalence &&
        !std::all_of(group.begin(), group.end(), same_outputs)) {
      one.seen = Seen::kUnresolved;
      one.failure_class.clear();
      one.reason = "flaky: its repeats had different outputs";
    } else if (!std::all_of(group.begin(), group.end(), same_inputs)) {
      one.seen = Seen::kUnresolved;
      one.failure_class.clear();
      one.reason = "its repeats had different inputs";
    } else if (!std::all_of(group.begin(), group.end(), same)) {
      const auto present = std::count_if(group.begin(), group.end(), [](const Observation* o) {
        return o->seen == Seen::kPresent;
      });
      one.seen = Seen::kUnresolved;
      one.failure_class.clear();
      one.reason = fmt::format("flaky: present in {}/{} repeats", present, group.size());
    }
    folded.push_back(std::move(one));
  }
  return folded;
}

using Keys = std::set<std::pair<std::string, uint64_t>>;  // cases and seeds
Outcome none(std::string why) { return {std::nullopt, "", std::move(why), ""}; }

std::string named(const Observation& o) {
  return o.subject + " " + o.case_name + (o.reason.empty() ? "" : ": " + o.reason);
}

std::vector<Observation> of_subject(const std::vector<Observation>& all, std::string_view subject) {
  std::vector<Observation> chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
               [&](const Observation& o) { return o.subject == subject; });
  return chosen;
}

/// The one declared failure class that every present trigger shows. The class is the primary one if
/// any trigger shows it; an undeclared class is no class at all.
std::string class_shown(const std::vector<Observation>& observations,
                        const QuestionContext& context) {
  for (const std::string& name : context.classes) {
    for (const Observation& o : observations) {
      if (o.seen == Seen::kPresent && o.failure_class == name) return name;
    }
  }
  return "";
}

Outcome reproduced(const std::vector<Observation>& seen, const QuestionContext& context) {
  int present = 0, absent = 0, triggers = 0;
  for (const Observation& o : seen) {
    if (o.seen == Seen::kUnresolved) return none("unresolved: " + named(o));
    if (o.seen == Seen::kPresent && std::find(context.classes.begin(), context.classes.end(),
                                              o.failure_class) == context.classes.end()) {
      return none(fmt::format("{}: failure class '{}' is not declared", named(o), o.failure_class));
    }
  }
  const std::string shown = class_shown(seen, context);
  const bool is_primary = context.classes.empty() || shown == context.classes.front();
  for (const Observation& o : seen) {
    if (o.role == CaseRole::kTrigger) {
      ++triggers;
      present += o.seen == Seen::kPresent;
      absent += o.seen == Seen::kAbsent;
    } else if (o.seen == Seen::kPresent && (o.role == CaseRole::kControl || is_primary)) {
      return none(fmt::format("{} is red, which must be right everywhere", named(o)));
    } else if (o.role == CaseRole::kControl && o.seen != Seen::kAbsent) {
      return none(fmt::format("control {} is {}: {}", o.case_name, seen_name(o.seen), o.reason));
    }
  }
  const bool has_control = std::any_of(
      seen.begin(), seen.end(), [](const Observation& o) { return o.role == CaseRole::kControl; });
  if (triggers == 0) return none("no trigger case was run");
  if (!has_control)
    return none("no control case was run: a red trigger alone may be a broken set-up");
  if (present > 0) {
    Outcome outcome{Sentinel::kBugReproduced, shown,
                    fmt::format("{} of {} triggers present", present, triggers), ""};
    if (!is_primary) {
      outcome.alias = shown;
      std::transform(shown.begin(), shown.end(), outcome.alias.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    }
    return outcome;
  }
  if (absent == triggers) {
    std::string why = fmt::format("all {} triggers judged and absent", triggers);
    if (context.is_red_pin)
      why += "; this version was expected to be red: upstream moved, or the machine differs";
    return {Sentinel::kBugAbsent, "", why, ""};
  }
  return none(fmt::format("{} of {} triggers could not be judged", triggers - absent, triggers));
}

bool same_outputs(const Observation& one, const Observation& other) {
  return !one.outputs_sha256.empty() && one.outputs_sha256 == other.outputs_sha256;
}

/// What two subjects' outputs came to, case by case: how many are equal, and the first that is not.
struct Compared {
  int equal = 0;
  std::string differs, missing;
};

/// `subject` beside `upstream` on its cases of some roles.
Compared compared(const std::vector<Observation>& upstream, const std::vector<Observation>& subject,
                  const std::set<CaseRole>& roles) {
  std::map<std::pair<std::string, uint64_t>, const Observation*> others;
  for (const Observation& o : subject) others[{o.case_name, o.seed}] = &o;
  Compared result;
  for (const Observation& o : upstream) {
    if (!roles.contains(o.role) || o.seen == Seen::kUnsupported) continue;
    const auto at = others.find({o.case_name, o.seed});
    if (at == others.end() || o.outputs_sha256.empty() || at->second->outputs_sha256.empty()) {
      result.missing = o.case_name;
    } else if (same_outputs(o, *at->second)) {
      ++result.equal;
    } else if (result.differs.empty()) {
      result.differs = o.case_name;
    }
  }
  return result;
}

/// Whether every mutant subject is red on at least one judged trigger, or other than upstream on a
/// case of `roles`, where outputs are compared; "" or the reason why not.
std::string mutants_hold(const std::vector<Observation>& seen, std::string_view prefix,
                         const std::vector<Observation>& upstream = {},
                         const std::set<CaseRole>& roles = {}) {
  std::map<std::string, bool> red;
  for (const Observation& o : seen) {
    if (!o.subject.starts_with(prefix)) continue;
    if (is_region_mutant(o.subject)) continue;
    // A spoiling that changed nothing (a factor on values that are all 0) left the right answer: no
    // mutant on this case.
    const bool is_unchanged = o.subject.starts_with("op_mutant:") && o.seen == Seen::kUnresolved &&
                              o.reason.starts_with("corruption ");
    if (is_unchanged) continue;
    // A spoiled output that the judge turned away as no answer at all (a tensor missing, a wrong
    // shape) was caught too. Of an edit that is not known: it may have crashed for a reason of the
    // machine.
    const bool refused = o.subject.starts_with("op_mutant:") && o.seen == Seen::kUnresolved &&
                         !o.outputs_sha256.empty();
    red[o.subject] |= o.role == CaseRole::kTrigger && (o.seen == Seen::kPresent || refused);
    if (o.seen == Seen::kUnresolved && o.reason.starts_with("flaky")) return named(o);
  }
  if (red.empty()) return "no mutant was run: a check that cannot fail shows nothing";
  for (const auto& [subject, is_red] : red) {
    const bool is_other = !compared(upstream, of_subject(seen, subject), roles).differs.empty();
    if (!is_red && !is_other) return subject + " was not caught";
  }
  return "";
}

/// Whether every region mutant was caught: red on a case, or other than upstream on a case of
/// `roles`, where outputs are compared; "" or the first that was not.
std::string regions_hold(const std::vector<Observation>& seen, const QuestionContext& context,
                         const std::vector<Observation>& upstream = {},
                         const std::set<CaseRole>& roles = {}) {
  for (const Observation& o : seen) {
    if (!context.has_regions || !is_region_mutant(o.subject) || o.seen == Seen::kPresent) continue;
    const bool is_reached = o.seen != Seen::kUnsupported;
    if (is_reached && !compared(upstream, {o}, roles).differs.empty()) continue;
    if (is_reached || !context.is_partial)
      return fmt::format("{} was not caught: {}", o.subject,
                         is_reached ? "case " + o.case_name + " does not see it" : o.reason);
  }
  return "";
}

/// Green where it must be: `subject` on every case in `must`; "" or the first that is not.
struct GreenCheck {
  std::string red;         ///< a case that is present: a rejection
  std::string unanswered;  ///< a case that was not judged: no answer
};

GreenCheck green_on(const std::vector<Observation>& subject, const Keys& must) {
  Keys answered;
  GreenCheck check;
  for (const Observation& o : subject) {
    if (o.seen == Seen::kAbsent) answered.insert({o.case_name, o.seed});
    if (o.seen == Seen::kUnresolved && check.unanswered.empty()) check.unanswered = named(o);
    if (o.seen != Seen::kPresent || !check.red.empty()) continue;
    check.red = fmt::format("{} is red ({})", named(o), o.failure_class);
    const auto worst = std::find_if(o.measures.begin(), o.measures.end(),
                                    [](const Measure& m) { return !m.pass; });
    if (worst != o.measures.end())
      check.red += fmt::format(", {} {} error {:.3g} > {:.3g}", worst->tensor, worst->layer,
                               worst->got, worst->limit);
  }
  for (const auto& key : must) {
    if (!answered.contains(key) && check.unanswered.empty())
      check.unanswered = key.first + " was not judged green";
  }
  return check;
}

/// A comparison of two subjects says something only where both were given the same inputs: "" or
/// the first case, of any subject that runs upstream code, in which they differ.
std::string inputs_differ(const std::vector<Observation>& upstream,
                          const std::vector<Observation>& seen) {
  std::map<std::pair<std::string, uint64_t>, std::string> given;
  for (const Observation& o : upstream) given[{o.case_name, o.seed}] = o.inputs_sha256;
  for (const Observation& o : seen) {
    const bool is_compared =
        o.subject == "patched" || o.subject == "mitigated" || o.subject.starts_with("mutant:");
    const auto at = given.find({o.case_name, o.seed});
    if (!is_compared || at == given.end() || o.seen == Seen::kUnsupported) continue;
    if (o.inputs_sha256 != at->second)
      return o.subject + " " + o.case_name + ": its inputs are not those of upstream";
  }
  return "";
}

/// What is asked of an edit before anything else: upstream red, and `patched`, given the same
/// inputs, green on every case that upstream answered, but for triggers that it passed.
struct Edited {
  std::vector<Observation> upstream, patched;
  std::size_t num_green = 0;
  std::optional<Outcome> failed;  ///< the outcome where that does not hold
};

Edited edited(const std::vector<Observation>& seen, const QuestionContext& context) {
  Edited run = {of_subject(seen, "upstream"), of_subject(seen, "patched"), 0, std::nullopt};
  const Outcome red = reproduced(run.upstream, context);
  if (red.sentinel != Sentinel::kBugReproduced) {
    run.failed = none("unpatched upstream is not red here, so a green patch shows nothing (" +
                      red.why + ")");
    return run;
  }
  Keys must;
  for (const Observation& o : run.upstream) {
    const bool is_passed = o.seen == Seen::kAbsent && o.role != CaseRole::kTrigger;
    if (o.seen == Seen::kPresent || is_passed) must.insert({o.case_name, o.seed});
  }
  run.num_green = must.size();
  const GreenCheck green = green_on(run.patched, must);
  if (const std::string why = inputs_differ(run.upstream, seen); !why.empty())
    run.failed = none(why);
  else if (!green.red.empty())
    run.failed = Outcome{Sentinel::kFixRejected, "", green.red, ""};
  else if (!green.unanswered.empty())
    run.failed = none(green.unanswered);
  return run;
}

Outcome validated(const std::vector<Observation>& seen, const QuestionContext& context) {
  const Edited run = edited(seen, context);
  if (run.failed) return *run.failed;
  const Compared code = compared(run.upstream, run.patched, {CaseRole::kCode});
  if (!code.differs.empty() || !code.missing.empty()) {
    return none((code.differs.empty() ? code.missing : code.differs) +
                ": nothing shows that its code is upstream's");
  }
  if (const std::string why = mutants_hold(seen, "mutant:", run.upstream, {CaseRole::kCode});
      !why.empty())
    return none(why);
  if (const std::string why = regions_hold(seen, context); !why.empty()) return none(why);
  return {Sentinel::kFixValidated, "",
          fmt::format("{} cases green, every mutant red", run.num_green), ""};
}

Outcome equivalent(const std::vector<Observation>& seen, const QuestionContext& context) {
  const std::set<CaseRole> values = {CaseRole::kSilent, CaseRole::kControl};
  const Edited run = edited(seen, context);
  if (run.failed) return *run.failed;
  const Compared outputs = compared(run.upstream, run.patched, values);
  if (!outputs.differs.empty()) {
    return {Sentinel::kFixRejected, "",
            outputs.differs + ": its outputs differ from upstream's bit for bit", ""};
  }
  if (!outputs.missing.empty()) return none(outputs.missing + ": not compared");
  if (const std::string why = mutants_hold(seen, "mutant:", run.upstream, values); !why.empty())
    return none(why);
  if (const std::string why = regions_hold(seen, context, run.upstream, values); !why.empty())
    return none(why);
  const std::string shown =
      fmt::format("{} cases green, outputs of {} equal bit for bit, every mutant caught",
                  run.num_green, outputs.equal);
  const Compared code = compared(run.upstream, run.patched, {CaseRole::kCode});
  if (code.equal > 0 && code.differs.empty() && code.missing.empty()) {
    return {Sentinel::kEquivalenceProved, "",
            fmt::format("{}; the code of {} equal too", shown, code.equal), ""};
  }
  const std::string other = code.differs.empty() ? code.missing : code.differs;
  return {Sentinel::kEquivalenceShown, "",
          shown + (other.empty() ? "" : "; the code of " + other + " is not equal"), ""};
}

/// kOp and kMitigation: the subject green on every case it was given that is judged here, mutants
/// red (op only).
Outcome subject_green(const std::vector<Observation>& seen, const QuestionContext& context,
                      Sentinel sentinel) {
  Keys must, lacking;
  const std::vector<Observation> subject = of_subject(seen, context.subject);
  // What the release has not cannot be mitigated.
  for (const Observation& o : of_subject(seen, "upstream"))
    if (o.seen == Seen::kUnsupported) lacking.insert({o.case_name, o.seed});
  bool has_trigger = false;
  for (const Observation& o : subject) {
    const bool is_trigger = o.role == CaseRole::kTrigger;
    if (lacking.contains({o.case_name, o.seed})) continue;
    if (o.seen != Seen::kUnsupported || is_trigger) must.insert({o.case_name, o.seed});
    has_trigger |= is_trigger;
  }
  if (!has_trigger) return none("no trigger case was run");
  const GreenCheck green = green_on(subject, must);
  if (!green.red.empty()) return none(green.red);
  if (!green.unanswered.empty()) return none(green.unanswered);
  std::set<std::string> mended, left;
  if (sentinel == Sentinel::kOpValidated) {
    if (const std::string why = mutants_hold(seen, "op_mutant:"); !why.empty()) return none(why);
  } else {
    const std::vector<Observation> upstream = of_subject(seen, "upstream");
    const Outcome red = reproduced(upstream, context);
    if (red.sentinel != Sentinel::kBugReproduced)
      return none("unmitigated upstream is not red here (" + red.why + ")");
    if (const std::string why = inputs_differ(upstream, seen); !why.empty()) return none(why);
    for (const Observation& o : upstream) {
      if (o.role == CaseRole::kTrigger && o.seen == Seen::kPresent)
        (must.contains({o.case_name, o.seed}) ? mended : left).insert(o.case_name);
    }
    if (mended.empty()) return none("no trigger that is red on upstream was run");
  }
  if (const std::string why = regions_hold(seen, context); !why.empty()) return none(why);
  const std::string rest =
      fmt::format("{}{}", left.empty() ? "" : "; left: ", fmt::join(left, ", "));
  return {sentinel, "", fmt::format("{} cases green{}", must.size(), rest), ""};
}

Outcome memory_saved(const std::vector<Observation>& seen, const QuestionContext& context) {
  const Outcome green = subject_green(seen, context, Sentinel::kOpValidated);
  if (!green.sentinel) return green;
  if (context.bound_bytes <= 0 || context.measured_bytes <= 0)
    return none("no bound or no measured peak");
  const std::string figures = fmt::format("measured peak {:.0f} bytes, bound {:.0f} bytes",
                                          context.measured_bytes, context.bound_bytes);
  if (context.measured_bytes > context.bound_bytes)
    return none("the peak is over the bound: " + figures);
  if (context.bound_growth > 0 && context.measured_growth <= 0)
    return none("no measured peak at half the length");
  const std::string growth = fmt::format("{:.2f} times the peak at half the length, bound {:.2f}",
                                         context.measured_growth, context.bound_growth);
  if (context.measured_growth > context.bound_growth)
    return none("the peak grows over the bound: " + growth);
  return {Sentinel::kMemorySaveVerified, "",
          context.bound_growth > 0 ? figures + "; " + growth : figures, ""};
}

Outcome not_regressed(const std::vector<Observation>& seen, const QuestionContext& context) {
  const std::vector<Observation> upstream = of_subject(seen, "upstream");
  const std::vector<Observation> patched = of_subject(seen, "patched");
  if (const std::string why = inputs_differ(upstream, seen); !why.empty()) return none(why);
  Keys must;
  for (const Observation& o : upstream) {
    if (o.role != CaseRole::kTrigger && o.seen == Seen::kAbsent) must.insert({o.case_name, o.seed});
  }
  const GreenCheck green = green_on(patched, must);
  std::string figures, caught;
  for (const Observation& before : upstream) {
    const auto bounds = context.ratios_max.find(before.case_name);
    if (bounds == context.ratios_max.end()) continue;
    for (const auto& [name, ratio_max] : bounds->second) {
      const std::optional<double> base = before.number(name);
      const std::string what = before.case_name + " " + name;
      if (!base) return none(what + ": upstream reports no such number");
      std::optional<double> edited;
      for (const Observation& o : seen) {
        if (o.case_name != before.case_name || o.seed != before.seed) continue;
        if (o.subject == "patched") edited = o.number(name);
        if (o.subject.starts_with("mutant:") && o.number(name) > ratio_max * *base)
          caught = o.subject;
      }
      if (!edited) return none(what + ": patched reports no such number");
      const std::string figure = fmt::format("{} {:g}, upstream {:g}", what, *edited, *base);
      if (*edited > ratio_max * *base)
        return none(fmt::format("{}: over {:g} times", figure, ratio_max));
      figures += "; " + figure;
    }
  }
  if (!green.red.empty()) return none(green.red);
  if (!green.unanswered.empty()) return none(green.unanswered);
  if (must.empty() || figures.empty()) return none("no case that upstream does right has a bound");
  if (caught.empty())
    return none("no mutant went over a bound: a check that cannot fail shows nothing");
  return {Sentinel::kNoRegression, "",
          fmt::format("{} cases right{}; {} is over a bound", must.size(), figures, caught), ""};
}

/// Whether an observation is what the claim says, the opposite, or neither.
enum class Against { kAsClaimed, kOtherwise, kNoAnswer };
Against against(const Observation& o, const QuestionContext& context) {
  const bool is_present = o.seen == Seen::kPresent && o.failure_class == context.failure_class;
  if (!is_present && o.seen != Seen::kAbsent) return Against::kNoAnswer;
  return is_present == (context.expects == Seen::kPresent) ? Against::kAsClaimed
                                                           : Against::kOtherwise;
}

Outcome claimed(const std::vector<Observation>& seen, const QuestionContext& context) {
  std::map<std::pair<std::string, uint64_t>, const Observation*> contrast;
  for (const Observation& o : seen) {
    if (o.subject == context.contrast) contrast[{o.case_name, o.seed}] = &o;
  }
  int as_claimed = 0, otherwise = 0;
  const Observation* decided = nullptr;  // a case on which both answered, and differently
  for (const Observation& o : seen) {
    if (o.subject != context.subject) continue;
    const Against what = against(o, context);
    if (what == Against::kNoAnswer)
      return none(fmt::format("{} is {} {}", named(o), seen_name(o.seen), o.failure_class));
    (what == Against::kAsClaimed ? as_claimed : otherwise) += 1;
    const auto beside = contrast.find({o.case_name, o.seed});
    if (beside == contrast.end() || beside->second->inputs_sha256 != o.inputs_sha256)
      return none(
          fmt::format("{}: {} was not given the same inputs", o.case_name, context.contrast));
    const Against other = against(*beside->second, context);
    const bool differs = other != Against::kNoAnswer && other != what;
    // What refutes outweighs what agrees: one case that is otherwise is enough.
    if (differs && (decided == nullptr || what == Against::kOtherwise)) decided = &o;
    if (what == Against::kOtherwise && !differs)
      return none(fmt::format("{} is not as claimed on {}, but neither is {}", context.subject,
                              o.case_name, context.contrast));
  }
  if (as_claimed + otherwise == 0) return none("no case of the claim was run");
  const std::string figures =
      fmt::format("as claimed on {} of {} cases", as_claimed, as_claimed + otherwise);
  if (otherwise > 0)
    return {Sentinel::kClaimRefuted, context.expects == Seen::kAbsent ? context.failure_class : "",
            fmt::format("{}; {} is otherwise, {} is as claimed", figures, named(*decided),
                        context.contrast),
            ""};
  if (decided == nullptr)
    return none(
        fmt::format("{} comes out as {} does on every case", context.contrast, context.subject));
  return {Sentinel::kClaimConfirmed, "",
          fmt::format("{}; {} shows the opposite", figures, context.contrast), ""};
}

}  // namespace

std::string expectation_name(Expectation e) {
  return kExpectationNames.at(static_cast<std::size_t>(e));
}
std::string verdict_name(Verdict v) { return kVerdictNames.at(static_cast<std::size_t>(v)); }
std::string sentinel_name(Sentinel s) { return kSentinelNames.at(static_cast<std::size_t>(s)); }

Verdict verdict_of(Seen seen, Expectation expectation) {
  switch (seen) {
    case Seen::kUnjudged:
      return Verdict::kUnjudged;
    case Seen::kUnsupported:
      return Verdict::kUnsupported;
    case Seen::kUnresolved:
      return Verdict::kUnresolved;
    case Seen::kPresent:
      return expectation == Expectation::kPresent  ? Verdict::kReproduced
             : expectation == Expectation::kAbsent ? Verdict::kNotFixed
                                                   : Verdict::kSeenPresent;
    case Seen::kAbsent:
      return expectation == Expectation::kPresent  ? Verdict::kUnexpectedlyAbsent
             : expectation == Expectation::kAbsent ? Verdict::kValidated
                                                   : Verdict::kSeenAbsent;
  }
  throw Error(ErrorCode::kInternal, "an observation outside its enum");
}

Expectation expectation_of(const Observation& o, const QuestionContext& context) {
  const bool is_trigger = o.role == CaseRole::kTrigger;
  if (o.role == CaseRole::kSurvey || o.role == CaseRole::kCode) return Expectation::kNothing;
  if (o.role == CaseRole::kControl) return Expectation::kAbsent;
  if (o.subject == "model") return is_trigger ? Expectation::kPresent : Expectation::kAbsent;
  if (o.subject == "upstream") {
    if (!context.is_red_pin) return Expectation::kNothing;
    return is_trigger ? Expectation::kPresent : Expectation::kAbsent;
  }
  if (is_mutant(o.subject)) return Expectation::kNothing;
  return Expectation::kAbsent;
}

std::string Outcome::text() const {
  if (!sentinel) return "NONE";
  if (*sentinel == Sentinel::kNotRun) return "NOT_RUN:" + argument;
  return sentinel_name(*sentinel) + (argument.empty() ? "" : "(" + argument + ")");
}

namespace {

Outcome outcome_of_all(const std::vector<Observation>& seen, const QuestionContext& context) {
  switch (context.question) {
    case Question::kReproduce:
      return reproduced(of_subject(seen, context.subject), context);
    case Question::kValidate:
      return validated(seen, context);
    case Question::kOp:
      return subject_green(seen, context, Sentinel::kOpValidated);
    case Question::kMitigation:
      return subject_green(seen, context, Sentinel::kMitigationVerified);
    case Question::kMemory:
      return memory_saved(seen, context);
    case Question::kClaim:
      return claimed(seen, context);
    case Question::kEquivalence:
      return equivalent(seen, context);
    case Question::kRegression:
      return not_regressed(seen, context);
  }
  throw Error(ErrorCode::kInternal, "a question outside its enum");
}

}  // namespace

bool is_of_all_cases(Sentinel sentinel) {
  return sentinel == Sentinel::kFixValidated || sentinel == Sentinel::kOpValidated ||
         sentinel == Sentinel::kMitigationVerified || sentinel == Sentinel::kEquivalenceShown ||
         sentinel == Sentinel::kEquivalenceProved;
}

Outcome sentinel_of(const std::vector<Observation>& observations, const QuestionContext& context) {
  Outcome outcome = outcome_of_all(fold_repeats(observations, context.question), context);
  if (context.is_partial && outcome.sentinel && is_of_all_cases(*outcome.sentinel))
    outcome.argument = "named_cases";
  return outcome;
}

}  // namespace patchbench
