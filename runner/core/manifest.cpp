#include "core/manifest.h"

#include <algorithm>
#include <utility>

#include "core/day.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/judged.h"
#include "core/scenario.h"

namespace patchbench {
namespace {

constexpr const char* kRoles[] = {"trigger", "silent", "control", "survey", "code", "drawn"};

/// Builds the parts of a Manifest from a document that the schema has passed, and holds what a
/// schema cannot say.
class Builder {
 public:
  Builder(const Json& document, const std::string& path, const JsonLines& lines)
      : document_(document), path_(path), lines_(lines) {}

  Manifest build() {
    manifest_.slug = Slug(word("/slug"));
    manifest_.number = document_.at("number").get<int>();
    manifest_.title = document_.at("title");
    manifest_.kind = document_.at("kind");
    read_upstreams();
    read_classes();
    read_cases();
    manifest_.bounds = document_.value("bounds", Json::object());
    manifest_.environments = document_.value("environments", Json::array());
    manifest_.subjects = document_.at("subjects").get<std::vector<std::string>>();
    read_waivers();
    manifest_.waived_arguments = document_.value("waived_arguments", manifest_.waived_arguments);
    for (const Json& row : document_.value("waived_lines", Json::array()))
      manifest_.waived_lines.push_back({row.at("blob"), row.at("line"), row.at("reason")});
    for (const Json& row : document_.value("waived_regions", Json::array()))
      manifest_.waived_regions.push_back(
          {row.at("region"), row.value("subjects", std::vector<std::string>()),
           row.value("devices", std::vector<std::string>()), row.at("reason")});
    read_scope();
    check_bounds();
    check_runnable();
    read_mitigation();
    read_exploration();
    read_scenarios();
    read_triggers();
    read_impacts();
    check_filing();
    check_day("/lifecycle/review_on");
    manifest_.filing = document_.at("filing");
    manifest_.lifecycle = document_.at("lifecycle");
    return std::move(manifest_);
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, const std::string& reason) const {
    fail_at(path_, lines_, pointer, reason);
  }

  const Json& at(const std::string& pointer) const {
    return document_.at(Json::json_pointer(pointer));
  }

  std::string word(const std::string& pointer) const {
    const std::string text = at(pointer);
    try {
      return Slug(text).str();
    } catch (const Error&) {
      fail(pointer, "must be lower-case words of letters and digits joined by \"_\"");
    }
  }

  void hex64(const std::string& pointer) const {
    if (!is_hex(at(pointer).get<std::string>(), 64))
      fail(pointer, "must be 64 lower-case hex digits");
  }

  void check_day(const std::string& pointer) const {
    const std::string text = at(pointer);
    for (size_t i = 0; i < text.size(); ++i) {
      const bool is_dash = i == 4 || i == 7;
      if (is_dash ? text[i] != '-' : text[i] < '0' || text[i] > '9')
        fail(pointer, "must be a day, YYYY-MM-DD");
    }
  }

  void check_path(const std::string& file, const std::string& pointer) const {
    if (file.starts_with('/') || ("/" + file + "/").find("/../") != std::string::npos)
      fail(pointer, "must be a path below the package root");
  }

  static std::string item(const std::string& array, size_t index) {
    return array + "/" + std::to_string(index);
  }

  void read_upstreams() {
    std::set<std::string> known;
    const Json& rows = document_.at("upstreams");
    for (size_t i = 0; i < rows.size(); ++i) {
      UpstreamUse use{rows[i].at("name"),
                      rows[i].at("red_pin"),
                      rows[i].at("files").get<std::vector<std::string>>(),
                      rows[i].value("from_environment", false),
                      rows[i].value("stands_alone", false),
                      rows[i].value("functions", std::map<std::string, std::vector<std::string>>()),
                      rows[i].value("not_python", ""),
                      rows[i].value("code_words", std::vector<std::string>())};
      const std::string pointer = item("/upstreams", i);
      if (!known.insert(use.name).second) fail(pointer + "/name", "this upstream stands twice");
      for (size_t k = 0; k < use.files.size(); ++k)
        check_path(use.files[k], item(pointer + "/files", k));
      for (const auto& [file, names] : use.functions) check_path(file, pointer + "/functions");
      manifest_.upstreams.push_back(std::move(use));
    }
  }

