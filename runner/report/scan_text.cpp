#include "report/scan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/package_list.h"

namespace patchbench::report {
namespace {

constexpr std::size_t kDigestDigits = 12;

std::string place_text(const std::string& file, int line) {
  return file.empty() ? "" : line > 0 ? fmt::format("{}:{}", file, line) : file;
}

/// Why an answer or a place does not fail, for the end of its state.
template <class Passed>
std::string passed_text(const Passed& one) {
  return !one.ignored.empty() ? ", ignored" : one.in_baseline ? ", in the baseline" : "";
}

std::string state_text(const ScanAnswer& one) {
  if (one.state == ScanState::kHit)
    return fmt::format(
        "hit: {} ({}{}){}{}", one.why, one.impact(), one.twin.empty() ? "" : ", " + one.twin_text(),
        one.classes.size() > 1 ? fmt::format(" and {} more", one.classes.size() - 1) : "",
        passed_text(one));
  if (one.state == ScanState::kUnknown) return "unknown" + passed_text(one);
  if (one.state == ScanState::kPresent) return "present, " + one.why;
  if (one.is_patched || !one.archive.empty()) return "not_hit (" + one.why + ")";
  return scan_state_name(one.state);
}

/// Whether an answer needs a sentence: no hit, but for a reason that may change.
bool is_told(const ScanAnswer& one) {
  return one.state == ScanState::kHit || one.state == ScanState::kUnknown ||
         one.state == ScanState::kPresent || one.is_harmless || !one.without.empty();
}

Color color_of(const ScanAnswer& one) {
  if (!passed_text(one).empty()) return Color::kGrey;
  if (one.state == ScanState::kHit) return Color::kRed;
  if (one.state == ScanState::kUnknown) return Color::kYellow;
  return one.state == ScanState::kNotHit ? Color::kGreen : Color::kGrey;
}

/// Answers of several inputs that say the same of one release, and those inputs.
struct Group {
  const ScanAnswer* one = nullptr;
  std::vector<std::string> inputs;
  /// "pyproject.toml", or with "and 3 more".
  std::string inputs_text() const {
    return inputs.size() == 1 ? inputs.front()
                              : fmt::format("{} and {} more", inputs.front(), inputs.size() - 1);
  }
};
/// Hits first where there are several inputs; else in the order of the packs.
std::vector<Group> groups_of(const ScanReport& report) {
  std::vector<Group> groups;
  std::map<std::string, std::size_t> places;
  for (const ScanAnswer& one : report.answers) {
    const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}", one.slug, release_text(one),
                                        state_text(one), one.why, one.ignored);
    const auto [at, is_new] = places.emplace(key, groups.size());
    if (is_new) groups.push_back({.one = &one, .inputs = {}});
    std::vector<std::string>& inputs = groups[at->second].inputs;
    if (inputs.empty() || inputs.back() != one.input) inputs.push_back(one.input);
  }
  const auto rank = [](const Group& group) {
    return group.one->state == ScanState::kHit       ? 0
           : group.one->state == ScanState::kUnknown ? 1
                                                     : 2;
  };
  if (report.inputs.size() > 1)
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const Group& a, const Group& b) { return rank(a) < rank(b); });
  return groups;
}

/// Whether the condition of a pack is met where code was read: "met: train.py:4", "open" with a
/// place of which it cannot be known or without one.
std::string condition_cell(const ScanAnswer& one, const ScanReport& report) {
  if (one.state != ScanState::kHit && one.state != ScanState::kUnknown) return "";
  const CodeSite* open = nullptr;
  for (const CodeSite& site : report.code) {
    if (site.slug != one.slug || !site.ignored.empty() || site.state() == SiteState::kNoGradient)
      continue;
    if (site.is_met()) return "met: " + site.place();
    if (open == nullptr) open = &site;
  }
  return open == nullptr ? "open" : "open: " + open->place();
}

/// The places that are told: all that --code found; of a project's the first of each pack that
/// meets and the first that is open, with the number of the others.
std::vector<CodeSite> told_sites(const ScanReport& report) {
  std::vector<CodeSite> told;
  std::map<std::string, std::pair<std::size_t, int>> firsts;  // with how many others there are
  for (const CodeSite& site : report.code) {
    const auto [at, is_first] = firsts.try_emplace(
        fmt::format("{}\n{}\n{}", site.slug, site_state_name(site.state()), site.ignored),
        told.size(), 0);
    if (site.is_of_project && !is_first) {
      ++at->second.second;
      continue;
    }
    told.push_back(site);
  }
  for (const auto& [key, first] : firsts)
    if (first.second > 0)
      told[first.first].classes.front().text +=
          fmt::format(" (and in {} more places)", first.second);
  return told;
}

