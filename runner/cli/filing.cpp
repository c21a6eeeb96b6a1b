#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/patch.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/shell_word.h"
#include "git/series.h"
#include "ledger/evidence.h"
#include "report/advisory.h"
#include "report/table.h"
#include "status/advisory_releases.h"
#include "status/claims.h"
#include "status/upstream_threads.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// How long an open or closed thread is taken to be as it was seen.
constexpr int kFreshDays = 30;

/// What one pack is to become upstream, and what is missing.
struct Plan {
  Manifest manifest;
  std::string kind, thread, group;
  std::vector<std::string> repositories;
  int order = 0;
  std::vector<std::string> depends_on;
  std::vector<std::string> blocks, notes;
  std::vector<std::string> look, send;  ///< what to look at before, and how it goes out
  bool is_merged = false;  ///< upstream has merged its thread, or a fix: nothing of it goes out
  bool is_nothing() const { return kind == "none"; }
  const std::string& slug() const { return manifest.slug.str(); }
};

Plan plan_of(const Manifest& manifest) {
  const Json& filing = manifest.filing;
  Plan plan{manifest,
            filing.at("kind"),
            filing.at("thread"),
            filing.at("group"),
            filing.at("repositories"),
            filing.at("order"),
            filing.at("depends_on"),
            {},
            {},
            {},
            {}};
  if (plan.kind == "held") plan.blocks.push_back("held: " + filing.at("risk").get<std::string>());
  if (plan.kind == "held") return plan;
  const std::string risk = "risk: " + filing.at("risk").get<std::string>();
  if (plan.is_nothing() || filing.contains("answer")) {
    plan.notes.push_back(risk);
  } else {
    plan.blocks.push_back(risk + "; the report has no answer to it: write filing.answer");
  }
  return plan;
}

std::string spoken(const std::string& kind) {
  return kind == "pull_request" ? "pull request" : kind;
}

class Filing {
 public:
  Filing(const Context& context, std::string day)
      : context_(context),
        day_(std::move(day)),
        record_set_(ledger::known(context.ledger, context.root, context.slugs())),
        pins_(context.pins()),
        upstream_threads_(read_upstream_threads(context)) {
    for (const std::string& slug : context.slugs())
      plans_.push_back(plan_of(context.manifest(slug)));
    for (Plan& plan : plans_) {
      if (plan.is_nothing()) continue;
      check_target(plan);
      check_related(plan);
      check_records(plan);
      check_main(plan);
      add_steps(plan);
    }
    find_overlaps();
    check_others();
    std::stable_sort(plans_.begin(), plans_.end(), [](const Plan& a, const Plan& b) {
      return std::tie(a.group, a.order) < std::tie(b.group, b.order);
    });
  }

  const std::vector<Plan>& plans() const { return plans_; }
  const std::vector<std::string>& overlaps() const { return overlaps_; }

 private:
  const Thread* find(const std::string& name) const {
    for (const Thread& thread : upstream_threads_) {
      if (thread.name == name) return &thread;
    }
    return nullptr;
  }

  /// Open and closed threads move on; what is merged stays merged.
  bool is_stale(const Thread& thread) const {
    return (thread.state == ThreadState::kOpen || thread.state == ThreadState::kClosed) &&
           days_between(thread.checked, day_) > kFreshDays;
  }

  std::string stale_text(const Thread& thread) const {
    return fmt::format(
        "{}: {} when seen on {}, {} days ago; look again and note it in "
        "env/threads.json",
        thread.name, thread_state_name(thread.state), thread.checked,
        days_between(thread.checked, day_));
  }

  /// The thread that it goes to.
  void check_target(Plan& plan) const {
    if (plan.thread.empty()) {
      if (plan.kind == "comment") plan.blocks.push_back("a comment, and no thread is named");
      return;
    }
    const Thread* thread = find(plan.thread);
    if (thread == nullptr || thread->state == ThreadState::kUnchecked) {
      plan.blocks.push_back(plan.thread +
                            ": unchecked; look it up and note state, day and source "
                            "in env/threads.json");
    } else if (thread->state == ThreadState::kSuperseded) {
      plan.blocks.push_back(plan.thread + ": superseded by " + thread->superseded_by);
    } else if (thread->state != ThreadState::kOpen) {
      plan.is_merged = thread->state == ThreadState::kMerged;
      plan.blocks.push_back(
          fmt::format("{}: {} ({}); a {} there is read by nobody, name another "
                      "thread or file anew",
                      plan.thread, thread_state_name(thread->state), thread->checked, plan.kind));
    } else if (is_stale(*thread)) {
      plan.blocks.push_back(stale_text(*thread));
    }
  }