  void read_classes() {
    const Json& rows = document_.at("classes");
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string pointer = item("/classes", i) + "/name";
      const std::string name = word(pointer);
      if (!manifest_.classes.emplace(name, rows[i].at("meaning")).second)
        fail(pointer, "this class stands twice");
      manifest_.classes_order.push_back(name);
    }
  }

  void read_cases() {
    check_usual();
    const Json rows = with_whole_cases(document_).at("cases");
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string pointer = item("/cases", i) + "/name";
      const std::string name = word(pointer);
      if (manifest_.find_case(name) != nullptr) fail(pointer, "this case stands twice");
      manifest_.cases.push_back(
          {name, role_from(rows[i].at("role").get<std::string>()), rows[i].at("axes"),
           rows[i].at("judged_on").get<std::vector<std::string>>(),
           rows[i].value("subjects", std::vector<std::string>()),
           rows[i].value("upstream", std::string()), "", rows[i].value("isolated", false)});
      if (rows[i].contains("upstream")) need_upstream(item("/cases", i) + "/upstream");
    }
  }

  /// A case names only what differs, so that each case has one form.
  void check_usual() const {
    const Json usual = document_.value("usual", Json::object());
    const Json& rows = document_.at("cases");
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const auto& [name, value] : rows[i].at("axes").items()) {
        if (usual.contains(name) && usual.at(name) == value)
          fail(item("/cases", i) + "/axes/" + pointer_segment(name),
               "is the usual value: leave it out");
      }
    }
  }

  void need_upstream(const std::string& pointer) const {
    std::vector<std::string> names;
    for (const UpstreamUse& use : manifest_.upstreams) names.push_back(use.name);
    const std::string name = at(pointer);
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail(pointer, "no upstream \"" + shown(name) + "\" in this manifest" +
                        did_you_mean(shown(name), names));
  }

  ClaimTest claim_test(const Json& row, const std::string& pointer) {
    ClaimTest test{word(pointer + "/name"),
                   row.value("upstream", manifest_.upstreams.front().name),
                   row.at("version"),
                   row.at("subject").get<std::string>(),
                   row.at("contrast").get<std::string>(),
                   row.at("expects"),
                   row.at("class")};
    if (row.contains("upstream")) need_upstream(pointer + "/upstream");
    const Json modes = document_.at("mitigation").value("modes", Json::array());
    for (const Subject& subject : {test.subject, test.contrast}) {
      const std::string mode = subject.mode();
      if (!mode.empty() && std::find(modes.begin(), modes.end(), mode) == modes.end())
        fail(pointer, "no mode \"" + shown(mode) + "\" in /mitigation/modes");
    }
    need_class(pointer + "/class", test.failure_class);
    for (const ScopeRow& other : manifest_.scope) {
      if (other.test && other.test->name == test.name)
        fail(pointer + "/name", "this test stands twice");
    }
    return test;
  }

  void need_case(const std::string& name, const std::string& pointer) const {
    if (manifest_.find_case(name) != nullptr) return;
    std::vector<std::string> names;
    for (const Case& known : manifest_.cases) names.push_back(known.name);
    fail(pointer,
         "no case \"" + shown(name) + "\" in this manifest" + did_you_mean(shown(name), names));
  }

  void read_waivers() {
    const Json& rows = document_.at("waivers");
    for (size_t i = 0; i < rows.size(); ++i) {
      Waiver waiver{rows[i].at("cell"), rows[i].at("reason")};
      const auto same = [&](const Waiver& other) { return other.cell == waiver.cell; };
      if (std::any_of(manifest_.waivers.begin(), manifest_.waivers.end(), same)) {
        fail(item("/waivers", i) + "/cell", "this cell is waived twice");
      }
      manifest_.waivers.push_back(std::move(waiver));
    }
  }

  void read_scope() {
    const Json& rows = document_.at("scope");
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string pointer = item("/scope", i);
      ScopeRow row{rows[i].at("claim"),
                   rows[i].at("of"),
                   rows[i].at("architecture"),
                   rows[i].at("verdict"),
                   rows[i].value("cases", std::vector<std::string>()),
                   rows[i].value("records", std::vector<std::string>()),
                   std::nullopt,
                   rows[i].value("why", "")};
      for (size_t k = 0; k < row.cases.size(); ++k)
        need_case(row.cases[k], item(pointer + "/cases", k));
      for (size_t k = 0; k < row.records.size(); ++k) hex64(item(pointer + "/records", k));
      if (row.records.empty() && (row.verdict == "confirmed" || row.verdict == "refuted")) {
        fail(pointer + "/verdict",
             "a claim that is " + row.verdict + " names the records that show it");
      }
      if (rows[i].contains("test")) {
        if (row.cases.empty()) fail(pointer, "a claim that is tested names its cases");
        row.test = claim_test(rows[i].at("test"), pointer + "/test");
      }
      manifest_.scope.push_back(std::move(row));
    }
  }

  void check_bounds() const {
    for (const auto& [name, bound] : manifest_.bounds.items()) {
      const std::string pointer = "/bounds/" + pointer_segment(name);
      need_case(name, pointer);
      if (bound.contains("growth_max"))
        need_case(bound["growth_max"]["over"].get<std::string>(), pointer + "/growth_max/over");
    }
  }

  void check_runnable() const {
    const auto is_trigger = [](const Case& c) { return c.role == CaseRole::kTrigger; };
    if (!manifest_.waived(Column::kRepro)) {
      if (manifest_.cases.empty()) fail("/cases", "no case, and the cell \"repro\" is not waived");
      if (manifest_.subjects.empty())
        fail("/subjects", "no subject, and the cell \"repro\" is not waived");
    }
    if (!manifest_.cases.empty() &&
        std::none_of(manifest_.cases.begin(), manifest_.cases.end(), is_trigger)) {
      fail("/cases", "no case has the role \"trigger\"");
    }
  }

  void read_mitigation() {
    const Json& mitigation = document_.at("mitigation");
    manifest_.mitigation = mitigation;
    const bool is_not_needed = mitigation.contains("not_needed");
    for (const char* key : {"modes", "needs", "exactness", "leaves"}) {
      const bool is_wanted = !is_not_needed && key != std::string_view("leaves");
      if (mitigation.contains(key) ? is_not_needed : is_wanted) {
        fail("/mitigation",
             "needs either \"modes\", \"needs\" and \"exactness\", or \"not_needed\" alone");
      }
    }
    if (!is_not_needed) {
      for (size_t i = 0; i < mitigation.at("modes").size(); ++i) {
        if (word(item("/mitigation/modes", i)) == "auto")
          fail(item("/mitigation/modes", i),
               "is the mode without a name, of the subject mitigated");
      }
      read_left();
      return;
    }
    for (const std::string& name : manifest_.harmless_classes()) need_class("/mitigation", name);
    const size_t num_records = at("/mitigation/not_needed/records").size();
    for (size_t i = 0; i < num_records; ++i) hex64(item("/mitigation/not_needed/records", i));
  }

  void read_left() {
    const Json groups = manifest_.mitigation.value("leaves", Json::array());
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t k = 0; k < groups[i].at("cases").size(); ++k) {
        const std::string pointer = item(item("/mitigation/leaves", i) + "/cases", k);
        const std::string name = at(pointer);
        need_case(name, pointer);
        for (Case& known : manifest_.cases) {
          if (known.name != name) continue;
          if (!known.left.empty()) fail(pointer, "this case is left twice");
          known.left = groups[i].at("why");
        }
      }
    }
  }

  /// What a space takes from one before it.
  const Json& space_like(const std::string& pointer) const {
    const std::string name = at(pointer + "/like");
    for (const SpaceRow& row : manifest_.explore.spaces)
      if (row.body.at("name") == name) return row.body;
    fail(pointer + "/like", "no space \"" + shown(name) + "\" before this one");
  }

  void read_exploration() {
    const Json explore = document_.value("explore", Json::object());
    manifest_.explore.seconds = explore.value("seconds", 0.0);
    manifest_.explore.fixed = explore.value("fixed", manifest_.explore.fixed);
    for (const auto& [name, version] : manifest_.explore.fixed) {
      const auto& uses = manifest_.upstreams;
      if (std::none_of(uses.begin(), uses.end(),
                       [&, of = name](const UpstreamUse& use) { return use.name == of; }))
        fail("/explore/fixed", "no upstream \"" + shown(name) + "\" in this manifest");
    }
    const Json rows = explore.value("spaces", Json::array());
    std::set<std::string> known;
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string pointer = item("/explore/spaces", i);
      if (!known.insert(word(pointer + "/name")).second)
        fail(pointer + "/name", "this space stands twice");
      SpaceRow row;
      row.body = {{"name", rows[i].at("name")}};
      if (rows[i].contains("like")) row.body.update(space_like(pointer));
      row.body["name"] = rows[i].at("name");
      row.body["axes"].update(rows[i].value("axes", Json::object()));
      if (row.body["axes"].empty()) fail(pointer, "needs axes, or a space that it is like");
      for (const char* key : {"most", "relations"})
        if (rows[i].contains(key)) row.body[key] = rows[i].at(key);
      row.count = rows[i].at("count").get<int>();
      row.like = {rows[i].at("name"),
                  CaseRole::kDrawn,
                  Json::object(),
                  rows[i].at("judged_on").get<std::vector<std::string>>(),
                  rows[i].value("subjects", std::vector<std::string>()),
                  rows[i].value("upstream", std::string()),
                  rows[i].value("left", std::string())};
      if (rows[i].contains("upstream")) need_upstream(pointer + "/upstream");
      manifest_.explore.spaces.push_back(std::move(row));
    }
  }

  void read_scenarios() {
    const Json rules = document_.value("scenarios", Json::object());
    manifest_.scenarios.are_drawn = document_.contains("scenarios");
    manifest_.scenarios.overwritten = rules.value("overwritten", manifest_.scenarios.overwritten);
    const Json waived = rules.value("waived", Json::object());
    for (const auto& [name, why] : waived.items()) {
      const auto& known = scenarios();
      manifest_.scenarios.waived[name] =
          why.is_string() ? std::map<std::string, std::string>{{"cpu", why}, {"cuda", why}}
                          : why.get<std::map<std::string, std::string>>();
      if (std::find(known.begin(), known.end(), name) == known.end())
        fail("/scenarios/waived",
             "no scenario \"" + shown(name) + "\"" + did_you_mean(name, known));
    }
  }

  void read_triggers() {
    const Json rows = document_.value("trigger", Json::array());
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string pointer = item("/trigger", i);
      Trigger row{
          rows[i].at("class"),
          rows[i].value("site", ""),
          rows[i].at("words"),
          rows[i].value("rules", std::vector<std::string>()),
          rows[i].value("records", std::vector<std::string>()),
          code_rules_from(rows[i], pointer, row_names(document_.at("upstreams")), refusal())};
      if (const Json size = rows[i].value("size", Json()); size.is_object()) {
        row.size = fmt::format("{} {} instead of {} ({})", size.at("measure").get<std::string>(),
                               size.at("wrong").dump(), size.at("right").dump(),
                               size.at("of").get<std::string>());
        row.size_record = "reports/evidence/" + size.at("record").get<std::string>();
      }
      if (row.rules.empty() != row.records.empty())
        fail(pointer, "rules need the records that show them, and records their rules");
      need_class(pointer + "/class", row.failure_class);
      for (size_t k = 0; k < row.records.size(); ++k) hex64(item(pointer + "/records", k));
      manifest_.triggers.push_back(std::move(row));
    }
  }

  RefuseManifest refusal() const {
    return [this](const std::string& pointer, const std::string& reason) { fail(pointer, reason); };
  }

  void read_impacts() {
    manifest_.requirements = requirements_from(document_, refusal());
    manifest_.impacts =
        document_.value("impact", Json::object()).get<std::map<std::string, std::string>>();
    for (const auto& [name, impact] : manifest_.impacts)
      need_class("/impact/" + pointer_segment(name), name);
  }

  void need_class(const std::string& pointer, const std::string& name) const {
    if (!manifest_.classes.contains(name))
      fail(pointer, "no class \"" + shown(name) + "\" in this manifest" +
                        did_you_mean(shown(name), manifest_.classes_order));
  }

  void check_filing() const {
    const size_t num_others = at("/filing/depends_on").size();
    for (size_t i = 0; i < num_others; ++i) {
      const std::string pointer = item("/filing/depends_on", i);
      if (word(pointer) == manifest_.slug.str()) fail(pointer, "a pack cannot depend on itself");
    }
    if (!at("/filing").contains("main")) return;
    const std::string commit = at("/filing/main/commit");
    if (!is_hex(commit, 40))
      fail("/filing/main/commit", "not the 40 hexadecimal digits of a commit");
    if (!is_day(at("/filing/main/date").get<std::string>()))
      fail("/filing/main/date", "not a day, YYYY-MM-DD");
  }

  const Json& document_;
  const std::string& path_;
  const JsonLines& lines_;
  Manifest manifest_;
};

}  // namespace

