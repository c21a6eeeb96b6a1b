#pragma once
#include <string>
#include <vector>

#include "core/scan_report.h"
#include "report/table.h"

namespace patchbench::report {

/// The answers for people: a table, then what each hit means and what to do, what is unknown, what
/// is ignored, and the day of the verdicts. In the plain style the table alone.
std::string scan_text(const ScanReport& report, int exit_code, const Style& style);

/// The same for a page or a pull request, in GitHub's Markdown.
std::string scan_markdown(const ScanReport& report, int exit_code);

/// Workflow commands of GitHub Actions: an error for each hit, a warning for what is unknown, a
/// notice for what is ignored.
std::string scan_github(const ScanReport& report);

/// "liger-kernel 0.8.0", "megatron-core (a copy in /srv/x)".
std::string release_text(const ScanAnswer& answer);
/// Every failure class of an answer, the worst first, with its impact and its condition.
std::string class_sentences(const ScanAnswer& answer);
/// Of a hit: "0.8.2", "0.8.2 cures a and brings b", "no measured release is right".
std::string upgrade_text(const ScanAnswer& answer);
/// One sentence for a hit, an unknown answer or a place in code.
std::string answer_sentence(const ScanAnswer& answer);
std::string site_sentence(const CodeSite& site);
/// What was not read, and what is therefore not known.
struct UnreadLine {
  std::string text;
  bool in_baseline = false;
};
std::vector<UnreadLine> unread_lines(const ScanReport& report);

}  // namespace patchbench::report