  /// Threads about the same thing.
  void check_related(Plan& plan) const {
    for (const Thread& thread : upstream_threads_) {
      if (thread.name == plan.thread) continue;
      for (const Thread::Relation& pack : thread.packs) {
        if (pack.slug == plan.slug()) check_relation(plan, thread, pack.relation);
      }
    }
  }

  void check_relation(Plan& plan, const Thread& thread, const std::string& relation) const {
    const bool is_same = relation == "reports" || relation == "fixes";
    if (thread.state == ThreadState::kUnchecked) {
      plan.blocks.push_back(fmt::format("{} ({}): unchecked", thread.name, relation));
    } else if (relation == "fixes" && thread.state == ThreadState::kMerged) {
      plan.is_merged = true;
      plan.blocks.push_back(
          fmt::format("{}: upstream merged a fix of it ({})", thread.name, thread.about));
    } else if (is_same && thread.state == ThreadState::kOpen && plan.kind != "comment") {
      plan.blocks.push_back(
          fmt::format("{}: open and about the same; comment there instead", thread.name));
    } else if ((is_same || thread.state == ThreadState::kOpen) && is_stale(thread)) {
      plan.blocks.push_back(stale_text(thread));
    } else if (thread.state == ThreadState::kOpen) {
      plan.notes.push_back(fmt::format("{} ({}, open on {}): {}", thread.name, relation,
                                       thread.checked, thread.about));
    }
  }

  /// What the records must show before anything is said.
  void check_records(Plan& plan) const {
    const std::vector<std::string> problems = claim_problems(plan.manifest, record_set_);
    if (!problems.empty())
      plan.blocks.push_back(
          fmt::format("{} cited record(s) do not hold: patchbench status claims {}",
                      problems.size(), plan.slug()));
    bool is_reproduced = false, is_validated = false;
    for (const auto& [digest, entry] : record_set_.entries()) {
      if (entry.record.type() != "verdict" || !ledger::counts_for_quorum(entry)) continue;
      const Json& p = entry.record.predicate();
      if (p.at("context").value("slug", "") != plan.slug()) continue;
      const auto sentinel = outcome_of(entry.record).sentinel;
      const QuestionContext question = QuestionContext::from_json(p.at("question"));
      if (!question.is_red_pin) continue;
      is_reproduced |=
          sentinel == Sentinel::kBugReproduced && question.subject == SubjectKind::kUpstream;
      is_validated |= sentinel == Sentinel::kFixValidated ||
                      sentinel == Sentinel::kEquivalenceShown ||
                      sentinel == Sentinel::kEquivalenceProved;
    }
    if (!is_reproduced)
      plan.blocks.push_back("no record shows it on the tested release: patchbench reproduce " +
                            plan.slug());
    if (plan.kind == "pull_request" && !is_validated)
      plan.blocks.push_back(
          "no record validates the edit on the tested release: patchbench validate " + plan.slug());
    check_newest(plan);
  }

  /// A newer release that is right makes the report moot: one of the first upstream, to which it
  /// goes. Another that is right is left out of the report.
  void check_newest(Plan& plan) const {
    for (const UpstreamUse& use : plan.manifest.upstreams) {
      if (use.from_environment) continue;
      const auto releases = advisory_releases(record_set_, plan.manifest, pins_.upstream(use.name));
      const auto newest =
          std::find_if(releases.rbegin(), releases.rend(),
                       [](const report::AdvisoryRelease& r) { return !r.states.empty(); });
      if (newest == releases.rend()) continue;
      const bool is_right =
          std::all_of(newest->states.begin(), newest->states.end(),
                      [](const report::DeviceState& s) { return s.state == BugStatus::kAbsent; });
      const std::string& first = plan.manifest.upstreams.front().name;
      if (is_right && newest->version != use.red_pin) {
        const std::string text = fmt::format("{} {} no longer shows it", use.name, newest->version);
        if (use.name == first) {
          plan.blocks.push_back(text);
        } else {
          plan.notes.push_back(text + ": leave it out of the report, which goes to " + first);
        }
      }
      if (newest != releases.rbegin())
        plan.notes.push_back(fmt::format("{} {} is newer than what was measured ({})", use.name,
                                         releases.back().version, newest->version));
    }
  }

  /// The head of main: a report on a bug that it no longer has is closed.
  void check_main(Plan& plan) const {
    const std::string& upstream = plan.manifest.upstreams.front().name;
    if (!plan.manifest.filing.contains("main")) {
      plan.blocks.push_back(fmt::format(
          "main of {} was not measured: try its head, then write filing.main", upstream));
      return;
    }
    const Json& main = plan.manifest.filing.at("main");
    const std::string date = main.at("date");
    const std::string at = fmt::format("main of {} at {} ({})", upstream,
                                       main.at("commit").get<std::string>().substr(0, 8), date);
    if (main.at("shows") == "absent") {
      plan.blocks.push_back(at + " no longer has it");
    } else if (main.contains("applies") && !main.at("applies").get<bool>()) {
      plan.blocks.push_back("the patch does not apply to " + at);
    } else if (const int days = days_between(date, day_); days > kFreshDays) {
      plan.blocks.push_back(
          fmt::format("{} has it, but that is {} days ago: measure its head again", at, days));
    } else {
      plan.notes.push_back(at + " has it, too");
    }
  }

