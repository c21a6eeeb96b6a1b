#include "run/self_test.h"

#include <fmt/format.h>

#include <fstream>
#include <set>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/progress.h"
#include "run/execute.h"
#include "run/programs.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// What the self-test's answer depends on: the judge's binary, the sandbox program, the harness
/// around the subject.
std::string self_test_key(const Context& context, const Setup& setup) {
  std::set<fs::path> files = {judge_program(context, setup.target.manifest.slug.str()).file,
                              sandbox_program(context).file};
  for (const auto& entry : fs::directory_iterator(context.root / "repro/harness"))
    if (entry.path().extension() == ".py") files.insert(entry.path());
  Sha256 hash;
  for (const fs::path& file : files) hash.update(read_file(file));
  hash.update(exec::sandbox_name(setup.sandbox) + setup.target.device.text() + setup.judge.text() +
              setup.target.manifest.sha256);
  return hash.hex().substr(0, 16);
}

void refuse(const std::string& what) {
  throw Error(ErrorCode::kIntegrity,
              "self-test: " + what + "; no sentinel is issued (patchbench env selftest shows all)");
}

/// A subject that computes nothing, says it did, and prints sentinels.
void check_liar(const Trial& liar) {
  for (const Observation& o : liar.observations) {
    if (o.status == CaseStatus::kAbsent) refuse("a lying subject passed case " + o.case_name);
    if (o.outputs_sha256.empty())
      refuse("the lying subject did not get to lie on case " + o.case_name + ": " + o.reason);
  }
  if (liar.observations.empty()) refuse("a lying subject left no observation");
}

/// A right subject is right on every case.
void check_right(const Trial& right) {
  for (const Observation& o : right.observations) {
    if (o.status != CaseStatus::kAbsent)
      refuse(fmt::format("the right {} is {} on {}: {}", o.subject, case_status_name(o.status),
                         o.case_name, o.reason));
  }
}

/// Mutants of a right subject's outputs, in the regions that its drawn cases reach, are red.
void check_regions(const Trial& drawn) {
  std::size_t num_caught = 0;
  for (const Observation& o : drawn.observations)
    num_caught += o.drawn.value("regions", Json::object()).size();
  if (num_caught == 0) refuse("no mutant of a region was red on the drawn cases");
}

/// Each spoiled output is red; returns how many were.
int check_spoiled(const Trial& spoiled) {
  constexpr int kLeast = 15;
  int num_red = 0;
  for (const Observation& o : spoiled.observations) {
    if (o.status == CaseStatus::kAbsent)
      refuse(fmt::format("{} passed case {}", o.subject, o.case_name));
    num_red += o.status == CaseStatus::kPresent;
  }
  if (num_red < kLeast) refuse(fmt::format("only {} mutants of the outputs were red", num_red));
  return num_red;
}

}  // namespace

void ensure_self_test(const Context& context, const Setup& setup) {
  const fs::path mark = context.cache / "selftest" /
                        (setup.target.manifest.slug.str() + "-" + self_test_key(context, setup));
  if (fs::exists(mark)) return;
  exec::progress("self-test of the judge (once per build)");
  const SelfTestSteps steps = plan_self_test(setup.target);
  Setup own = setup;
  own.target = target_in_process(setup.target);
  if (!setup.target.has_ops) own.judge = {};
  check_right(run_step(context, own, steps.right));
  if (steps.drawn) {
    const Trial drawn = run_step(context, own, *steps.drawn);
    check_right(drawn);
    check_regions(drawn);
  }
  const int num_red = check_spoiled(run_step(context, own, steps.spoiled));
  if (steps.liar) check_liar(run_step(context, setup, *steps.liar));
  fs::create_directories(mark.parent_path());
  std::ofstream(mark) << num_red << " mutants of the outputs red\n";
}

}  // namespace patchbench
