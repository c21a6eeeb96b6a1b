#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>

#include "core/error.h"
#include "harness/request.h"
#include "harness/subject_process.h"
#include "harness/subject_report.h"
#include "harness/tensor_file.h"
#include "harness/toy_pack.h"

namespace patchbench::harness::testing {
namespace {

TEST(Draw, IsAFunctionOfSeedNameAndIndexAlone) {
  const at::Tensor all = Draw(7, "a").uniform({4, 5}, -1, 1);
  EXPECT_TRUE(all.flatten().slice(0, 0, 3).equal(Draw(7, "a").uniform({3}, -1, 1)));
  EXPECT_FALSE(all.equal(Draw(8, "a").uniform({4, 5}, -1, 1)));
  EXPECT_FALSE(all.equal(Draw(7, "b").uniform({4, 5}, -1, 1)));
}

TEST(Draw, GivesTheSameNumbersOnEveryMachine) {
  const Draw draw(1, "golden");
  EXPECT_EQ(draw.bits(0), 0xda89ead6ca7c0d13ULL);
  EXPECT_EQ(draw.bits(1), 0x2f44225f72fccacfULL);
  EXPECT_EQ(draw.normal({1}).item<double>(), 0x1.0ae21dba00000p+0);
}

TEST(Draw, HasTheMomentsItClaims) {
  const at::Tensor normal = Draw(3, "n").normal({100000});
  EXPECT_NEAR(normal.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(normal.var().item<double>(), 1, 0.02);
  const at::Tensor uniform = Draw(3, "u").uniform({100000}, 2, 4);
  EXPECT_NEAR(uniform.mean().item<double>(), 3, 0.02);
  EXPECT_GE(uniform.min().item<double>(), 2);
  EXPECT_LT(uniform.max().item<double>(), 4);
  EXPECT_NEAR(Draw(3, "m").mask({100000}, 0.25).to(at::kDouble).mean().item<double>(), 0.25, 0.01);
  const at::Tensor integers = Draw(3, "i").integers({10000}, -2, 3);
  EXPECT_EQ(integers.min().item<int64_t>(), -2);
  EXPECT_EQ(integers.max().item<int64_t>(), 2);
}

TEST(Draw, TiesTakeFewValues) {
  const auto [values, inverse, counts] = at::_unique2(Draw(3, "t").tied({1000}, 5));
  EXPECT_TRUE(values.allclose(at::tensor({-1.0, -0.5, 0.0, 0.5, 1.0}, at::kDouble)));
}

TEST(ViewOn, KeepsStrideZeroAndOffset) {
  const at::Tensor base = at::arange(12, at::kFloat);
  const at::Tensor expanded = base.slice(0, 3, 4).expand({5});
  const at::Tensor moved = view_on(expanded, at::kCPU);
  EXPECT_EQ(moved.strides(), expanded.strides());
  EXPECT_EQ(moved.storage_offset(), 3);
  EXPECT_TRUE(moved.equal(expanded));
  EXPECT_NE(moved.data_ptr(), expanded.data_ptr());
}

TEST(Request, EveryWrongWordIsOneUsageError) {
  const ScratchFolder folder;
  const std::string cases =
      folder.write("c.json", R"({"slug":"toy_pack","classes":[],"cases":[]})");
  const std::vector<std::vector<std::string>> wrong = {
      {"--subjct", "op"},
      {"--cases"},
      {"--seed", "x"},
      {"--repeat", "0"},
      {"--seed", "1", "--seed", "2"},
      {"--cases", cases},
      {"--cases", cases, "--subject", "op", "--device", "gpu", "--seed", "1", "--work", "w",
       "--records-fd", "1"},
      {"--cases", cases, "--subject", "op", "--device", "cpu", "--seed", "1", "--work", "w",
       "--records-fd", "1"}};
  for (const auto& words : wrong) {
    try {
      parse_request(words);
      ADD_FAILURE() << words.front();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(Request, RefusesUnknownKeysAndDuplicateCases) {
  const ScratchFolder folder;
  Request request;
  Json twice = {
      {"slug", "toy_pack"}, {"classes", {"zeroed"}}, {"cases", toy_cases({"one", "one"})}};
  EXPECT_THROW(read_cases(folder.write("c.json", twice.dump()), request), Error);
  Json unknown = {{"slug", "toy_pack"}, {"classes", {"zeroed"}}, {"cases", toy_cases({"one"})}};
  unknown["cases"][0]["colour"] = "red";
  EXPECT_THROW(read_cases(folder.write("d.json", unknown.dump()), request), Error);
}

std::string report_with(const std::string& entry) {
  return R"({"package":{"name":"p","version":"1"},"versions":{},"device":"d","cases":{"one":)" +
         entry + "}}";
}

TEST(SubjectReport, TakesWhatTheContractAllows) {
  const SubjectReport report = parse_subject_report(
      report_with(R"({"status":"ok","wall_s":0.5,"peak_bytes":12,"numbers":{"n":3}})"), {"one"});
  EXPECT_EQ(report.cases.at("one").status, "ok");
  EXPECT_EQ(report.cases.at("one").facts["peak_bytes"], 12);
  EXPECT_EQ(report.cases.at("one").facts["numbers"], Json({{"n", 3.0}}));
}

struct MalformedEntry {
  const char* name;
  const char* text;
};

class MalformedReport : public ::testing::TestWithParam<MalformedEntry> {};

TEST_P(MalformedReport, IsRefused) {
  EXPECT_THROW(parse_subject_report(report_with(GetParam().text), {"one"}), Error);
}

INSTANTIATE_TEST_SUITE_P(
    Entries, MalformedReport,
    ::testing::Values(
        MalformedEntry{"no_object", "3"}, MalformedEntry{"no_status", "{}"},
        MalformedEntry{"status_absent", R"({"status":"absent"})"},
        MalformedEntry{"unknown_key", R"({"status":"ok","verdict":"good"})"},
        MalformedEntry{"unsupported_without_reason", R"({"status":"unsupported"})"},
        MalformedEntry{"raised_without_exception", R"({"status":"raised"})"},
        MalformedEntry{"negative_time", R"({"status":"ok","wall_s":-1})"},
        MalformedEntry{"time_as_text", R"({"status":"ok","wall_s":"1"})"},
        MalformedEntry{"numbers_as_list", R"({"status":"ok","numbers":[1]})"},
        MalformedEntry{"number_as_text", R"({"status":"ok","numbers":{"n":"1"}})"},
        MalformedEntry{"fractional_peak", R"({"status":"ok","peak_bytes":1.5})"},
        MalformedEntry{"exception_cut", R"({"status":"raised","exception":{"type":"E"}})"},
        MalformedEntry{"case_not_asked_for", R"({"status":"ok"},"two":{"status":"ok"})"}),
    [](const auto& entry) { return std::string(entry.param.name); });

TEST(SubjectReport, LongAndMultiLineTextIsCutToOneLine) {
  const std::string text(5000, 'x');
  const auto report = parse_subject_report(
      report_with(R"({"status":"unsupported","reason":"a\nb)" + text + "\"}"), {"one"});
  EXPECT_EQ(report.cases.at("one").reason, "a");
}

/// Runs the toy pack with a shell script as the subject. `setup` lies next to the work folder.
RunResult run_script(const ScratchFolder& folder, const std::string& script,
                     double timeout_s = 20) {
  const Json command = {
      {"argv",
       {"bash", "-c", script, "subject", (folder / "work").string(), (folder / "").string()}},
      {"timeout_s", timeout_s}};
  return run_toy(
      folder, toy_cases({"one", "two"}),
      {"--subject", "upstream", "--subject-command", folder.write("command.json", command.dump())});
}

/// Right result files for both cases, as an honest subject would leave them.
void write_right_files(const ScratchFolder& folder) {
  const ToyPack pack;
  Tensors outputs;
  Json reports = Json::object();
  for (const std::string name : {"one", "two"}) {
    const Case item{name, CaseRole::kTrigger, Json::object(), {"cpu"}};
    for (const auto& [tensor, value] : ToyPack::compute(pack.inputs(item, 1)))
      outputs.emplace(name + "/" + tensor, value);
    reports[name] = {{"status", "ok"}};
  }
  folder.write("outputs.safetensors", tensors_to_bytes(outputs));
  folder.write("subject.json", Json{{"package", {{"name", "p"}, {"version", "1"}}},
                                    {"versions", Json::object()},
                                    {"device", "d"},
                                    {"cases", reports}}
                                   .dump());
}

/// Copies the right files into place, then does one thing to them.
class HostileFiles : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(HostileFiles, AreUnresolvedThoughTheirContentIsRight) {
  const ScratchFolder folder;
  write_right_files(folder);
  const std::string honest = "cd \"$1\" && cp ../outputs.safetensors ../subject.json . && ";
  const RunResult control = run_script(folder, honest + "true");
  ASSERT_EQ(control.of("one").status, CaseStatus::kAbsent) << control.of("one").reason;
  const RunResult run = run_script(folder, honest + GetParam().second, 3);
  ASSERT_EQ(run.code, 0);
  ASSERT_EQ(run.observations.size(), 2U);
  for (const Observation& o : run.observations) {
    EXPECT_EQ(o.status, CaseStatus::kUnresolved);
    EXPECT_FALSE(o.reason.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, HostileFiles,
    ::testing::Values(
        std::pair("link", "mv outputs.safetensors x && ln -s x outputs.safetensors"),
        std::pair("hard_link", "ln outputs.safetensors x"),
        std::pair("report_link", "mv subject.json x && ln -s x subject.json"),
        std::pair("fifo", "rm outputs.safetensors && mkfifo outputs.safetensors"),
        std::pair("report_fifo", "rm subject.json && mkfifo subject.json"),
        std::pair("device", "rm outputs.safetensors && ln -s /dev/zero outputs.safetensors"),
        std::pair("folder", "rm outputs.safetensors && mkdir outputs.safetensors"),
        std::pair("huge", "truncate -s 1T outputs.safetensors"),
        std::pair("cut", "truncate -s -1 outputs.safetensors"),
        std::pair("missing", "rm outputs.safetensors"), std::pair("no_report", "rm subject.json"),
        std::pair("noise", "head -c 4096 /dev/urandom > outputs.safetensors"),
        std::pair("deep_report", "printf '[%.0s' $(seq 100000) > subject.json"),
        std::pair("bad_utf8", "printf '\\377\\376' > subject.json"), std::pair("exit_1", "exit 1"),
        std::pair("killed", "kill -9 $$"), std::pair("hangs", "sleep 60")),
    [](const auto& way) { return std::string(way.param.first); });

TEST(ReadUntrusted, TakesNoFileOverItsLimit) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.write("outputs", "12345");
  EXPECT_EQ(read_untrusted(file, 5), "12345");
  EXPECT_THROW(read_untrusted(file, 4), Error);
}

TEST(SubjectProcess, LeavesNoTensorsForTheNextRunOrTheDisk) {
  const ScratchFolder folder;
  write_right_files(folder);
  const std::string honest =
      "cd \"$1\" && test -f inputs.safetensors && cp ../outputs.safetensors ../subject.json .";
  EXPECT_EQ(run_script(folder, honest).of("one").status, CaseStatus::kAbsent);
  for (const char* end : {"", " && exit 1"}) {
    run_script(folder, honest + end);
    EXPECT_FALSE(std::filesystem::exists(folder / "work/inputs.safetensors")) << end;
    EXPECT_FALSE(std::filesystem::exists(folder / "work/outputs.safetensors")) << end;
  }
  EXPECT_EQ(run_script(folder, "true").of("one").status, CaseStatus::kUnresolved);
}

TEST(SubjectProcess, CannotReachTheRecordDescriptor) {
  const ScratchFolder folder;
  const RunResult run = run_script(
      folder,
      "for fd in $(seq 1 63); do echo '{\"seen\":\"absent\"}' 2>/dev/null >&$fd; done; true");
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.observations.size(), 2U);
}

TEST(SubjectProcess, CommandThatCannotStartIsOursNotAnAnswer) {
  const ScratchFolder folder;
  const Json command = {{"argv", {"/nonexistent/python"}}, {"timeout_s", 5}};
  EXPECT_EQ(run_toy(folder, toy_cases({"one"}),
                    {"--subject", "upstream", "--subject-command",
                     folder.write("c.json", command.dump())})
                .code,
            3);
}

/// `python3` on the wheels that this build uses, with the words given.
std::vector<std::string> python_words(std::vector<std::string> words) {
  words.insert(words.begin(), {"env", "PYTHONDONTWRITEBYTECODE=1",
                               "PYTHONPATH=" PATCHBENCH_TORCH_SITE, "python3"});
  return words;
}

RunResult run_python(const ScratchFolder& folder, const Json& cases,
                     const std::vector<std::string>& words, const std::string& subject) {
  const Json command = {{"argv", python_words(words)}, {"timeout_s", 120}};
  return run_toy(
      folder, cases,
      {"--subject", subject, "--subject-command", folder.write("command.json", command.dump())});
}

TEST(SubjectRuntime, HonestSubjectIsAbsentAndEachExceptionIsAnAnswer) {
  const ScratchFolder folder;
  const std::string subject = folder.write("subject.py", R"(
from subject_runtime import Unsupported
PACKAGE = "torch"
def run(case):
    if case.name == "raises":
        raise ValueError("no such thing")
    if case.name == "old":
        raise Unsupported("this release has none")
    t = case.tensors
    assert t["bias"].stride() == (0,) and t["x"].storage_offset() == 4, "views must arrive as views"
    product = t["x"] @ t["w"] + t["bias"]
    return {"product": product, "row_sums": product.sum(1), "total": product.sum()}
)");
  const RunResult run = run_python(
      folder, toy_cases({"fine", "raises", "old"}),
      {PATCHBENCH_ROOT "/repro/harness/subject_runtime.py", subject, (folder / "work").string()},
      "upstream");
  ASSERT_EQ(run.code, 0);
  EXPECT_EQ(run.of("fine").status, CaseStatus::kAbsent) << run.of("fine").reason;
  EXPECT_EQ(run.of("fine").self_reported["package"]["name"], "torch");
  EXPECT_EQ(run.of("raises").status, CaseStatus::kUnresolved);
  EXPECT_EQ(run.of("raises").self_reported["exception"]["type"], "ValueError");
  EXPECT_EQ(run.of("old").status, CaseStatus::kUnsupported);
  EXPECT_EQ(run.of("old").reason, "this release has none");
}

TEST(SubjectRuntime, Bf16FromOutsideOnTheCpuIsJudgedOnlyWhereItIsRounded) {
  const ScratchFolder folder;
  const std::string subject = folder.write("subject.py", R"(
PACKAGE = "torch"
def run(case):
    t = case.tensors
    product = t["x"] @ t["w"] + t["bias"]
    return {"product": product, "row_sums": product.sum(1), "total": product.sum()}
)");
  Json cases = toy_cases({"narrow", "rounded"});
  for (Json& c : cases) c["axes"] = {{"dtype", "bfloat16"}, {"rounds", c["name"] == "rounded"}};
  const RunResult run = run_python(
      folder, cases,
      {PATCHBENCH_ROOT "/repro/harness/subject_runtime.py", subject, (folder / "work").string()},
      "upstream");
  EXPECT_EQ(run.of("narrow").status, CaseStatus::kUnjudged);
  EXPECT_EQ(run.of("narrow").reason, "interpreter truncates bf16 stores");
  EXPECT_EQ(run.of("narrow").measures.size(), 3U);
  EXPECT_EQ(run.of("rounded").status, CaseStatus::kAbsent);
}

TEST(LyingSubject, EarnsNoAbsentCase) {
  const ScratchFolder folder;
  const RunResult run = run_python(
      folder, toy_cases({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}),
      {PATCHBENCH_ROOT "/repro/harness/lying_subject.py", (folder / "work").string()}, "liar");
  ASSERT_EQ(run.code, 0);
  ASSERT_EQ(run.observations.size(), 10U);
  for (const Observation& o : run.observations) {
    EXPECT_NE(o.status, CaseStatus::kAbsent) << o.case_name;
    EXPECT_FALSE(o.outputs_sha256.empty()) << o.case_name << ": did not lie: " << o.reason;
  }
}

TEST(Program, DeclaredFailureIsPresentInItsClass) {
  const ScratchFolder folder;
  const RunResult run =
      run_toy(folder, toy_cases({"one"}), {"--subject", "model", "--repeat", "2"});
  ASSERT_EQ(run.observations.size(), 2U);
  EXPECT_EQ(run.observations[1].repeat, 1);
  EXPECT_EQ(run.of("one").status, CaseStatus::kPresent);
  EXPECT_EQ(run.of("one").failure_class, "zeroed");
}

TEST(Program, FailureThatThePackDoesNotNameIsPresentAsUndeclared) {
  const ScratchFolder folder;
  const RunResult run =
      run_toy(folder, toy_cases({"one"}), {"--subject", "op", "--corrupt", "sign_flipped@product"});
  EXPECT_EQ(run.of("one").status, CaseStatus::kPresent);
  EXPECT_EQ(run.of("one").failure_class, "undeclared");
  EXPECT_NE(run.of("one").reason.find("product element"), std::string::npos);
}

TEST(Program, ExceptionsOfASubjectOfOursAreAnswers) {
  const ScratchFolder folder;
  EXPECT_EQ(run_toy(folder, toy_cases({"one"}), {"--subject", "op_mutant:raises"}).of("one").reason,
            "raised: broken");
  EXPECT_EQ(
      run_toy(folder, toy_cases({"one"}), {"--subject", "op_mutant:unsupported"}).of("one").status,
      CaseStatus::kUnsupported);
}

TEST(Program, CaseRefusedOnADeviceIsUnsupportedAndNotRun) {
  const ScratchFolder folder;
  Json cases = toy_cases({"big"});
  cases[0]["axes"]["large"] = true;
  cases[0]["judged_on"] = {"cuda"};
  const RunResult run = run_toy(folder, cases, {"--subject", "op"});
  EXPECT_EQ(run.of("big").status, CaseStatus::kUnsupported);
  EXPECT_FALSE(run.of("big").counts);
}

TEST(Program, WrongWordsAndDevicesHaveTheirOwnExit) {
  const ScratchFolder folder;
  EXPECT_EQ(run_toy(folder, toy_cases({"one"}), {"--subject", "opp"}).code, 2);
  EXPECT_EQ(run_toy(folder, toy_cases({"one"}), {"--subject", "upstream"}).code, 2);
}

}  // namespace
}  // namespace patchbench::harness::testing
