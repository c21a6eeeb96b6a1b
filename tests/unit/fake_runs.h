#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "run/names.h"
#include "run/questions.h"
#include "unit/pack_repository.h"

namespace patchbench::sample {

/// A time that stands still until it is moved.
class FakeClock : public Clock {
 public:
  std::string time = "2026-11-01T10:00:00Z";
  std::string now() const override { return time; }
};

/// Runs no process. A subject shows what a right fix would: upstream red on triggers, mutants red,
/// the rest right. `change` makes it otherwise; `ran` lists what was run.
class FakeRunner : public SubjectRunner {
 public:
  std::function<void(const Setup&, const Subject&, Observation&)> change;
  std::function<void(const Setup&, const Subject&, RunContext&)> change_context;
  std::set<std::string> cannot_run;  ///< versions
  std::string device = "cpu";
  std::vector<std::string> ran;      ///< "0.8.0 patched"
  std::set<std::string> red_drawn;   ///< subjects that are wrong on the one drawn case that is red
  std::vector<std::string> drew;     ///< "patched 40"
  Json program = sample::program();  ///< what a mitigation's program comes to

  Setup prepare(const Context& context, const RunRequest& request) override {
    RunRequest on_cpu = request;
    on_cpu.device = "cpu";
    Setup setup{.target = target_of(context, on_cpu)};
    if (cannot_run.contains(setup.target.pin->version))
      throw Error(ErrorCode::kNotRunnable, setup.target.pin->version + " needs another machine");
    setup.machine = {{"device", device}, {"cpu", "Some CPU"}, {"os", "Debian GNU/Linux 12"}};
    setup.environment.address = "torch-2.11-cp311-0123456789ab";
    setup.sandbox = exec::SandboxKind::kBubblewrap;
    setup.run_id = sha256_hex(std::to_string(++num_runs_)).substr(0, 16);
    setup.started = context.now();
    return setup;
  }

  Trial run(const Context&, const Setup& setup, const PlanStep& step) override {
    const Subject& subject = step.subject;
    ran.push_back(setup.target.pin->version + " " + subject.text());
    Trial trial;
    trial.context = sample::context();
    trial.context.run_id = setup.run_id;
    trial.context.started = setup.started;
    trial.context.slug = setup.target.manifest.slug.str();
    trial.context.manifest_sha256 = setup.target.manifest.sha256;
    trial.context.pin = RunPin(*setup.target.pin, Json());
    trial.context.machine = setup.machine;
    trial.context.environment = setup.environment.address;
    if (change_context) change_context(setup, subject, trial.context);
    if (step.draws.count > 0 || !step.given.empty()) draw(step, trial);
    for (const std::string& name : step.cases) {
      const Case& item = *setup.target.manifest.find_case(name);
      for (int repeat = 0; !step.is_spoiled && repeat < step.repeats; ++repeat)
        see(setup, subject, item, repeat, trial);
      if (step.has_regions) see(setup, subject.region_mutant("last_odd_row"), item, 0, trial);
      for (int i = 0; step.is_spoiled && i < 20; ++i)
        see(setup, "op_mutant:spoiled_" + std::to_string(i), item, 0, trial);
    }
    return trial;
  }

  Json run_program(const Context&, const Setup& setup) override {
    ran.push_back(setup.target.pin->version + " program");
    return program;
  }

 private:
  void draw(const PlanStep& step, Trial& trial) {
    const Subject& subject = step.subject;
    const bool is_red = red_drawn.contains(subject.text());
    const auto add = [&](const std::string& name, const Json& drawn) {
      Observation o = observation(subject.text(), name, CaseRole::kDrawn,
                                  is_red ? CaseStatus::kPresent : CaseStatus::kAbsent);
      o.slug = "some_pack";
      if (is_red) o.failure_class = "undeclared";
      o.drawn = drawn;
      trial.observations.push_back(std::move(o));
    };
    if (step.given.empty()) {
      drew.push_back(subject.text() + " " + std::to_string(step.draws.count));
      add("drawn_from_rows",
          {{"space", "rows"}, {"asked", step.draws.count}, {"red", is_red ? 1 : 0}});
    }
    if (is_red || !step.given.empty())
      add("drawn_1", {{"space", "rows"}, {"axes", {{"dtype", "float32"}}}, {"kept", true}});
  }