  /// What a person does before it goes out and to send it: commands of GitHub's own tool.
  void add_steps(Plan& plan) const {
    const std::string& repository = plan.repositories.front();
    std::vector<std::string> threads = {plan.thread};
    for (const Thread& thread : upstream_threads_) {
      for (const Thread::Relation& pack : thread.packs) {
        if (pack.slug == plan.slug() && thread.state != ThreadState::kMerged)
          threads.push_back(thread.name);
      }
    }
    std::set<std::string> known;
    for (const std::string& thread : threads) {
      const std::size_t sign = thread.find('#');
      if (sign == thread.npos || !known.insert(thread).second) continue;
      plan.look.push_back(fmt::format("gh issue view {} --repo {} --comments",
                                      thread.substr(sign + 1), thread.substr(0, sign)));
    }
    const std::string file = plan.manifest.upstreams.front().files.front();
    plan.look.push_back(fmt::format("gh search issues {} --repo {} --include-prs",
                                    shell_word(fs::path(file).stem().string()), repository));
    plan.look.push_back(fmt::format("gh api repos/{}/commits/HEAD --jq .sha", repository));
    if (plan.kind == "held") return;
    plan.send.push_back(
        fmt::format("patchbench bundle {} out --from \"Name <mail>\"", plan.slug()));
    const std::size_t sign = plan.thread.find('#');
    if (plan.kind == "comment" && sign != plan.thread.npos) {
      plan.send.push_back(fmt::format("gh issue comment {} --repo {} --body-file out/body.md",
                                      plan.thread.substr(sign + 1), plan.thread.substr(0, sign)));
      return;
    }
    plan.send.push_back(fmt::format("gh {} create --repo {} --title {} --body-file out/body.md",
                                    plan.kind == "pull_request" ? "pr" : "issue", repository,
                                    shell_word(plan.manifest.title)));
  }

  /// Files that the edits of two packs for one base both change.
  void find_overlaps() {
    std::map<std::string, std::set<std::string>> touched;  // "upstream base file" -> slugs
    for (const Plan& plan : plans_) {
      const auto series =
          git::load_series(context_.root / cell_path(plan.manifest.slug, Column::kPatches));
      for (const Edit& edit : series.edits) {
        for (const FileEdit& file : edit.files)
          touched[edit.field("Upstream") + " " + edit.field("Base") + ": " + file.path].insert(
              plan.slug());
      }
    }
    for (const auto& [where, slugs] : touched) {
      if (slugs.size() > 1)
        overlaps_.push_back(
            fmt::format("{}: changed by {}; patchbench patch check --all tries "
                        "them together",
                        where, fmt::join(slugs, ", ")));
    }
  }

  /// What a pack waits for: those it depends on, and the others of its group.
  void check_others() {
    std::map<std::string, bool> is_blocked;
    for (const Plan& plan : plans_) is_blocked[plan.slug()] = !plan.blocks.empty();
    for (Plan& plan : plans_) {
      if (plan.is_nothing()) continue;
      for (const std::string& other : plan.depends_on) {
        if (!is_blocked.contains(other))
          throw Error(ErrorCode::kUsage, plan.slug() + ": depends on \"" + other +
                                             "\", which is no pack" +
                                             did_you_mean(other, context_.slugs()));
        if (is_blocked.at(other))
          plan.blocks.push_back("depends on " + other + ", which is blocked");
      }
      std::vector<std::string> waiting;
      for (const Plan& other : plans_) {
        const bool is_together = !plan.group.empty() && other.group == plan.group &&
                                 other.slug() != plan.slug() && !other.is_nothing();
        if (is_together && other.is_merged)
          plan.notes.push_back(
              fmt::format("goes out without {}, which upstream has merged", other.slug()));
        else if (is_together && is_blocked.at(other.slug()))
          waiting.push_back(other.slug());
      }
      if (!waiting.empty())
        plan.blocks.push_back(fmt::format("goes out with its group {}; blocked there: {}",
                                          plan.group, fmt::join(waiting, ", ")));
    }
  }

  const Context& context_;
  std::string day_;
  ledger::RecordSet record_set_;
  Pins pins_;
  std::vector<Thread> upstream_threads_;
  std::vector<Plan> plans_;
  std::vector<std::string> overlaps_;
};

