#include "status/bundle_body.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/device.h"
#include "core/error.h"
#include "core/pin_arguments.h"
#include "core/window.h"
#include "report/advisory.h"
#include "report/claim_lint.h"
#include "report/markdown.h"
#include "report/record_line.h"
#include "status/advisory_releases.h"
#include "status/filing_text.h"
#include "status/newest.h"
#include "status/pack_records.h"

namespace patchbench {
namespace {

using report::Quantity;

constexpr std::size_t kBundleDigest = 12, kMaxCases = 8;

std::string short_digest(const std::string& digest) { return digest.substr(0, kBundleDigest); }

/// Text of the manifest or of a record with only the numbers that `record` states.
std::string stated(const std::string& text, const std::vector<Quantity>& held) {
  return report::without_unheld(one_line(text, 400), held);
}

std::string kind_words(const std::string& kind) {
  static const std::map<std::string, std::string> kWords = {
      {"bug", "The release does not do what it says."},
      {"refactor", "A change that alters no result."},
      {"memory", "A change that saves memory and alters no result."},
      {"claim", "A finding: what was looked for, and what was seen."}};
  return kWords.at(kind);
}

/// A verdict about the pack's release at its red pin.
using CurrentVerdict = NewestVerdict;

class Body {
 public:
  explicit Body(const BundleFacts& facts) : facts_(facts) {}

  BundleBody make() {
    const Manifest& manifest = facts_.manifest;
    const std::vector<CurrentVerdict> current = newest_current();
    const UpstreamUse& use = manifest.upstreams.front();
    const bool is_held =
        manifest.filing.at("kind") == "held" || manifest.filing.at("kind") == "none";
    Json values = {{"slug", manifest.slug.str()},
                   {"title", stated(manifest.title, {})},
                   {"is_held", is_held},
                   {"risk", stated(manifest.filing.at("risk"), {})},
                   {"upstream", use.name},
                   {"version", use.red_pin},
                   {"kind", manifest.kind},
                   {"what_kind", kind_words(manifest.kind)},
                   {"classes", classes(current)},
                   {"verdicts", verdicts(current, Question::kReproduce)},
                   {"cases", cases(current)},
                   {"window", window()},
                   {"patches", patches()},
                   {"left_out", left_out()},
                   {"checks", checks(current)},
                   {"confirmed", settled()},
                   {"limits", limits()},
                   {"commands", fmt::format("{}", fmt::join(commands(current), "\n"))},
                   {"environment", environment(current)},
                   {"has_script", facts_.has_script}};
    std::set<std::string> known;
    for (const Json& row : values.at("classes")) known.insert(row.at("name"));
    values.update(filing_values(facts_, current, known));
    for (const char* list : {"cases", "window", "patches", "confirmed"})
      values[std::string("has_") + list] = !values.at(list).empty();
    return {std::move(values), commands(current), evidence()};
  }

 private:
  /// The newest verdict of each question that was answered at the red pins.
  std::vector<CurrentVerdict> newest_current() {
    std::vector<CurrentVerdict> out =
        newest_verdicts(facts_.record_set, [&](const CurrentVerdict& one) {
          const bool is_of_the_release = one.question.question != Question::kReproduce ||
                                         one.question.subject == SubjectKind::kUpstream;
          return one.run.slug == facts_.manifest.slug.str() && one.outcome.sentinel &&
                 one.question.question != Question::kClaim && is_of_the_release &&
                 is_at_red_pin(finding_of(one.entry->record, one.entry->digest));
        });
    const auto order = [](const CurrentVerdict& one) {
      return std::tuple(one.question.question, one.question.subject, one.upstream(), one.device());
    };
    std::stable_sort(out.begin(), out.end(), [&](const CurrentVerdict& a, const CurrentVerdict& b) {
      return order(a) < order(b);
    });
    if (out.empty()) {
      throw Error(ErrorCode::kUnresolved,
                  facts_.manifest.slug.str() +
                      ": no record of the tested release, so nothing can be said of it; "
                      "run: patchbench reproduce " +
                      facts_.manifest.slug.str());
    }
    return out;
  }

