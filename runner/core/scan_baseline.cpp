#include "core/scan_baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/error.h"
#include "core/fields.h"

namespace patchbench {
namespace {

/// What makes an answer the same: all of it but its line, which moves, and the words of its reason.
constexpr std::array kAnswerKeys = {"input",   "slug",  "upstream", "package", "version",
                                    "product", "range", "source",   "file",    "state"};

std::string key_of(FieldReader& fields) {
  Json key = Json::array();
  for (const char* name : kAnswerKeys) key.push_back(fields.text(name));
  return key.dump();
}

/// "open" before "met": how near to being met a condition is.
int nearness_of(const std::string& state) { return state == "met" ? 2 : state == "open" ? 1 : 0; }

/// A place without its line, and what it says of each class.
std::string site_key(FieldReader& fields, const std::string& where) {
  Json key = Json::array();
  for (const char* name : {"slug", "file", "text"}) key.push_back(fields.text(name));
  for (const char* name : {"class", "state"}) {
    for (const Json& row : fields.value("classes"))
      key.push_back(FieldReader(row, where).text(name));
  }
  return key.dump();
}

/// The parts of a former answer.
struct Baseline {
  std::map<std::string, std::map<std::string, int>> answers;  ///< class -> nearness
  std::map<std::string, int> sites;                           ///< how often each is there
  std::set<std::string> unread;
};

Baseline baseline_from(const Json& document, const std::string& file) {
  FieldReader fields(document, file);
  Baseline found;
  for (const Json& row : fields.value("answers")) {
    FieldReader one(row, file + ": an answer");
    const std::string key = key_of(one);
    if (!one.text("ignored").empty()) continue;
    std::map<std::string, int>& classes = found.answers[key];
    for (const Json& named : one.value("classes")) {
      FieldReader of(named, file + ": a class");
      int& nearness = classes[of.text("class")];
      nearness = std::max(nearness, nearness_of(of.text("condition_state")));
    }
  }
  for (const Json& row : fields.value("code")) {
    FieldReader one(row, file + ": a place in code");
    if (one.text("ignored").empty()) ++found.sites[site_key(one, file)];
  }
  for (std::string& line : fields.texts("unread")) found.unread.insert(std::move(line));
  return found;
}

void mark_answer(ScanAnswer& one, const Baseline& baseline) {
  const Json row = answer_json(one);
  FieldReader fields(row, "");
  const auto known = baseline.answers.find(key_of(fields));
  if (known == baseline.answers.end()) return;
  one.in_baseline = true;
  for (ScanClass& of : one.classes) {
    const auto named = known->second.find(of.name);
    of.in_baseline = named != known->second.end() &&
                     named->second >= nearness_of(condition_state_name(of.state));
    one.in_baseline &= of.in_baseline;
  }
}

}  // namespace

void apply_baseline(ScanReport& report, std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  const bool is_answer = document.is_object() && document.value("answers", Json()).is_array() &&
                         document.value("code", Json()).is_array();
  if (!is_answer)
    throw Error(ErrorCode::kUsage,
                file + ": is not an answer of scan; write one with scan --format json > FILE");
  Baseline baseline = baseline_from(document, file);
  for (ScanAnswer& one : report.answers) {
    if (one.state == ScanState::kHit || one.state == ScanState::kUnknown)
      mark_answer(one, baseline);
  }
  for (CodeSite& site : report.code) {
    const Json row = site_json(site);
    FieldReader fields(row, "");
    const auto known = baseline.sites.find(site_key(fields, ""));
    site.in_baseline = known != baseline.sites.end() && known->second > 0;
    if (site.in_baseline) --known->second;
  }
  for (const std::string& line : report.unread) {
    if (baseline.unread.contains(line)) report.unread_in_baseline.insert(line);
  }
  report.has_baseline = true;
}

}  // namespace patchbench
