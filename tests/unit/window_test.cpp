#include "core/window.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

/// Releases "1", "2", … in the given states.
std::vector<ReleaseState> releases(const std::vector<std::string>& states) {
  std::vector<ReleaseState> out;
  for (const std::string& state : states)
    out.push_back({std::to_string(out.size() + 1), state, ""});
  return out;
}

/// "class first-last after G before G2", with "gap" where there is one.
std::string text(const Interval& i) {
  const auto or_none = [](const std::string& version) {
    return version.empty() ? std::string("none") : version;
  };
  return i.failure_class + " " + i.first_bad + "-" + i.last_bad + " after " +
         or_none(i.last_good_before) + " before " + or_none(i.first_good_after) +
         (i.has_gap ? " gap" : "");
}

std::vector<std::string> windows(const std::vector<std::string>& states) {
  std::vector<std::string> out;
  for (const Interval& i : intervals_of(releases(states))) out.push_back(text(i));
  return out;
}

using Texts = std::vector<std::string>;

TEST(Window, NothingMeasuredOrAllGoodIsNoInterval) {
  EXPECT_EQ(windows({}), Texts{});
  EXPECT_EQ(windows({"absent", "absent"}), Texts{});
  EXPECT_EQ(windows({"not_measured", "unresolved", "unsupported"}), Texts{});
}

TEST(Window, OneRunHasItsGoodNeighbours) {
  EXPECT_EQ(windows({"absent", "wrong", "wrong", "absent"}), Texts{"wrong 2-3 after 1 before 4"});
}

TEST(Window, AHistoryThatGoesBadTwiceIsTwoIntervals) {
  EXPECT_EQ(windows({"absent", "wrong", "absent", "wrong", "wrong", "absent"}),
            (Texts{"wrong 2-2 after 1 before 3", "wrong 4-5 after 3 before 6"}));
}

TEST(Window, AdjacentFailureClassesAreIntervalsOfTheirOwn) {
  EXPECT_EQ(windows({"absent", "ignored", "ignored", "wrong", "absent"}),
            (Texts{"ignored 2-3 after 1 before 5", "wrong 4-4 after 1 before 5"}));
  EXPECT_EQ(windows({"wrong", "ignored", "wrong"}),
            (Texts{"wrong 1-1 after none before none", "ignored 2-2 after none before none",
                   "wrong 3-3 after none before none"}));
}

TEST(Window, AGapInsideJoinsButIsSaid) {
  EXPECT_EQ(windows({"absent", "wrong", "not_measured", "wrong", "absent"}),
            Texts{"wrong 2-4 after 1 before 5 gap"});
  EXPECT_EQ(windows({"absent", "wrong", "unresolved", "wrong", "absent"}),
            Texts{"wrong 2-4 after 1 before 5 gap"});
}

TEST(Window, AGapAtAnEdgeLeavesTheEdgeUncertain) {
  EXPECT_EQ(windows({"absent", "not_measured", "wrong", "absent"}),
            Texts{"wrong 3-3 after 1 before 4 gap"});
  EXPECT_EQ(windows({"absent", "wrong", "unresolved", "absent"}),
            Texts{"wrong 2-2 after 1 before 4 gap"});
  EXPECT_EQ(windows({"absent", "wrong", "not_measured", "ignored"}),
            (Texts{"wrong 2-2 after 1 before none gap", "ignored 4-4 after 1 before none gap"}));
}

TEST(Window, UnmeasuredEndsAreOpen) {
  EXPECT_EQ(windows({"not_measured", "wrong", "not_measured"}),
            Texts{"wrong 2-2 after none before none gap"});
  EXPECT_EQ(windows({"wrong", "wrong"}), Texts{"wrong 1-2 after none before none"});
}

TEST(Window, AGapBeyondAMeasuredNeighbourDoesNotMatter) {
  EXPECT_EQ(windows({"not_measured", "absent", "wrong", "absent", "not_measured"}),
            Texts{"wrong 3-3 after 2 before 4"});
}