  bool is_at_red_pin(const Finding& finding) const {
    if (finding.upstream.empty()) return true;  // what runs no release
    return unusual(finding.companions, facts_.manifest).empty() &&
           std::any_of(facts_.manifest.upstreams.begin(), facts_.manifest.upstreams.end(),
                       [&](const UpstreamUse& use) {
                         return use.name == finding.upstream && use.red_pin == finding.version;
                       });
  }

  std::string cite(const ledger::Entry& entry) {
    cited_.insert(entry.digest);
    return short_digest(entry.digest);
  }

  Json verdict_row(const CurrentVerdict& one) {
    std::string question = one.question_text();
    const std::string upstream = one.run.pin.upstream();
    if (facts_.manifest.upstreams.size() > 1 && !upstream.empty()) question += " of " + upstream;
    std::string sentinel = report::code_span(one.outcome.text());
    if (!one.run.is_isolated()) sentinel += " (unisolated)";
    return {{"question", question},
            {"device", one.run.machine.value("device", "cpu")},
            {"date", one.run.started.substr(0, 10)},
            {"sentinel", sentinel},
            {"why", stated(one.outcome.why, report::quantities_of(one.entry->record))},
            {"digest", cite(*one.entry)}};
  }

  Json verdicts(const std::vector<CurrentVerdict>& current, Question question) {
    Json rows = Json::array();
    for (const CurrentVerdict& one : current) {
      if (one.question.question == question) rows.push_back(verdict_row(one));
    }
    return rows;
  }

  Json checks(const std::vector<CurrentVerdict>& current) {
    Json rows = Json::array();
    for (const CurrentVerdict& one : current) {
      if (one.question.question != Question::kReproduce) rows.push_back(verdict_row(one));
    }
    return rows;
  }

  Json classes(const std::vector<CurrentVerdict>& current) const {
    std::set<std::string> known;
    for (const CurrentVerdict& one : current) {
      if (one.outcome.sentinel != Sentinel::kBugReproduced) continue;
      known.insert(one.outcome.argument);
      known.merge(classes_shown(one.entry->record));
    }
    Json rows = Json::array();
    for (const std::string& name : facts_.manifest.classes_order) {
      if (known.contains(name))
        rows.push_back({{"name", name}, {"meaning", stated(facts_.manifest.classes.at(name), {})}});
    }
    return rows;
  }

  /// The failure classes of a reproduction's red triggers: its verdict names the first of them.
  std::set<std::string> classes_shown(const Record& verdict) const {
    std::set<std::string> names;
    for (const Observation& o : ledger::cited_observations(facts_.record_set, verdict)) {
      if (o.status == CaseStatus::kPresent && o.role == CaseRole::kTrigger && o.counts)
        names.insert(o.failure_class);
    }
    return names;
  }

  /// The states of a release: its failure classes, or the one state that it has.
  std::set<std::string> states_of(const BugState& state, const Record& verdict) const {
    if (state == BugStatus::kUnresolved &&
        has_no_such_code(ledger::cited_observations(facts_.record_set, verdict)))
      return {BugState(BugStatus::kUnsupported).text()};
    std::set<std::string> names = {state.text()};
    if (state == BugStatus::kPresent) names.merge(classes_shown(verdict));
    return names;
  }

  static std::string written(double value) {
    return std::isfinite(value) ? fmt::format("{:.2e}", value) : fmt::format("{}", value);
  }