std::string role_name(CaseRole role) { return kRoles[static_cast<size_t>(role)]; }

CaseRole role_from(std::string_view name) {
  for (const CaseRole role : {CaseRole::kTrigger, CaseRole::kSilent, CaseRole::kControl,
                              CaseRole::kSurvey, CaseRole::kCode, CaseRole::kDrawn}) {
    if (role_name(role) == name) return role;
  }
  throw Error(ErrorCode::kUsage,
              "no case role \"" + shown(name) + "\"" +
                  did_you_mean(shown(name), {std::begin(kRoles), std::end(kRoles)}));
}

std::vector<std::string> UpstreamUse::code_files() const {
  std::set<std::string> all(files.begin(), files.end());
  for (const auto& [file, names] : functions) all.insert(file);
  return {all.begin(), all.end()};
}

bool Case::counts_on(std::string_view device_kind) const {
  return std::find(judged_on.begin(), judged_on.end(), device_kind) != judged_on.end();
}

bool Case::is_for(const Subject& subject) const {
  const SubjectKind kind = subject.kind();
  if (kind == SubjectKind::kMitigated && !left.empty()) return false;
  const bool is_op = kind == SubjectKind::kOp || kind == SubjectKind::kOpMutant;
  const bool is_model = kind == SubjectKind::kModel || kind == SubjectKind::kModelFixed ||
                        kind == SubjectKind::kModelMutant;
  const std::string word = is_op ? "op" : is_model ? "model" : "upstream";
  return subjects.empty() || std::find(subjects.begin(), subjects.end(), word) != subjects.end();
}