/// `is_plain`: the table is all that is printed.
Table table_of(const ScanReport& report, const std::vector<Group>& groups, bool is_plain) {
  const bool has_inputs = report.inputs.size() > 1,
             has_conditions =
                 (report.has_code || report.has_project_code) && !report.answers.empty();
  std::vector<std::string> titles = {"pack", "release", "state", "mitigation"};
  if (has_inputs) titles.emplace_back("input");
  if (has_conditions) titles.emplace_back("condition");
  Table table(titles);
  std::set<std::string> answered;
  for (const Group& group : groups) {
    const ScanAnswer& one = *group.one;
    if (one.state == ScanState::kNotInstalled) continue;
    answered.insert(one.slug);
    std::vector<std::string> cells = {one.slug, release_text(one), state_text(one), one.mitigation};
    if (has_inputs) cells.push_back(group.inputs_text());
    if (has_conditions) cells.push_back(condition_cell(one, report));
    table.add(cells);
    table.color(2, color_of(one));
  }
  if (is_plain)
    for (const UnreadLine& line : unread_lines(report))
      table.add({"", line.text, line.in_baseline ? "unknown, in the baseline" : "unknown", ""});
  for (const CodeSite& site : told_sites(report)) {
    // Of a project the row of its pack has the place.
    if (site.is_of_project && answered.contains(site.slug)) continue;
    table.add({site.slug, site.place(),
               (site.is_met()                            ? "meets: " + site.classes.front().name
                : site.state() == SiteState::kNoGradient ? "no gradient"
                                                         : std::string("unknown")) +
                   passed_text(site),
               ""});
  }
  return table;
}

/// "a", "a and b", "a, b and c".
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

/// The packs of which no input lists a package, and these packages.
struct Unlisted {
  std::set<std::string> packs;
  std::vector<std::string> packages;
};
Unlisted unlisted(const ScanReport& report) {
  std::set<std::string> answered;
  for (const ScanAnswer& one : report.answers)
    if (one.state != ScanState::kNotInstalled) answered.insert(one.slug);
  Unlisted found;
  for (const ScanAnswer& one : report.answers) {
    if (answered.contains(one.slug)) continue;
    found.packs.insert(one.slug);
    if (std::find(found.packages.begin(), found.packages.end(), one.package) ==
        found.packages.end())
      found.packages.push_back(one.package);
  }
  return found;
}

std::string unlisted_paragraph(const ScanReport& report, int width) {
  const Unlisted found = unlisted(report);
  if (found.packs.empty()) return "";
  return paragraph("not listed: ", listed(found.packages), width);
}

/// The line that switches a mitigation on, or what it says instead.
std::string mitigation_text(const ScanAnswer& one) {
  return one.acts ? "PATCHBENCH_MITIGATE=" + one.slug + " python -m patchbench_mitigations train.py"
                  : one.mitigation;
}

/// "met (train.py:4)"; "" where nothing that was read tells.
std::string condition_text(const ScanClass& row) {
  if (row.where.empty()) return "";
  return fmt::format("{} ({})", row.state == ConditionState::kMet ? "met" : "not met", row.where);
}

/// "when", or the packages of which it is not known whether they are there.
std::string when_text(const ScanClass& row) {
  std::string text = row.condition.empty() ? "in every run of this code" : row.condition;
  if (!row.open.empty())
    text += fmt::format(" Needs {}; whether that is installed is not known here.", row.open);
  const std::string state = condition_text(row);
  return text + (state.empty() ? "" : " The condition is " + state + ".");
}

std::string upgrade_cell(const ScanAnswer& one) {
  return one.state == ScanState::kHit ? upgrade_text(one) : "";
}

std::string class_paragraphs(const ScanAnswer& one, int width) {
  std::string text;
  for (const ScanClass& row : one.classes)
    text += paragraph(fmt::format("  {} ({}): ", row.name, row.impact), row.wrong, width) +
            paragraph("    when: ", when_text(row), width) +
            (row.size.empty() ? "" : paragraph("    size: ", row.size, width)) +
            (row.in_baseline ? "    in the baseline\n" : "");
  return text;
}