  void see(const Setup& setup, const Subject& subject, const Case& item, int repeat,
           Trial& trial) const {
    const bool is_red = subject.is_mutant() ||
                        (subject == SubjectKind::kUpstream && item.role == CaseRole::kTrigger);
    Observation o = observation(subject.text(), item.name, item.role,
                                subject == SubjectKind::kLiar ? CaseStatus::kUnresolved
                                : is_red                      ? CaseStatus::kPresent
                                                              : CaseStatus::kAbsent);
    o.slug = setup.target.manifest.slug.str();
    o.repeat = repeat;
    if (is_red) o.failure_class = "wrong_result";
    if (change) change(setup, subject, o);
    trial.observations.push_back(std::move(o));
  }

  int num_runs_ = 0;
};

/// Histories without git: each release's tag, and the commits between two of them.
class FakeCheckouts : public Checkouts {
 public:
  std::vector<Pin> commits;

  Series edits_at(const Context&, const Manifest&, const UpstreamUse&, const Pin&) override {
    return {{Edit{.name = "0001-right.edit"}},
            {Edit{.name = "mutant-half.edit"}},
            {Edit{.name = "claimed-once.edit"}}};
  }
  std::optional<Pin> tagged(const Context& context, const Upstream& upstream,
                            const std::string& version) override {
    return context.pins().resolve(upstream.name, version);
  }
  std::vector<Pin> commits_between(const Context&, const Pin&, const Pin&,
                                   const std::vector<std::string>&) override {
    return commits;
  }
};

/// A pack of a real upstream, whose runs start no process.
class FakeWorkbench {
 public:
  FakeWorkbench() {
    repository.use_real_upstream();
    keep_releases({"0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.8.1"});
    repository.replace(PackRepository::kManifest, "thing>=1.0", "liger-kernel>=0.8.0");
    repository.replace(PackRepository::kManifest,
                       R"("axes": {"dtype": "bfloat16"}, "judged_on": ["cuda"])",
                       R"("axes": {"dtype": "bfloat16"}, "judged_on": ["cpu", "cuda"])");
    for (const char* file :
         {"bin/repro_some_pack", "bin/patchbench-sandbox", "repro/harness/subject_runtime.py",
          "repro/harness/triton_interpreter.py"})
      repository.put(file, "");
    context.root = repository.path("");
    context.bin = repository.path("bin");
    context.cache = repository.path("cache");
    context.ledger = repository.path("ledger.db");
    context.clock = &clock;
    context.subjects = &runner;
    context.checkouts = &checkouts;
  }

  /// Leaves one upstream, and of its releases these: a window in milliseconds.
  void keep_releases(const std::set<std::string>& versions) {
    Json pins = parse_json(PackRepository::read(repository.path("env/pins.json")), "pins");
    Json upstream = pins["upstreams"]["liger-kernel"];
    Json releases = Json::array();
    for (const Json& release : upstream["releases"]) {
      if (versions.contains(release["version"])) releases.push_back(release);
    }
    upstream["releases"] = releases;
    pins["upstreams"] = {{"liger-kernel", upstream}};
    repository.put("env/pins.json", pins.dump());
  }

  Setup setup() { return prepare(context, request); }
  Answer reproduced() { return reproduce(context, setup(), request); }
  Answer validated() {
    const Setup at = setup();
    return validate(context, at, edits_at(context, at.target), request.choice);
  }
  std::size_t num_records() const { return ledger::Ledger::open(context.ledger)->all().size(); }

  PackRepository repository;
  FakeClock clock;
  FakeRunner runner;
  FakeCheckouts checkouts;
  Context context;
  RunRequest request{.slug = "some_pack"};
};

}  // namespace patchbench::sample
