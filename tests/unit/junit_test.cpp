#include "report/junit.h"

#include <gtest/gtest.h>

#include "report/markdown.h"
#include "unit/sample_run.h"

namespace patchbench::report {
namespace {

int count(const std::string& text, const std::string& part) {
  int num_found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++num_found;
  return num_found;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

QuestionContext context_of(Question question, bool is_red_pin) {
  QuestionContext context = sample::question();
  context.question = question;
  context.is_red_pin = is_red_pin;
  return context;
}

TEST(JunitXml, TellsSkippedFailureAndErrorApart) {
  const std::string xml = junit_xml("suite", {{.group = "g", .name = "good", .seconds = 1.25},
                                              {.group = "g",
                                               .name = "bad",
                                               .status = JunitStatus::kFailed,
                                               .verdict = "not_fixed",
                                               .reason = "why"},
                                              {.group = "g",
                                               .name = "gone",
                                               .status = JunitStatus::kError,
                                               .verdict = "unresolved",
                                               .reason = "killed"},
                                              {.group = "g",
                                               .name = "not here",
                                               .status = JunitStatus::kSkipped,
                                               .verdict = "unsupported",
                                               .reason = "no GPU"}});
  EXPECT_TRUE(has(xml,
                  "<testsuite name=\"suite\" tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\" "
                  "time=\"1.250\">"));
  EXPECT_TRUE(has(xml, "<failure type=\"not_fixed\" message=\"why\"/>"));
  EXPECT_TRUE(has(xml, "<error type=\"unresolved\" message=\"killed\"/>"));
  EXPECT_TRUE(has(xml, "<skipped message=\"unsupported: no GPU\"/>"));
  EXPECT_EQ(count(xml, "<testcase "), 4);
  EXPECT_EQ(count(xml, "</testcase>"), 4);
}

TEST(JunitXml, EscapesAndDropsWhatXmlCannotHold) {
  const std::string xml =
      junit_xml("s", {{.group = "g",
                       .name = "a<b>&\"c\"",
                       .status = JunitStatus::kFailed,
                       .verdict = "v",
                       .reason = "\x1b[31m\x01ü\xff\xc3(\xed\xa0\x80\xef\xbf\xbf\n]]>",
                       .properties = {{"k<", "v&"}}}});
  EXPECT_TRUE(has(xml, "name=\"a&lt;b&gt;&amp;&quot;c&quot;\"")) << xml;
  EXPECT_TRUE(has(xml, "message=\"[31mü( ]]&gt;\"")) << xml;
  EXPECT_TRUE(has(xml, "<property name=\"k&lt;\" value=\"v&amp;\"/>")) << xml;
}

TEST(JunitStatus, FollowsTheVerdict) {
  using sample::observation;
  const QuestionContext red = context_of(Question::kValidate, true),
                        other = context_of(Question::kReproduce, false);
  const auto trigger = CaseRole::kTrigger, control = CaseRole::kControl;
  const std::vector<std::tuple<Observation, QuestionContext, JunitStatus>> cases = {
      {observation("upstream", "c", trigger, CaseStatus::kPresent), red, JunitStatus::kPassed},
      {observation("upstream", "c", trigger, CaseStatus::kAbsent), red, JunitStatus::kFailed},
      {observation("upstream", "c", control, CaseStatus::kPresent), red, JunitStatus::kFailed},
      {observation("upstream", "c", trigger, CaseStatus::kPresent), other, JunitStatus::kFailed},
      {observation("upstream", "c", trigger, CaseStatus::kAbsent), other, JunitStatus::kPassed},
      {observation("patched", "c", trigger, CaseStatus::kAbsent), red, JunitStatus::kPassed},
      {observation("patched", "c", trigger, CaseStatus::kPresent), red, JunitStatus::kFailed},
      {observation("mutant:first_row", "c", trigger, CaseStatus::kPresent), red,
       JunitStatus::kPassed},
      {observation("mutant:first_row", "c", trigger, CaseStatus::kAbsent), red,
       JunitStatus::kSkipped},
      {observation("patched", "c", trigger, CaseStatus::kUnjudged), red, JunitStatus::kSkipped},
      {observation("patched", "c", trigger, CaseStatus::kUnsupported), red, JunitStatus::kSkipped},
      {observation("patched", "c", trigger, CaseStatus::kUnresolved), red, JunitStatus::kError}};
  for (const auto& [observation, question, status] : cases) {
    EXPECT_EQ(junit_status(observation, question), status)
        << observation.subject.text() << " " << case_status_name(observation.status) << " "
        << role_name(observation.role);
  }
}

TEST(JunitOfRun, HasACasePerObservationAndOneForTheSentinel) {
  const auto status = sample::red_observations();
  const QuestionContext question = sample::question();
  const std::string digest = sha256_hex("verdict");
  const std::string xml =
      junit_of_run("liger_flce_none_bwd", status, question, sentinel_of(status, question), digest);
  EXPECT_TRUE(has(xml, "tests=\"3\" failures=\"0\" errors=\"0\" skipped=\"0\""));
  EXPECT_TRUE(
      has(xml, "classname=\"liger_flce_none_bwd.upstream\" name=\"masked_fp32\" time=\"3.250\""));
  EXPECT_TRUE(has(xml, "<property name=\"sentinel\" value=\"BUG_REPRODUCED(wrong_gradients)\"/>"));
  EXPECT_TRUE(has(xml, "<property name=\"ledger\" value=\"" + digest + "\"/>"));
}

TEST(JunitOfRun, NoSentinelIsAnErrorAndNotRunIsSkipped) {
  const QuestionContext question = sample::question();
  EXPECT_TRUE(
      has(junit_of_run("p", {}, question, {std::nullopt, "", "no trigger case was run", ""}, ""),
          "<error type=\"NONE\""));
  EXPECT_TRUE(has(junit_of_run("p", {}, question, {Sentinel::kNotRun, "no_gpu", "", ""}, ""),
                  "<skipped message=\"NOT_RUN:no_gpu\""));
  EXPECT_TRUE(has(junit_of_run("p", {}, question, {Sentinel::kFixRejected, "", "red", ""}, ""),
                  "<failure type=\"FIX_REJECTED\""));
  EXPECT_TRUE(has(junit_of_run("p", {}, question, {Sentinel::kBugAbsent, "", "moved", ""}, ""),
                  "<failure type=\"BUG_ABSENT\""));
}

TEST(Markdown, ThePageNamesEverythingThatWasRun) {
  const auto status = sample::red_observations();
  const QuestionContext question = sample::question();
  const RunContext context = sample::context();
  const std::string digest = sha256_hex("verdict");
  const std::string page = markdown_of_run({{"upstream", context}}, status, question,
                                           sentinel_of(status, question), digest);
  for (const std::string& part :
       {std::string("BUG_REPRODUCED(wrong_gradients)"), std::string("0.8.0"), context.tree,
        context.manifest_sha256, context.environment, std::string("liger_kernel/ops/utils.py"),
        sha256_hex("file 2"), std::string("podman"), std::string("Debian GNU/Linux 12"),
        std::string("3.14e-01"), std::string("1.23e-07"), std::string("2.47e-07"),
        std::string(
            "./patchbench reproduce liger_flce_none_bwd liger-kernel@0.8.0 --device cpu --seed 1"),
        digest}) {
    EXPECT_TRUE(has(page, part)) << part;
  }
  EXPECT_FALSE(has(page, "unisolated"));
}

TEST(Markdown, ThePatchedSubjectIsShownWithItsEditAndItsFiles) {
  RunContext patched = sample::context();
  patched.edits = {sha256_hex("the edit")};
  patched.tree = std::string(40, '7');
  const std::string page =
      markdown_of_run({{"upstream", sample::context()}, {"patched", patched}},
                      sample::red_observations(), context_of(Question::kValidate, true), {}, "");
  EXPECT_TRUE(has(page, "| `patched` edit | `sha256:" + sha256_hex("the edit") + "` |")) << page;
  EXPECT_TRUE(has(page, "| `patched` checkout | `git tree " + patched.tree + "` |"));
  EXPECT_TRUE(has(page, "| `upstream` checkout | `git tree " + sample::context().tree + "` |"));
}

TEST(Markdown, ARunWithoutASandboxIsMarked) {
  RunContext context = sample::context();
  context.sandbox = {"process", false};
  const auto status = sample::red_observations();
  EXPECT_TRUE(has(markdown_of_run({{"upstream", context}}, status, sample::question(),
                                  sentinel_of(status, sample::question()), ""),
                  "unisolated"));
}

TEST(Markdown, EveryTableRowHasTheColumnsOfItsHeader) {
  auto status = sample::red_observations();
  status.push_back(
      sample::observation("patched", "odd", CaseRole::kTrigger, CaseStatus::kUnresolved));
  status.back().reason = "a | b `c` <script> @everyone\n## heading";
  const std::string page =
      markdown_of_run({{"upstream", sample::context()}}, status, sample::question(), {}, "");
  EXPECT_TRUE(has(page, "`a \\| b 'c' <script> @everyone ## heading`")) << page;
  std::size_t start = page.find("| subject");
  const auto columns = [&](std::size_t at) {
    int bars = 0;
    for (; page[at] != '\n'; ++at) bars += page[at] == '|' && page[at - 1] != '\\';
    return bars;
  };
  const int expected = columns(start);
  for (int row = 0; row < 5; ++row) {
    EXPECT_EQ(columns(start), expected);
    start = page.find('\n', start) + 1;
  }
}

TEST(Markdown, AValidationIsRunAgainByValidate) {
  QuestionContext question = context_of(Question::kValidate, true);
  question.subject = "patched";
  const std::string page =
      markdown_of_run({{"upstream", sample::context()}}, sample::red_observations(), question,
                      {Sentinel::kFixRejected, "", "red", ""}, "");
  EXPECT_TRUE(has(page, "./patchbench validate liger_flce_none_bwd liger-kernel@0.8.0")) << page;
  EXPECT_FALSE(has(page, "--subject"));
}

}  // namespace
}  // namespace patchbench::report
