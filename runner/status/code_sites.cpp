#include "status/code_sites.h"

#include <map>
#include <sstream>

#include "core/error.h"
#include "core/fields.h"

namespace patchbench {
namespace {

const std::map<std::string, SiteState> kSiteStates = {{"met", SiteState::kMeets},
                                                      {"unknown", SiteState::kUnknown},
                                                      {"no_gradient", SiteState::kNoGradient}};

/// Rows of one place follow one another. Its own is the first class that is met, else the first of
/// which it cannot be known.
void add_site(std::vector<CodeSite>& sites, CodeSite site, SiteClass said) {
  CodeSite* last = sites.empty() ? nullptr : &sites.back();
  if (last == nullptr || last->slug != site.slug || last->place() != site.place()) {
    site.classes = {std::move(said)};
    sites.push_back(std::move(site));
  } else if (said.state < last->state()) {
    last->classes.insert(last->classes.begin(), std::move(said));
  } else {
    last->classes.push_back(std::move(said));
  }
}

}  // namespace

Json code_rules_json(const std::vector<Manifest>& packs) {
  Json rules = Json::array();
  for (const Manifest& pack : packs) {
    for (const Trigger& trigger : pack.triggers) {
      for (const CodeRule& rule : trigger.code)
        rules.push_back({{"slug", pack.slug.str()},
                         {"class", trigger.failure_class},
                         {"calls", rule.calls},
                         {"arguments", rule.arguments},
                         {"keys", rule.keys},
                         {"needs_gradient", rule.needs_gradient},
                         {"rules_out", rule.rules_out}});
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
    if (row.contains("ignore")) {
      report.comments.push_back({fields.text("place"), fields.text("ignore")});
      continue;
    }
    if (row.contains("model")) {
      report.models.push_back({.classes = fields.texts("model"),
                               .place = fields.text("place"),
                               .is_named = fields.boolean("is_named")});
      continue;
    }
    if (row.contains("other_loss")) {
      report.other_losses.push_back(fields.text("place") + ": " + fields.text("other_loss"));
      continue;
    }
    CodeSite site{.slug = fields.text("slug"), .file = fields.text("file")};
    site.line = static_cast<int>(fields.count("line", 1 << 30));
    const std::string state = fields.text("state"), failure_class = fields.text("class");
    const std::string text = fields.text("text");
    const std::vector<std::string> upstreams = fields.texts("upstreams");
    fields.finish();
    if (state == "not_met") {
      if (!is_of_project)
        report.ruled_out.push_back({site.slug, failure_class, site.place(), upstreams});
      continue;
    }
    if (!kSiteStates.contains(state)) fields.fail("unknown state " + state);
    SiteClass said{
        .name = failure_class, .impact = "", .state = kSiteStates.at(state), .text = text};
    for (const Manifest& pack : packs) {
      if (pack.slug.str() == site.slug) said.impact = pack.impact_of(failure_class);
    }
    site.is_of_project = is_of_project;
    add_site(report.code, std::move(site), std::move(said));
  }
  if (!is_whole)
    throw Error(ErrorCode::kInternal, "--code: the reader of Python code ended before its end");
}

}  // namespace patchbench