TEST(Window, AnUnsupportedReleaseEndsARunAndIsNotGood) {
  EXPECT_EQ(windows({"unsupported", "wrong", "unsupported", "wrong", "absent"}),
            (Texts{"wrong 2-2 after none before 5", "wrong 4-4 after none before 5"}));
}

Observation trigger(const std::string& name, CaseStatus status,
                    const std::string& failure_class = "") {
  Observation o;
  o.subject = SubjectKind::kUpstream;
  o.case_name = name;
  o.role = CaseRole::kTrigger;
  o.status = status;
  o.failure_class = failure_class;
  return o;
}

/// The states of the releases "1", "2", ... in one class, by what was seen of their cases.
Texts in_class(const std::string& failure_class, const std::vector<std::string>& states,
               const std::vector<std::vector<Observation>>& status) {
  std::map<std::string, std::vector<Observation>> by_version;
  for (const auto& observations : status)
    by_version[std::to_string(by_version.size() + 1)] = observations;
  Texts out;
  for (const ReleaseState& release : states_in_class(failure_class, releases(states), by_version))
    out.push_back(release.state.text());
  return out;
}

TEST(WindowOfAClass, SeesAReleaseInSeveralClassesInEachOfThem) {
  const std::vector<std::vector<Observation>> status = {
      {trigger("rows", CaseStatus::kPresent, "first"),
       trigger("mean", CaseStatus::kPresent, "second")},
      {trigger("rows", CaseStatus::kAbsent), trigger("mean", CaseStatus::kPresent, "second")},
      {trigger("rows", CaseStatus::kAbsent), trigger("mean", CaseStatus::kAbsent)}};
  const std::vector<std::string> states = {"first", "second", "absent"};
  EXPECT_EQ(in_class("first", states, status), (Texts{"first", "absent", "absent"}));
  EXPECT_EQ(in_class("second", states, status), (Texts{"second", "second", "absent"}));
  EXPECT_EQ(in_class("third", states, status), (Texts{"absent", "absent", "absent"}));
}

TEST(WindowOfAClass, IsSilentWhereTheReleaseHasNoAnswer) {
  const std::vector<std::vector<Observation>> status = {
      {trigger("rows", CaseStatus::kPresent, "first"), trigger("mean", CaseStatus::kUnsupported)},
      {trigger("rows", CaseStatus::kPresent, "first"),
       trigger("mean", CaseStatus::kPresent, "second")},
      {trigger("rows", CaseStatus::kAbsent), trigger("mean", CaseStatus::kPresent, "second")}};
  EXPECT_EQ(in_class("second", {"first", "first", "not_measured"}, status),
            (Texts{"unsupported", "second", "not_measured"}));
}

TEST(WindowOfAClass, CountsWhatCountsAlone) {
  Observation survey = trigger("rows", CaseStatus::kPresent, "first");
  survey.role = CaseRole::kSurvey;
  Observation shown = trigger("rows", CaseStatus::kPresent, "first");
  shown.counts = false;
  Observation mutant = trigger("rows", CaseStatus::kPresent, "first");
  mutant.subject = "mutant:half";
  EXPECT_EQ(in_class("first", {"absent"}, {{survey, shown, mutant}}), Texts{"absent"});
}

TEST(GainedArguments, AreThoseOfAFunctionThatTheReleaseBeforeHad) {
  const auto release = [](const std::string& version, const std::set<std::string>& arguments) {
    return ReleaseState{version, BugStatus::kAbsent, "", arguments};
  };
  const auto gained = gained_arguments({release("1", {"f(x)"}), release("2", {}),
                                        release("3", {"f(x)", "f(scale)", "g(y)"}),
                                        release("4", {"g(y)", "g(z)"}), release("5", {"g(y)"})});
  const std::map<std::string, std::vector<std::string>> wanted = {{"3", {"f(scale)"}},
                                                                  {"4", {"g(z)"}}};
  EXPECT_EQ(gained, wanted);
}

}  // namespace
}  // namespace patchbench