  Json case_row(const ledger::Entry& entry, const Observation& o) {
    const Measure* m = o.failing();
    if (m == nullptr && !o.measures.empty()) m = &o.measures.front();
    const auto number = [&](double Measure::*member) {
      return m == nullptr ? std::string() : written(m->*member);
    };
    return {{"case", o.case_name},
            {"role", role_name(o.role)},
            {"device", RunContext::from_json(entry.record.predicate().at("context"))
                           .machine.value("device", "cpu")},
            {"seen", o.failure_class.empty() ? case_status_name(o.status)
                                             : report::code_span(o.failure_class)},
            {"error", number(&Measure::got)},
            {"plain", number(&Measure::plain)},
            {"limit", number(&Measure::limit)},
            {"digest", cite(entry)}};
  }

  /// The first red triggers of each class, as many of them all as fit, and the first control of
  /// each reproduction.
  Json cases(const std::vector<CurrentVerdict>& current) {
    Json rows = Json::array();
    for (const CurrentVerdict& one : current) {
      if (one.question.question != Question::kReproduce) continue;
      const std::size_t num_each = std::max<std::size_t>(
          1, kMaxCases / std::max<std::size_t>(1, classes_shown(one.entry->record).size()));
      std::map<std::string, std::size_t> num_red;
      bool has_control = false;
      for (const std::string& digest : cited_by(one.entry->record)) {
        const ledger::Entry* entry = facts_.record_set.find(digest);
        if (entry == nullptr) continue;
        const Observation o = observation_of(entry->record);
        const bool is_red = o.status == CaseStatus::kPresent && o.role == CaseRole::kTrigger;
        const bool is_control = o.status == CaseStatus::kAbsent && o.role == CaseRole::kControl;
        if (is_red && num_red[o.failure_class] < num_each) {
          rows.push_back(case_row(*entry, o));
          ++num_red[o.failure_class];
        } else if (is_control && !has_control) {
          rows.push_back(case_row(*entry, o));
          has_control = true;
        }
      }
    }
    return rows;
  }

  Json window() {
    Json rows = Json::array();
    for (const UpstreamUse& use : facts_.manifest.upstreams) {
      std::map<std::pair<std::string, std::string>, std::pair<std::string, std::string>> lists;
      for (const report::AdvisoryRelease& release :
           advisory_releases(facts_.record_set, facts_.manifest, facts_.pins.upstream(use.name))) {
        for (const report::DeviceState& state : release.states) {
          const ledger::Entry& entry = *facts_.record_set.find(state.digest);
          for (const std::string& name : states_of(state.state, entry.record)) {
            auto& [versions, digests] = lists[{state.device, name}];
            versions += (versions.empty() ? use.name + " " : ", ") + release.version;
            digests += (digests.empty() ? "" : ", ") + cite(entry);
          }
        }
      }
      for (const auto& [key, list] : lists)
        rows.push_back({{"device", key.first},
                        {"state", key.second},
                        {"versions", list.first},
                        {"digests", list.second}});
    }
    return rows;
  }

  Json patches() const {
    Json rows = Json::array();
    for (const BundledPatch& patch : facts_.patches)
      rows.push_back({{"file", patch.file},
                      {"subject", stated(patch.subject, {})},
                      {"upstream", patch.upstream},
                      {"version", patch.version}});
    return rows;
  }

  Json left_out() const {
    Json rows = Json::array();
    for (const LeftOutSeries& one : facts_.left_out)
      rows.push_back({{"upstream", one.upstream}, {"version", one.version}});
    return rows;
  }

  /// What records settled, with the numbers that they state.
  Json settled() {
    Json rows = Json::array();
    for (const ScopeRow& row : facts_.manifest.scope) {
      if (row.verdict != "confirmed" && row.verdict != "refuted") continue;
      std::vector<Quantity> held;
      std::string digests;
      for (const std::string& digest : row.records) {
        const ledger::Entry* entry = facts_.record_set.find(digest);
        if (entry == nullptr) continue;
        for (const Quantity& q : report::quantities_of(entry->record)) held.push_back(q);
        digests += (digests.empty() ? "" : ", ") + cite(*entry);
      }
      if (digests.empty()) continue;
      rows.push_back({{"verdict", row.verdict},
                      {"architecture", row.architecture},
                      {"claim", stated(row.claim, held)},
                      {"digests", digests}});
    }
    return rows;
  }

