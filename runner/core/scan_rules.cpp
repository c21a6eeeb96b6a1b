#include "core/scan_rules.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/slug.h"
#include "core/version_range.h"

namespace patchbench {
namespace {

/// Names in an array of objects under `key`, refusing one that stands outside of `known`.
void need_known(const Json& names, const std::string& pointer, const std::set<std::string>& known,
                const std::string& kind, const RefuseManifest& refuse) {
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i];
    if (known.contains(name)) continue;
    refuse(pointer + "/" + std::to_string(i),
           "no " + kind + " \"" + shown(name) + "\" in this manifest" +
               did_you_mean(shown(name), {known.begin(), known.end()}));
  }
}

void check_values(const Json& rows, const std::string& pointer, const RefuseManifest& refuse) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].contains("values") && rows[i].contains("unless"))
      refuse(pointer + "/" + std::to_string(i), "has values or unless, never both");
  }
}

}  // namespace

bool Requirement::is_for(const std::string& upstream_name, const std::string& failure_class) const {
  return upstream == upstream_name &&
         (classes.empty() ||
          std::find(classes.begin(), classes.end(), failure_class) != classes.end());
}

std::set<std::string> row_names(const Json& rows) {
  std::set<std::string> names;
  for (const Json& row : rows) names.insert(row.at("name").get<std::string>());
  return names;
}

const std::vector<std::string>& impact_names() {
  static const std::vector<std::string> names = {
      "silent_wrong", "memory_corruption", "crash", "memory", "speed", "claim"};
  return names;
}

const std::vector<std::string>& failing_impacts() {
  static const std::vector<std::string> names = {"silent_wrong", "memory_corruption", "crash"};
  return names;
}

std::vector<Requirement> requirements_from(const Json& document, const RefuseManifest& refuse) {
  std::vector<Requirement> found;
  const Json rows = document.value("requires", Json::array());
  const std::set<std::string> upstreams = row_names(document.at("upstreams")),
                              classes = row_names(document.at("classes"));
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string pointer = "/requires/" + std::to_string(i);
    Requirement row{rows[i].at("upstream"),
                    rows[i].value("classes", std::vector<std::string>()),
                    {},
                    rows[i].at("why")};
    if (!upstreams.contains(row.upstream))
      refuse(pointer + "/upstream",
             "no upstream \"" + shown(row.upstream) + "\" in this manifest" +
                 did_you_mean(shown(row.upstream), {upstreams.begin(), upstreams.end()}));
    need_known(row.classes, pointer + "/classes", classes, "class", refuse);
    const Json& any_of = rows[i].at("any_of");
    for (size_t k = 0; k < any_of.size(); ++k) {
      row.any_of.push_back({any_of[k].at("package"), any_of[k].value("versions", "")});
      if (!row.any_of.back().versions.empty() && !is_version_range(row.any_of.back().versions))
        refuse(pointer + "/any_of/" + std::to_string(k) + "/versions",
               "must be comparisons with final releases, as >=0.19.0,<0.20");
    }
    found.push_back(std::move(row));
  }
  return found;
}

std::vector<CodeRule> code_rules_from(const Json& trigger, const std::string& pointer,
                                      const std::set<std::string>& upstreams,
                                      const RefuseManifest& refuse) {
  std::vector<CodeRule> found;
  const Json rows = trigger.value("code", Json::array());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string here = pointer + "/code/" + std::to_string(i);
    const bool has_calls = rows[i].contains("calls");
    if (has_calls == rows[i].contains("keys")) refuse(here, "has calls or keys, one of the two");
    for (const char* key : {"arguments", "needs_gradient"}) {
      if (!has_calls && rows[i].contains(key)) refuse(here, std::string(key) + ": only of calls");
    }
    for (const char* key : {"arguments", "keys"})
      check_values(rows[i].value(key, Json::array()), here + "/" + key, refuse);
    need_known(rows[i].value("rules_out", Json::array()), here + "/rules_out", upstreams,
               "upstream", refuse);
    found.push_back({rows[i].value("calls", std::vector<std::string>()),
                     rows[i].value("arguments", Json::array()),
                     rows[i].value("keys", Json::array()), rows[i].value("needs_gradient", false),
                     rows[i].value("rules_out", std::vector<std::string>())});
  }
  return found;
}

}  // namespace patchbench