bool Case::runs_on(const UpstreamUse& use) const {
  return upstream.empty() ? !use.stands_alone : upstream == use.name;
}

std::vector<std::string> ScenarioRules::drawn(std::string_view device_kind) const {
  std::vector<std::string> names;
  for (const std::string& name : scenarios()) {
    const auto why = waived.find(name);
    const bool is_waived = why != waived.end() && why->second.contains(std::string(device_kind));
    if (are_drawn && !is_waived && is_scenario_on(name, device_kind)) names.push_back(name);
  }
  return names;
}

std::vector<const SpaceRow*> Exploration::of(const Subject& subject, const UpstreamUse& use,
                                             std::string_view device_kind) const {
  std::vector<const SpaceRow*> chosen;
  for (const SpaceRow& row : spaces) {
    const bool is_of_it = subject.is_in_process() || row.like.runs_on(use);
    if (is_of_it && row.like.is_for(subject) && row.like.counts_on(device_kind))
      chosen.push_back(&row);
  }
  return chosen;
}

bool RegionWaiver::is_for(const Subject& subject, std::string_view device_kind) const {
  const auto holds = [](const std::vector<std::string>& names, std::string_view name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  const Subject named = subject == SubjectKind::kMitigated ? SubjectKind::kMitigated : subject;
  return holds(subjects, named.text()) && holds(devices, device_kind);
}

std::optional<std::string> Manifest::waived(Column column) const {
  for (const Waiver& waiver : waivers) {
    if (waiver.cell == column_name(column)) return waiver.reason;
  }
  return std::nullopt;
}

const Case* Manifest::find_case(std::string_view name) const {
  const auto found =
      std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
  return found == cases.end() ? nullptr : &*found;
}

std::string Manifest::impact_of(const std::string& failure_class) const {
  const auto at = impacts.find(failure_class);
  return at == impacts.end() ? impact_names().front() : at->second;
}

std::vector<std::string> Manifest::worst_first(const std::set<std::string>& names) const {
  const auto rank = [](const std::vector<std::string>& order, const std::string& name) {
    return std::find(order.begin(), order.end(), name) - order.begin();
  };
  std::vector<std::string> sorted(names.begin(), names.end());
  std::sort(sorted.begin(), sorted.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(rank(impact_names(), impact_of(a)), rank(classes_order, a)) <
           std::pair(rank(impact_names(), impact_of(b)), rank(classes_order, b));
  });
  return sorted;
}