  Json limits() const {
    Json rows = Json::array();
    for (const ScopeRow& row : facts_.manifest.scope) {
      if (row.verdict == "confirmed" || row.verdict == "refuted") continue;
      std::string verdict = row.verdict;
      std::replace(verdict.begin(), verdict.end(), '_', ' ');
      rows.push_back({{"verdict", verdict},
                      {"architecture", stated(row.architecture, {})},
                      {"claim", stated(row.claim, {})},
                      {"why", stated(row.why, {})}});
    }
    return rows;
  }

  std::vector<std::string> commands(const std::vector<CurrentVerdict>& current) const {
    std::vector<std::string> lines;
    if (facts_.has_script) lines.push_back("python3 reproduce.py");
    std::set<std::string> known;
    for (const CurrentVerdict& one : current) {
      const bool is_validation = one.question.question == Question::kValidate ||
                                 one.question.question == Question::kEquivalence;
      if (one.question.question != Question::kReproduce && !is_validation) continue;
      const Device device{recorded_kind(one.run.machine.value("device", "cpu"))};
      std::string line = fmt::format("./patchbench {} {}", is_validation ? "validate" : "reproduce",
                                     facts_.manifest.slug.str());
      line += fmt::format(" {} --device {}",
                          pin_word(one.run.pin.upstream(), one.run.pin.version()), device.text());
      if (known.insert(line).second) lines.push_back(line);
    }
    for (const BundledPatch& patch : facts_.patches) {
      const std::string folder = patch.file.substr(0, patch.file.rfind('/'));
      const std::string line = fmt::format("git am {}/*.patch  # in a clone of {} at {}", folder,
                                           facts_.pins.upstream(patch.upstream).url, patch.version);
      if (known.insert(line).second) lines.push_back(line);
    }
    lines.push_back("./patchbench ledger verify records.jsonl");
    return lines;
  }

  /// The stack of each reproduction, as its record has it.
  std::string environment(const std::vector<CurrentVerdict>& current) const {
    Json rows = Json::array();
    for (const CurrentVerdict& one : current) {
      if (one.question.question != Question::kReproduce) continue;
      Json row = {{"record", short_digest(one.entry->digest)},
                  {"tool", one.run.tool},
                  {"pin", one.run.pin.json()},
                  {"files", one.run.files},
                  {"environment", one.run.environment},
                  {"sandbox", one.run.sandbox.json()},
                  {"machine", one.run.machine}};
      for (const std::string& digest : cited_by(one.entry->record)) {
        const ledger::Entry* entry = facts_.record_set.find(digest);
        if (entry == nullptr) continue;
        const Json said = observation_of(entry->record).self_reported;
        if (!said.is_object() || !said.contains("versions")) continue;
        row["versions"] = said.at("versions");
        break;
      }
      rows.push_back(std::move(row));
    }
    return rows.dump(2);
  }

  std::vector<const Record*> evidence() const {
    std::vector<const Record*> records;
    std::set<std::string> known;
    const auto add = [&](const std::string& digest) {
      const ledger::Entry* entry = facts_.record_set.find(digest);
      if (entry != nullptr && known.insert(entry->digest).second) records.push_back(&entry->record);
    };
    for (const std::string& digest : cited_) {
      const Record& record = facts_.record_set.find(digest)->record;
      if (record.type() != "verdict") continue;
      // A verdict is recomputed from all that its run saw.
      for (const std::string& observation : cited_by(record)) add(observation);
      add(digest);
    }
    for (const std::string& digest : cited_) add(digest);
    return records;
  }

  const BundleFacts& facts_;
  std::set<std::string> cited_;
};

}  // namespace

BundleBody bundle_body(const BundleFacts& facts) { return Body(facts).make(); }

}  // namespace patchbench
