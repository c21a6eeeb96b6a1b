#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/observation.h"
#include "core/record.h"
#include "exec/environment.h"
#include "exec/sandbox.h"
#include "git/checkout.h"
#include "run/programs.h"
#include "workbench/context.h"

namespace patchbench {

/// What the user chose for a whole run.
struct RunOptions {
  std::string slug;
  std::string upstream_name;  ///< which upstream of the pack; empty: the first
  std::string version;        ///< empty: the red pin
  /// Companions, "NAME=VERSION": upstreams that are not under test.
  std::vector<std::string> beside;
  Subject subject = SubjectKind::kUpstream;
  std::vector<std::string> cases;            ///< empty: all
  std::string device;                        ///< empty: cuda:0 where it can be used, else cpu
  std::optional<exec::SandboxKind> sandbox;  ///< forced
  std::filesystem::path python;              ///< --python: that installed stack is the environment
  bool needs_pin = false;  ///< with `python`: judge a pinned release on it, not the installed one
  uint64_t seed = 1;
  int repeats = 1;
  std::filesystem::path compile_cache;  ///< copied to each subject's ~/.tilelang; empty: none
  bool wants_regions = false;           ///< the judge makes region mutants of right outputs, too
  int jobs = 1;                         ///< subjects that run at a time, where there are several
  bool explores = false;  ///< cases are drawn for a question that does not do so by itself, too
  /// Cases that are drawn from the pack's spaces for each seed; kAsManifest: its counts, where the
  /// question explores by itself.
  int num_drawn = kAsManifest;
  uint64_t last_seed = 0;      ///< of drawn cases, from `seed` on; 0: `seed` alone
  bool is_only_drawn = false;  ///< no declared case is run
  Json given = Json::array();  ///< axes that are judged instead of cases
  /// Conditions (core/condition.h): with wants_regions right outputs of drawn cases are spoiled
  /// where one holds.
  std::vector<std::string> conditions;
  static constexpr int kAsManifest = -1;
};

/// The parts of a run that stay the same for all its subjects.
struct Setup {
  Manifest manifest;
  UpstreamUse upstream;
  std::optional<Pin> pin;  ///< nullopt: a host stack
  /// The pack's upstreams that run with it, as released.
  std::vector<Pin> beside;
  Json beside_json() const;  ///< name -> version; null without any
  std::string device;
  exec::SandboxKind sandbox = exec::SandboxKind::kProcess;
  exec::Environment environment;
  Json files = Json::object();     ///< of an installed stack: the upstream's files -> SHA-256
  std::string image, python;       ///< as the sandbox needs them
  std::filesystem::path libtorch;  ///< folder of it, for a judge that brings none; else empty
  JudgeDevice judge;               ///< where the judge computes for a subject on `device`
  std::string run_id, started;
  Json machine;                  ///< exec::describe_machine(device)
  std::filesystem::path folder;  ///< <cache>/runs/<run_id>
};

/// One subject's observations and the context they were made in.
struct Trial {
  RunContext context;
  std::vector<Observation> observations;
  std::vector<Observation> drawn;  ///< every drawn case with its properties; no record holds these
  double wall_s = 0;
};

/// Prepares and runs subjects. What it is by default starts processes; a test's does not.
class SubjectRunner {
 public:
  virtual ~SubjectRunner() = default;
  virtual Setup prepare(const Context& context, const RunOptions& options) = 0;
  virtual Trial run(const Context& context, const Setup& setup, const RunOptions& options,
                    const Subject& subject, const std::vector<Edit>& edits,
                    const std::string& corrupt) = 0;
  /// run_mitigation_program().
  virtual Json run_program(const Context& context, const Setup& setup) = 0;
};

/// Resolves names to things, chooses device and sandbox and prepares the environment. Throws Error
/// with one clear line for each thing that is wrong or impossible here.
Setup prepare(const Context& context, const RunOptions& options);

/// Runs one subject over the chosen cases: checkout (+ edits), sandbox, reproducer, observations.
/// `corrupt` spoils outputs (self-test).
Trial run_trial(const Context& context, const Setup& setup, const RunOptions& options,
                const Subject& subject, const std::vector<Edit>& edits,
                const std::string& corrupt = "");

/// Starts the program of the pack's mitigation three times (run/mitigation_program.h).
Json run_program(const Context& context, const Setup& setup);

/// How many cases the pack's spaces have for a subject by default; 0 where it has none.
int num_drawn_of(const Setup& setup, const Subject& subject);

/// The results of all trials, in order.
std::vector<Observation> observations_of(const std::vector<Trial>& trials);

/// Appends a trial's observations and the verdict over `trials` to the ledger; returns the
/// verdict's digest.
std::string record_run(const Context& context, const std::vector<Trial>& trials,
                       const QuestionContext& question, const Outcome& outcome);

/// What an observation of `setup` is asked: classes, red pin.
QuestionContext question_for(const Setup& setup, Question question, const Subject& subject);

}  // namespace patchbench