/// `is_told`: its classes are, of another release.
std::string hit_paragraphs(const ScanAnswer& one, bool is_told, int width) {
  std::string text = paragraph(
      "hit: ",
      fmt::format("{}, {}{}: {}", one.slug, release_text(one),
                  one.line > 0 ? " (" + place_text(one.file, one.line) + ")" : "", one.title),
      width);
  text += is_told ? "  what goes wrong, and when: as above\n" : class_paragraphs(one, width);
  text += paragraph("  right release: ", upgrade_text(one), width);
  text += paragraph("  mitigation: ", mitigation_text(one), width);
  text += paragraph("  record: ",
                    one.record.substr(0, kDigestDigits) +
                        (one.device.empty() ? "" : ", measured on " + one.device),
                    width);
  if (!one.ignored.empty()) text += paragraph("  ignored: ", one.ignored, width);
  return text;
}

/// Why the input is not hit although a verdict says that its release has the bug.
std::string not_hit_paragraphs(const ScanReport& report, int width) {
  std::string text;
  for (const ScanAnswer& one : report.answers) {
    if (one.state == ScanState::kPresent)
      text +=
          paragraph("present: ", fmt::format("{}, {}: {}", one.slug, release_text(one), one.why),
                    width) +
          class_paragraphs(one, width);
    if (is_told(one) && one.state == ScanState::kNotHit)
      text += paragraph(
          "not hit: ", fmt::format("{}, {}: {}", one.slug, release_text(one), one.why), width);
  }
  return text;
}

std::string open_paragraphs(const ScanReport& report, const std::vector<Group>& groups, int width) {
  std::string text;
  for (const Group& group : groups) {
    const ScanAnswer& one = *group.one;
    if (one.state != ScanState::kUnknown) continue;
    text += paragraph("unknown: ", fmt::format("{}, {}: {}", one.slug, release_text(one), one.why),
                      width);
    text += class_paragraphs(one, width);
    if (!one.next.empty()) text += "  " + printable(one.next) + "\n";
    if (!one.ignored.empty()) text += paragraph("  ignored: ", one.ignored, width);
  }
  for (const UnreadLine& line : unread_lines(report))
    text += paragraph("unknown: ", line.text, width);
  for (const CodeSite& site : told_sites(report)) {
    text += paragraph(
        site.state() == SiteState::kUnknown ? "unknown: " : "code: ", site_sentence(site), width);
    if (!site.ignored.empty()) text += paragraph("  ignored: ", site.ignored, width);
  }
  return text;
}

std::string sum_of(const ScanReport& report, int exit_code) {
  int hits = 0, open = static_cast<int>(unread_lines(report).size()), right = 0, ignored = 0,
      present = 0;
  for (const ScanAnswer& one : report.answers) {
    hits += one.state == ScanState::kHit;
    open += one.state == ScanState::kUnknown;
    right += one.state == ScanState::kNotHit;
    present += one.state == ScanState::kPresent;
    ignored += !one.ignored.empty();
  }
  std::string text = fmt::format("{} hit, {} unknown, {} not hit, {} packs not listed", hits, open,
                                 right, unlisted(report).packs.size());
  if (present > 0) text += fmt::format(", {} present and not met", present);
  if (ignored > 0) text += fmt::format(" ({} ignored)", ignored);
  if (report.has_code || report.has_project_code) {
    const auto num = [&](SiteState state) {
      return std::count_if(report.code.begin(), report.code.end(),
                           [&](const CodeSite& site) { return site.state() == state; });
    };
    text += fmt::format("; calls that meet a condition: {}, that cannot be known: {}",
                        num(SiteState::kMeets), num(SiteState::kUnknown));
  }
  return fmt::format("{}; exit {}; verdicts of {}", text, exit_code, report.verdicts_of);
}

