#include "core/scan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/exit_status.h"

namespace patchbench {
namespace {

constexpr std::array kStateNames = {"hit", "not_hit", "unknown", "not_installed", "present"};
constexpr std::array kSiteNames = {"meets", "cannot_know", "no_gradient"};
constexpr std::array kConditionNames = {"open", "met", "not met"};
constexpr std::size_t kShownDigits = 16;

std::string purl_word(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
    out += is_plain ? std::string(1, c)
                    : fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

bool has_failing(const ScanAnswer& one, const ScanLimits& limits, bool is_open) {
  return std::any_of(one.classes.begin(), one.classes.end(), [&](const ScanClass& row) {
    const bool may_fail =
        !row.in_baseline && (row.state == ConditionState::kMet ||
                             (row.state == ConditionState::kOpen && !limits.needs_met));
    return limits.fail_on.contains(row.impact) && row.open.empty() != is_open && may_fail;
  });
}

bool fails(const ScanAnswer& one, const ScanLimits& limits) {
  return one.state == ScanState::kHit && one.ignored.empty() && has_failing(one, limits, false) &&
         (!limits.only_fixable || one.is_fixable());
}

/// Whether it is not known that nothing fails.
bool is_left_open(const ScanAnswer& one, const ScanLimits& limits) {
  return one.ignored.empty() && ((one.state == ScanState::kUnknown && !one.in_baseline) ||
                                 (one.state == ScanState::kHit && has_failing(one, limits, true)));
}

Json upgrade_json(const Upgrade& one) {
  if (one.release.empty()) return nullptr;
  return {
      {"release", one.release}, {"cures", one.cures}, {"keeps", one.keeps}, {"brings", one.brings}};
}

Json classes_json(const ScanAnswer& one) {
  Json rows = Json::array();
  for (const ScanClass& row : one.classes)
    rows.push_back({{"class", row.name},
                    {"impact", row.impact},
                    {"wrong", row.wrong},
                    {"condition", row.condition},
                    {"open", row.open},
                    {"condition_state", condition_state_name(row.state)},
                    {"condition_at", row.where},
                    {"in_baseline", row.in_baseline},
                    {"size", row.size},
                    {"size_record", row.size_record},
                    {"record", row.record},
                    {"device", row.device}});
  return rows;
}

/// Whether no run of a release meets a failure class: it is right, has other classes alone, or its
/// condition is not met.
bool is_right_for(const ScanAnswer& one, const std::string& failure_class) {
  if (one.state == ScanState::kNotHit) return true;
  return one.state != ScanState::kUnknown &&
         std::none_of(one.classes.begin(), one.classes.end(), [&](const ScanClass& row) {
           return row.name == failure_class && row.state != ConditionState::kNotMet;
         });
}

/// Whether a class of a place in code counts: the packages of an input may say that its pack is
/// right there.
bool counts(const CodeSite& site, const SiteClass& row, const ScanReport& report) {
  if (!site.ignored.empty() || site.in_baseline || row.state == SiteState::kNoGradient)
    return false;
  bool is_known = false, is_right = true;
  for (const ScanAnswer& one : report.answers) {
    if (one.slug != site.slug || one.state == ScanState::kNotInstalled) continue;
    is_known = true;
    is_right &= is_right_for(one, row.name) || !one.ignored.empty();
  }
  return !is_known || !is_right;
}

}  // namespace

std::string scan_state_name(ScanState state) {
  return kStateNames.at(static_cast<std::size_t>(state));
}

std::string condition_state_name(ConditionState state) {
  return kConditionNames.at(static_cast<std::size_t>(state));
}

std::string site_state_name(SiteState state) {
  return kSiteNames.at(static_cast<std::size_t>(state));
}

std::string CodeSite::place() const { return line > 0 ? fmt::format("{}:{}", file, line) : file; }

bool ScanAnswer::is_release() const {
  return !version.empty() && version.find('+') == std::string::npos && source.empty() &&
         range.empty() && files_digest.empty();
}

bool ScanAnswer::is_cured() const {
  return std::find(upgrade.cures.begin(), upgrade.cures.end(), slug) != upgrade.cures.end();
}

std::string ScanAnswer::right_release() const {
  const bool is_right = is_cured() && upgrade.keeps.empty() && upgrade.brings.empty();
  return is_right ? upgrade.release : "";
}

std::string ScanAnswer::id() const { return fmt::format("PATCHBENCH-{:02}-{}", number, upstream); }

std::string ScanAnswer::product() const {
  std::string purl = "pkg:pypi/" + purl_word(package);
  if (!version.empty()) purl += "@" + purl_word(version);
  char separator = '?';
  const auto add = [&](const std::string& name, const std::string& value) {
    if (value.empty()) return;
    purl += separator + ("patchbench_" + name + "=" + value);
    separator = '&';
  };
  // Files that are not the release's own make it another product.
  add("files", files_digest.substr(0, kShownDigits));
  add("without", purl_word(without));
  if (state == ScanState::kPresent) add("condition_not_met", purl_word(worst()->where));
  return purl;
}

std::string ScanAnswer::twin_text() const {
  return twin.empty() ? "" : (is_same_code ? "same code as " : "same functions as ") + twin;
}

std::string ScanReport::command() const {
  std::vector<std::string> slugs;
  std::string text;
  for (const ScanAnswer& one : answers) {
    if (one.state != ScanState::kHit || !one.acts ||
        std::find(slugs.begin(), slugs.end(), one.slug) != slugs.end())
      continue;
    slugs.push_back(one.slug);
    text += (text.empty() ? "" : ",") + one.slug;
  }
  return text.empty()
             ? ""
             : "PATCHBENCH_MITIGATE=" + text + " python -m patchbench_mitigations train.py";
}

std::string ScanReport::upgrade_command() const {
  std::set<std::string> pins;
  for (const ScanAnswer& one : answers) {
    const std::string right = one.state == ScanState::kHit ? one.right_release() : "";
    if (!right.empty() && one.ignored.empty())
      pins.insert(fmt::format(" '{}=={}'", one.package, right));
  }
  return pins.empty() ? "" : fmt::format("pip install{}", fmt::join(pins, ""));
}

bool ScanReport::is_right(const std::string& slug) const {
  bool is_known = false, is_right = true;
  for (const ScanAnswer& one : answers) {
    if (one.slug != slug || one.state == ScanState::kNotInstalled) continue;
    is_known = true;
    is_right &= one.state == ScanState::kNotHit || !one.ignored.empty();
  }
  return is_known && is_right;
}

std::string ScanReport::unread_text(const std::string& line) const {
  return "which package is installed by: " + line +
         (unread_in_baseline.contains(line) ? " (in the baseline)" : "");
}

bool ScanReport::asks_nothing() const {
  return !has_code && unread.empty() &&
         std::all_of(answers.begin(), answers.end(),
                     [](const ScanAnswer& one) { return one.state == ScanState::kNotInstalled; });
}

int scan_exit(const ScanReport& report, const ScanLimits& limits) {
  bool is_hit = false, is_unknown = report.unread.size() > report.unread_in_baseline.size() ||
                                    !report.unread_code.empty() || report.asks_nothing();
  for (const ScanAnswer& one : report.answers) {
    is_hit |= fails(one, limits);
    is_unknown |= is_left_open(one, limits);
  }
  for (const CodeSite& site : report.code) {
    // Whether it can be fixed is known of a package alone.
    const bool is_judged =
        std::any_of(report.answers.begin(), report.answers.end(), [&](const ScanAnswer& one) {
          return one.slug == site.slug && one.state != ScanState::kNotInstalled;
        });
    for (const SiteClass& row : site.classes) {
      if (!counts(site, row, report)) continue;
      if (site.is_of_project) {
        is_unknown |= !is_judged;
        continue;
      }
      const bool is_met = row.state == SiteState::kMeets;
      is_hit |=
          is_met && limits.fail_on.contains(row.impact) && (!limits.only_fixable || !is_judged);
      is_unknown |= !is_met;
    }
  }
  if (is_hit) return kExitNo;
  return is_unknown && !limits.allows_unknown ? kExitNoAnswer : kExitYes;
}

std::string passed_note(const ScanReport& report, const ScanLimits& limits) {
  ScanLimits open = limits;
  open.needs_met = false;
  const auto num =
      std::count_if(report.answers.begin(), report.answers.end(),
                    [&](const ScanAnswer& one) { return fails(one, open) && !fails(one, limits); });
  if (num == 0) return "";
  return fmt::format("{} {}: --fail-on-condition met", num,
                     num == 1 ? "hit, whose condition is not known, does not fail"
                              : "hits, whose conditions are not known, do not fail");
}

Json answer_json(const ScanAnswer& one) {
  return {{"input", one.input},
          {"slug", one.slug},
          {"id", one.id()},
          {"upstream", one.upstream},
          {"package", one.package},
          {"version", one.version},
          {"range", one.range},
          {"source", one.source},
          {"product", one.product()},
          {"state", scan_state_name(one.state)},
          {"why", one.why},
          {"impact", one.impact()},
          {"wrong", one.worst() == nullptr ? "" : one.worst()->wrong},
          {"condition", one.worst() == nullptr ? "" : one.worst()->condition},
          {"classes", classes_json(one)},
          {"right_release", one.right_release()},
          {"upgrade", upgrade_json(one.upgrade)},
          {"mitigation", one.mitigation},
          {"acts", one.acts},
          {"record", one.record},
          {"device", one.device},
          {"next", one.next},
          {"file", one.file},
          {"line", one.line},
          {"same_code_as", one.is_same_code ? one.twin : ""},
          {"same_functions_as", one.twin},
          {"archive", one.archive},
          {"is_patched", one.is_patched},
          {"is_harmless", one.is_harmless},
          {"in_baseline", one.in_baseline},
          {"ignored", one.ignored}};
}

Json site_json(const CodeSite& site) {
  Json classes = Json::array();
  for (const SiteClass& row : site.classes)
    classes.push_back({{"class", row.name},
                       {"impact", row.impact},
                       {"state", site_state_name(row.state)},
                       {"text", row.text}});
  return {{"slug", site.slug},
          {"class", site.classes.front().name},
          {"impact", site.classes.front().impact},
          {"classes", classes},
          {"file", site.file},
          {"line", site.line},
          {"state", site_state_name(site.state())},
          {"text", site.text()},
          {"in_baseline", site.in_baseline},
          {"is_of_project", site.is_of_project},
          {"ignored", site.ignored}};
}

Json scan_json(const ScanReport& report, int exit_code) {
  Json answers = Json::array(), code = Json::array();
  for (const ScanAnswer& one : report.answers) answers.push_back(answer_json(one));
  for (const CodeSite& site : report.code) code.push_back(site_json(site));
  return {{"verdicts_of", report.verdicts_of},
          {"inputs", report.inputs},
          {"answers", answers},
          {"unread", report.unread},
          {"unread_code", report.unread_code},
          {"unread_in_baseline", report.unread_in_baseline},
          {"notes", report.notes},
          {"code", code},
          {"command", report.command()},
          {"is_installed", report.has_mitigations},
          {"exit", exit_code}};
}

}  // namespace patchbench
