#include "status/code_sites.h"

#include <sstream>

#include "core/error.h"
#include "core/fields.h"

namespace patchbench {

Json code_rules_json(const std::vector<Manifest>& packs) {
  Json rules = Json::array();
  for (const Manifest& pack : packs) {
    for (const Trigger& trigger : pack.triggers) {
      for (const CodeRule& rule : trigger.code)
        rules.push_back({{"slug", pack.slug.str()},
                         {"class", trigger.failure_class},
                         {"calls", rule.calls},
                         {"arguments", rule.arguments},
                         {"keys", rule.keys}});
    }
  }
  return rules;
}

void add_code_sites(ScanReport& report, const std::string& printed,
                    const std::vector<Manifest>& packs, bool is_of_project) {
  std::istringstream lines(printed);
  bool is_whole = false;
  for (std::string line; std::getline(lines, line);) {
    const Json row = parse_json(line, "code_rules.py");
    if (row.contains("done")) {
      is_whole = true;
      continue;
    }
    if (row.contains("unread")) {
      report.unread_code.push_back(row.at("unread"));
      continue;
    }
    FieldReader fields(row, "code_rules.py");
    CodeSite site{.slug = fields.text("slug"), .failure_class = fields.text("class")};
    site.file = fields.text("file");
    site.line = static_cast<int>(fields.count("line", 1 << 30));
    site.is_met = fields.boolean("is_met");
    site.text = fields.text("text");
    fields.finish();
    for (const Manifest& pack : packs) {
      if (pack.slug.str() == site.slug) site.impact = pack.impact_of(site.failure_class);
    }
    site.is_of_project = is_of_project;
    report.code.push_back(std::move(site));
  }
  if (!is_whole)
    throw Error(ErrorCode::kInternal, "--code: the reader of Python code ended before its end");
}

}  // namespace patchbench