/// The worst answer, and what follows from it.
std::string closing_of(const ScanReport& report) {
  const auto first = [&](ScanState state) {
    return std::find_if(report.answers.begin(), report.answers.end(), [&](const ScanAnswer& one) {
      return one.state == state && passed_text(one).empty();
    });
  };
  if (const auto hit = first(ScanState::kHit); hit != report.answers.end()) {
    // An upgrade that cures comes before a mitigation.
    std::string next = report.upgrade_command();
    if (next.empty()) next = report.command();
    return closing(hit->source == "code" ? "The code has a copy with a known bug."
                                         : "A release with a known bug is installed.",
                   next.empty() ? "patchbench show " + hit->slug : next);
  }
  const auto site = std::find_if(report.code.begin(), report.code.end(), [](const CodeSite& one) {
    return one.is_met() && passed_text(one).empty() && !one.is_of_project;
  });
  if (site != report.code.end())
    return closing("The code meets the condition of a known bug.", "patchbench show " + site->slug);
  if (const auto open = first(ScanState::kUnknown); open != report.answers.end())
    return closing("No record tells whether a release is hit.",
                   open->next.empty() ? "patchbench status windows " + open->slug : open->next);
  const bool is_open = std::any_of(report.code.begin(), report.code.end(), [](const CodeSite& one) {
    return one.state() == SiteState::kUnknown && passed_text(one).empty();
  });
  if (report.unread.size() > report.unread_in_baseline.size() || !report.unread_code.empty() ||
      is_open)
    return closing("Something could not be read: whether it is hit is not known.",
                   "patchbench scan --help");
  if (report.asks_nothing())
    return closing("There is no package that a pack asks about.", "patchbench scan --help");
  if (first(ScanState::kPresent) != report.answers.end())
    return closing("A known bug is there, and its condition is not met.", "patchbench scan --help");
  const auto is_found = [](const ScanAnswer& one) {
    return one.state == ScanState::kHit || one.state == ScanState::kUnknown;
  };
  if (!report.code.empty() || !report.unread.empty() ||
      std::any_of(report.answers.begin(), report.answers.end(), is_found))
    return closing("All that was found is ignored, in the baseline, or takes no gradient.",
                   "patchbench scan --help");
  return closing("No release with a known bug was found.", "patchbench job env check");
}

/// A cell or a sentence in Markdown, where a pipe or an angle bracket would be syntax.
std::string escaped_markdown(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (std::string_view("\\`*_[]<>|#!").find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

/// The message of a workflow command; a property's value has ':' and ',' coded, too.
std::string escaped_command(const std::string& text, bool is_property) {
  std::string out;
  for (const char c : printable(text)) {
    const bool is_coded = c == '%' || (is_property && (c == ':' || c == ','));
    out += is_coded ? fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)))
                    : std::string(1, c);
  }
  return out;
}

std::string command_line(const std::string& level, const std::string& file, int line,
                         const std::string& title, const std::string& message) {
  std::string place = file.empty() ? "" : "file=" + escaped_command(file, true) + ",";
  if (line > 0) place += fmt::format("line={},", line);
  return fmt::format("::{} {}title={}::{}\n", level, place, escaped_command(title, true),
                     escaped_command(message, false));
}

}  // namespace

std::string release_text(const ScanAnswer& one) {
  if (one.source == "copy" || one.source == "code")
    return one.package + " (a copy in " + one.file + ")";
  if (one.range.empty()) return one.package + (one.version.empty() ? "" : " " + one.version);
  return fmt::format("{}{}{}", one.package, one.range == kAnyVersion ? "" : " " + one.range,
                     one.version.empty() ? "" : " (" + one.version + " is its newest)");
}

std::string upgrade_text(const ScanAnswer& one) {
  if (one.source == "code") return "an upgrade of " + one.package + " does not reach this copy";
  if (!one.is_cured()) return "no measured release is right";
  if (const std::string right = one.right_release(); !right.empty()) return right;
  std::string text = fmt::format("{} cures {}", one.upgrade.release, listed(one.upgrade.cures));
  if (!one.upgrade.keeps.empty()) text += ", keeps " + listed(one.upgrade.keeps);
  if (!one.upgrade.brings.empty()) text += ", brings " + listed(one.upgrade.brings);
  return text;
}

std::string class_sentences(const ScanAnswer& one) {
  std::string text;
  for (const ScanClass& row : one.classes)
    text +=
        fmt::format("{}{} ({}): {}. When: {}{}{}", text.empty() ? "" : " ", row.name, row.impact,
                    row.wrong, when_text(row), row.size.empty() ? "" : " Size: " + row.size + ".",
                    row.in_baseline ? " In the baseline." : "");
  return text;
}

std::string answer_sentence(const ScanAnswer& one) {
  if (one.state != ScanState::kHit)
    return fmt::format("{}, {}: {}: {}.{}{}", one.slug, release_text(one),
                       scan_state_name(one.state), one.why,
                       one.classes.empty() ? "" : " " + class_sentences(one),
                       one.next.empty() ? "" : " " + one.next);
  return fmt::format("{}, {}: {} Right release: {}. Mitigation: {}. Record {}.", one.slug,
                     release_text(one), class_sentences(one), upgrade_text(one),
                     mitigation_text(one), one.record.substr(0, kDigestDigits));
}

