#include "status/case_matrix.h"

#include <fmt/format.h>

#include <iostream>
#include <map>
#include <set>

#include "core/finding.h"
#include "core/observation.h"
#include "core/record.h"
#include "ledger/evidence.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench {
namespace {

/// What one version showed on one case, by its newest observation.
struct Shown {
  Made made;
  std::string text;
};
/// (upstream, device) -> case -> version.
using CaseMatrix = std::map<std::pair<std::string, std::string>,
                            std::map<std::string, std::map<std::string, Shown>>>;

/// "absent", "raw_null", "absent (registers 255, tma_loads 8)": what was seen and what the subject
/// counted.
std::string text_of(const Observation& o) {
  const std::string text =
      o.status == CaseStatus::kPresent ? o.failure_class : case_status_name(o.status);
  std::string numbers;
  if (o.self_reported.is_object()) {
    // items() refers to the object: a temporary would be gone before the first step.
    const Json counted = o.self_reported.value("numbers", Json::object());
    for (const auto& [name, value] : counted.items())
      numbers += fmt::format("{}{} {}", numbers.empty() ? "" : ", ", name, number_from(value));
  }
  return numbers.empty() ? text : fmt::format("{} ({})", text, numbers);
}

CaseMatrix read_case_matrix(const Context& context, const std::string& slug) {
  CaseMatrix matrix;
  for (const ledger::Entry& entry : ledger::known(context.ledger, context.root, {slug})) {
    if (entry.record.type() != "observation") continue;
    const Json& p = entry.record.predicate();
    const RunContext run = RunContext::from_json(p.at("context"));
    const Observation o = Observation::from_json(p.at("observation"));
    if (run.slug != slug || o.subject != SubjectKind::kUpstream || !run.edits.empty()) continue;
    Shown& held = matrix[{run.pin.upstream(), run.machine.value("device", "cpu")}][o.case_name]
                        [run.pin.version()];
    if (held.made <= entry.made) held = {entry.made, text_of(o)};
  }
  return matrix;
}

/// The versions that were measured, releases first in their order.
std::vector<std::string> in_order(
    const Context& context, const std::string& upstream,
    const std::map<std::string, std::map<std::string, Shown>>& cases) {
  std::set<std::string> left;
  for (const auto& [name, versions] : cases) {
    for (const auto& [version, shown] : versions) left.insert(version);
  }
  std::vector<std::string> ordered;
  for (const Pin& pin : context.pins().upstream(upstream).releases) {
    if (left.erase(pin.version) > 0) ordered.push_back(pin.version);
  }
  ordered.insert(ordered.end(), left.begin(), left.end());
  return ordered;
}

/// "raw_null 2.2.0-2.15.0 · absent 2.18.0": neighbours that show the same are one range.
std::string ranges(const std::vector<std::string>& order,
                   const std::map<std::string, Shown>& versions) {
  std::string out, held, first, last;
  const auto close = [&] {
    if (held.empty()) return;
    out += (out.empty() ? "" : " · ") + held + " " + (first == last ? first : first + "-" + last);
  };
  for (const std::string& version : order) {
    const auto at = versions.find(version);
    const std::string text = at == versions.end() ? "" : at->second.text;
    if (text != held) {
      close();
      held = text;
      first = version;
    }
    last = version;
  }
  close();
  return out;
}

}  // namespace

void show_case_matrix(const Context& context, const std::string& slug) {
  const Manifest manifest = context.manifest(slug);
  Json documents = Json::array();
  for (const auto& [key, cases] : read_case_matrix(context, slug)) {
    const auto& [upstream, device] = key;
    const std::vector<std::string> order = in_order(context, upstream, cases);
    report::Table table({"case", "seen"});
    Json rows = Json::object();
    for (const Case& item : manifest.cases) {
      const auto at = cases.find(item.name);
      if (at == cases.end()) continue;
      table.add({item.name, ranges(order, at->second)});
      for (const auto& [version, shown] : at->second) rows[item.name][version] = shown.text;
    }
    documents.push_back(
        {{"upstream", upstream}, {"device", device}, {"versions", order}, {"cases", rows}});
    if (!context.json)
      context.out() << upstream << " · " << device << " · " << order.size()
                    << (order.size() == 1 ? " version\n" : " versions\n")
                    << table.render(table_style(context)) << "\n";
  }
  if (context.json) print_json(context, documents);
  if (documents.empty() && !context.json)
    context.out() << slug << ": no record; run patchbench window " << slug << "\n";
}

}  // namespace patchbench