Json plan_json(const Plan& plan) {
  return {{"slug", plan.slug()},
          {"number", plan.manifest.number},
          {"kind", plan.kind},
          {"repositories", plan.repositories},
          {"thread", plan.thread},
          {"group", plan.group},
          {"order", plan.order},
          {"depends_on", plan.depends_on},
          {"risk", plan.manifest.filing.at("risk")},
          {"can_go", plan.blocks.empty() && !plan.is_nothing()},
          {"blocks", plan.blocks},
          {"notes", plan.notes},
          {"look", plan.look},
          {"send", plan.send}};
}

std::string plan_text(const Plan& plan) {
  std::string head = fmt::format("{} · {} · {}", plan.slug(), spoken(plan.kind),
                                 fmt::join(plan.repositories, ", "));
  if (!plan.is_nothing() || !plan.thread.empty())
    head += plan.thread.empty() ? " · a new thread" : " · " + plan.thread;
  if (!plan.group.empty()) head += fmt::format(" · group {}, place {}", plan.group, plan.order);
  std::string out = report::paragraph("  ", head);
  for (const std::string& block : plan.blocks) out += report::paragraph("     blocked: ", block);
  for (const std::string& note : plan.notes) out += report::paragraph("     note: ", note);
  // Commands are never wrapped: they are copied.
  for (const std::string& line : plan.look) out += "     look: " + line + "\n";
  if (plan.blocks.empty()) {
    for (const std::string& line : plan.send) out += "     send: " + line + "\n";
  }
  return out;
}

void print_plans(const Context& context, const Filing& filing, const std::string& slug,
                 const std::string& day) {
  struct Part {
    const char* title;
    bool (*is_of)(const Plan&);
  };
  static constexpr Part kParts[] = {
      {"Can go out today, on a person's word",
       [](const Plan& p) { return p.blocks.empty() && !p.is_nothing(); }},
      {"Blocked", [](const Plan& p) { return !p.blocks.empty() && !p.is_nothing(); }},
      {"Nothing to file", [](const Plan& p) { return p.is_nothing(); }}};
  context.out() << fmt::format("Filing plan of {}. Nothing goes out by itself.\n", day);
  for (const Part& part : kParts) {
    std::string text;
    for (const Plan& plan : filing.plans()) {
      if (part.is_of(plan) && (slug.empty() || plan.slug() == slug)) text += plan_text(plan);
    }
    if (text.empty() && !slug.empty()) continue;
    context.out() << fmt::format("\n{}\n{}", part.title, text.empty() ? "  none\n" : text);
  }
  for (const std::string& overlap : filing.overlaps()) {
    if (slug.empty() || overlap.find(slug) != overlap.npos)
      context.out() << report::paragraph("overlap: ", overlap);
  }
}

void print_filing(Context& context, const std::string& slug, const std::string& day) {
  days_between(day, day);
  if (!slug.empty()) context.manifest(slug);
  const Filing filing(context, day);
  Json rows = Json::array();
  for (const Plan& plan : filing.plans()) {
    if (!slug.empty() && plan.slug() != slug) continue;
    rows.push_back(plan_json(plan));
    if (!slug.empty() && (!plan.blocks.empty() || plan.is_nothing())) context.exit_code = kExitNo;
  }
  if (context.json) {
    print_json(context, {{"day", day}, {"packs", rows}, {"overlaps", filing.overlaps()}});
  } else {
    print_plans(context, filing, slug, day);
  }
}

}  // namespace

void add_filing_command(CLI::App& status, Context& context, const std::string& day) {
  auto slug = std::make_shared<std::string>();
  CLI::App* command = status.add_subcommand(
      "filing", "what can go out to upstreams today, and what blocks the rest");
  command->add_option("slug", *slug, "only this pack; exit 1 if it cannot go out");
  command->footer(
      "From the manifests' filing, the records and env/threads.json (state of each thread,\n"
      "day it was seen, source). A pack is blocked by a thread that is closed, merged,\n"
      "superseded, unchecked or was seen more than 30 days ago; a merged fix; an open\n"
      "thread about the same; records that are missing or do not hold; a newer release\n"
      "that is right, of the pack's first upstream, to which the report goes; main, which\n"
      "nobody measured (filing.main), is right, was measured more than 30 days ago, or\n"
      "does not take the patch; a risk without an answer (filing.answer); a pack it\n"
      "depends on; a blocked pack of its group, which goes out together, without those\n"
      "that upstream has merged. \"look\" is what a person runs before, \"send\" what\n"
      "sends it; nothing goes out by itself.\n"
      "Exit: 1 the one pack asked about is blocked, else 0.");
  command->callback([slug, &day, &context] {
    print_filing(context, *slug, day.empty() ? context.today() : day);
  });
}

}  // namespace patchbench::cli