std::vector<UnreadLine> unread_lines(const ScanReport& report) {
  std::vector<UnreadLine> lines;
  for (const std::string& line : report.unread)
    lines.push_back({report.unread_text(line), report.unread_in_baseline.contains(line)});
  for (const std::string& line : report.unread_code)
    lines.push_back({"whether a condition is met by what is not read: " + line, false});
  return lines;
}

std::string site_sentence(const CodeSite& site) {
  std::string text = fmt::format("{}: {}", site.place(), site.text());
  if (!site.is_met()) return text;
  text += fmt::format(" meets the condition of {} ({})", site.slug, site.classes.front().name);
  for (const SiteClass& row : site.classes) {
    if (row.state == SiteState::kNoGradient) text += fmt::format("; {}: {}", row.name, row.text);
  }
  return text;
}

std::string scan_text(const ScanReport& report, int exit_code, const Style& style) {
  const std::vector<Group> groups = groups_of(report);
  const Table table = table_of(report, groups, style.is_plain);
  if (style.is_plain) return table.render(style);
  const int width = style.width;
  std::string text;
  if (table.num_rows() > 0) text += table.render(style) + "\n";
  std::set<std::string> told;
  for (const Group& group : groups) {
    if (group.one->state != ScanState::kHit) continue;
    const bool is_new = told.insert(class_paragraphs(*group.one, width)).second;
    text += hit_paragraphs(*group.one, !is_new, width);
  }
  text += not_hit_paragraphs(report, width) + open_paragraphs(report, groups, width) +
          unlisted_paragraph(report, width);
  for (const std::string& note : report.notes) text += paragraph("note: ", note, width);
  if (!report.command().empty() && !report.has_mitigations)
    text += paragraph("note: ",
                      "patchbench-mitigations is not among these packages: pip takes its wheel, or "
                      "mitigations/ of a clone",
                      width);
  return text + "\n" + paragraph("", sum_of(report, exit_code), width) + closing_of(report);
}

std::string scan_markdown(const ScanReport& report, int exit_code) {
  std::string text = "## patchbench scan\n\n" + escaped_markdown(sum_of(report, exit_code)) + "\n";
  if (!report.answers.empty())
    text += "\n| pack | release | state | right release | mitigation |\n|---|---|---|---|---|\n";
  for (const ScanAnswer& one : report.answers) {
    if (one.state == ScanState::kNotInstalled) continue;
    text += "|";
    for (const std::string& cell :
         {one.slug, release_text(one), state_text(one), upgrade_cell(one), one.mitigation})
      text += " " + escaped_markdown(cell) + " |";
    text += "\n";
  }
  for (const ScanAnswer& one : report.answers) {
    if (is_told(one)) text += "\n" + escaped_markdown(answer_sentence(one)) + "\n";
  }
  for (const UnreadLine& line : unread_lines(report))
    text += "\nunknown: " + escaped_markdown(line.text) + "\n";
  for (const CodeSite& site : told_sites(report))
    text += "\n" + escaped_markdown(site_sentence(site) + passed_text(site)) + "\n";
  for (const std::string& note : report.notes) text += "\nnote: " + escaped_markdown(note) + "\n";
  return text;
}

std::string scan_github(const ScanReport& report) {
  std::string text;
  for (const ScanAnswer& one : report.answers) {
    const bool is_present = one.state == ScanState::kPresent;
    if (one.state != ScanState::kHit && one.state != ScanState::kUnknown && !is_present) continue;
    const std::string level = is_present || !passed_text(one).empty() ? "notice"
                              : one.state == ScanState::kHit          ? "error"
                                                                      : "warning";
    text += command_line(level, one.file, one.line, one.id(), answer_sentence(one));
  }
  for (const UnreadLine& line : unread_lines(report))
    text += command_line(line.in_baseline ? "notice" : "warning", "", 0, "PATCHBENCH-unread",
                         line.text);
  for (const CodeSite& site : told_sites(report)) {
    const bool is_passed =
        !passed_text(site).empty() || site.state() == SiteState::kNoGradient || site.is_of_project;
    text += command_line(is_passed       ? "notice"
                         : site.is_met() ? "error"
                                         : "warning",
                         site.file, site.line, site.slug, site_sentence(site));
  }
  for (const std::string& note : report.notes)
    text += command_line("warning", "", 0, "PATCHBENCH-note", note);
  return text;
}

}  // namespace patchbench::report