std::string Manifest::condition_of(const std::string& failure_class) const {
  for (const Trigger& trigger : triggers) {
    if (trigger.failure_class == failure_class) return trigger.words;
  }
  return "";
}

std::string Manifest::mitigated() const {
  const Json needs = mitigation.value("needs", Json::array());
  if (needs.empty()) return "";
  const std::string first = needs.front();
  return first.substr(0, first.find_first_of("<>=!~ "));
}

const Trigger* Manifest::sized(const std::string& failure_class) const {
  const auto found = std::find_if(triggers.begin(), triggers.end(), [&](const Trigger& one) {
    return one.failure_class == failure_class && !one.size.empty();
  });
  return found == triggers.end() ? nullptr : &*found;
}

std::vector<std::string> Manifest::harmless_classes() const {
  if (!mitigation.contains("not_needed")) return {};
  return mitigation.at("not_needed").value("classes", classes_order);
}

std::vector<std::string> Manifest::modes() const {
  return mitigation.value("modes", std::vector<std::string>());
}

Json with_whole_cases(Json manifest) {
  const auto usual = manifest.find("usual");
  if (usual == manifest.end()) return manifest;
  for (Json& item : manifest.at("cases")) {
    Json axes = *usual;
    for (const auto& [name, value] : item.at("axes").items()) {
      if (value.is_null() && usual->contains(name)) {
        axes.erase(name);
      } else {
        axes[name] = value;
      }
    }
    item["axes"] = std::move(axes);
  }
  manifest.erase("usual");
  return manifest;
}

Manifest parse_manifest(std::string_view text, const std::string& path, std::string_view schema) {
  JsonLines lines;
  const Json document = check_schema(text, path, schema, &lines);
  Manifest manifest = Builder(document, path, lines).build();
  manifest.sha256 = sha256_hex(text);
  manifest.judged = judged_digest(document);
  return manifest;
}

}  // namespace patchbench
