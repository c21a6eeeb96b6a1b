#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "report/table.h"
#include "run/window_run.h"
#include "status/agreement.h"
#include "status/case_matrix.h"
#include "status/pack_records.h"
#include "status/status_page.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

struct StatusOptions {
  std::string slug, by = "pack", since, day;
  bool markdown = false, summary = false, windows = false;
};

/// "3 d", "5 h" since an ISO time.
std::string age_of(const std::string& started) {
  std::tm parts{};
  std::istringstream in(started);
  in >> std::get_time(&parts, "%Y-%m-%dT%H:%M:%SZ");
  if (in.fail()) return started;
  const auto seconds = std::difftime(std::time(nullptr), timegm(&parts));
  return seconds < 7200     ? fmt::format("{:.0f} min", seconds / 60)
         : seconds < 172800 ? fmt::format("{:.0f} h", seconds / 3600)
                            : fmt::format("{:.0f} d", seconds / 86400);
}

/// Ages on a terminal, dates in a file.
std::string when(const std::string& started) {
  return ::isatty(STDOUT_FILENO) == 1 ? age_of(started) : started.substr(0, 10);
}

Json agreement_json(const std::vector<Agreement>& agreements) {
  Json list = Json::array();
  for (const Agreement& vote : agreements)
    list.push_back({{"sentinel", vote.sentinel}, {"device", vote.device}, {"runs", vote.runs}});
  return list;
}

VerdictKey red_pin_of(const Manifest& pack, const UpstreamUse& use) {
  return {pack.slug.str(), use.name, use.red_pin, "", "reproduce"};
}

/// What else holds at the red pin: "FIX_VALIDATED cpu, H200 with tilelang 0.1.15 · OP_VALIDATED
/// cpu".
std::string holds_text(const PackRecords& verdicts, const Manifest& pack, const UpstreamUse& use) {
  std::map<std::string, std::vector<std::string>> devices_of;
  for (const auto& [key, devices] : verdicts.verdict_index.by_key()) {
    const bool runs_no_release = key.version == "-" && &use == &pack.upstreams.front();
    const bool is_here =
        runs_no_release || (key.upstream == use.name && key.version == use.red_pin);
    const bool is_quorum = key.question.is(Question::kReproduce) && key.companions.empty();
    if (key.slug != pack.slug.str() || !is_here || is_quorum) continue;
    // " with tilelang 0.1.15", where that is not the usual one
    const std::string companions = version_text({"", "", "", key.companions, ""});
    for (const auto& [device, cell] : devices) {
      const Finding* finding = cell.newest();
      if (finding == nullptr) continue;
      const bool is_of_another =
          is_of_bug(finding->outcome()) && !key.question.is(Question::kReproduce);
      std::vector<std::string>& list =
          devices_of[(is_of_another ? key.question.text() + ": " : "") +
                     marked(verdicts, *finding)];
      const std::string where = short_device(device) + companions;
      if (std::find(list.begin(), list.end(), where) == list.end()) list.push_back(where);
    }
  }
  std::string text;
  for (const auto& [sentinel, list] : devices_of)
    text += fmt::format("{}{} {}", text.empty() ? "" : " · ", sentinel, fmt::join(list, ", "));
  return text;
}

/// Tiers with the same window share a line.
std::map<std::string, std::string> windows_by_text(const std::vector<DeviceClassWindow>& windows,
                                                   const UpstreamUse& use) {
  std::map<std::string, std::string> tiers_of;
  for (const DeviceClassWindow& window : windows) {
    if (window.upstream != use.name) continue;
    std::string& tiers = tiers_of[window_text(window)];
    tiers += (tiers.empty() ? "" : ", ") + short_device(window.device);
  }
  return tiers_of;
}

std::string newest_run(const VerdictIndex& verdict_index, const Manifest& pack,
                       const UpstreamUse& use) {
  std::string newest;
  for (const auto& [key, devices] : verdict_index.by_key()) {
    if (key.slug != pack.slug.str() || key.upstream != use.name) continue;
    for (const auto& [device, cell] : devices) {
      if (const Finding* finding = cell.newest()) newest = std::max(newest, finding->made.date);
    }
  }
  return newest;
}

/// Green or red where every run says the same, yellow where they differ.
report::Color color_of(const std::vector<Agreement>& agreements) {
  std::set<report::Color> colors;
  for (const Agreement& vote : agreements)
    colors.insert(color_of(Outcome::from_text(vote.sentinel)));
  return colors.size() == 1 ? *colors.begin() : report::Color::kYellow;
}

/// What is known of one pack on one upstream, as lines under a heading.
std::string block(const PackRecords& verdicts, const Manifest& pack, const UpstreamUse& use,
                  const report::Style& style) {
  constexpr const char* kLead = "   {:<10}";
  const auto line = [&](const char* what, const std::string& text) {
    return text.empty() ? "" : report::paragraph(fmt::format(fmt::runtime(kLead), what), text);
  };
  const VerdictKey red = red_pin_of(pack, use);
  const std::string newest = newest_run(verdicts.verdict_index, pack, use);
  const std::vector<Agreement> agreements = quorum_of(verdicts.verdict_index, red);
  std::string out =
      report::colored(line("tested", agreement_text(agreements)), color_of(agreements), style);
  const char* what = "window";
  for (const auto& [text, tiers] : windows_by_text(windows_of(verdicts, pack), use)) {
    out += line(what, tiers + ": " + text);
    what = "";
  }
  out += line("holds", holds_text(verdicts, pack, use));
  what = "disagree";
  for (const std::string& text : disagreement_lines(verdicts, pack, use)) {
    out += line(what, text);
    what = "";
  }
  const std::string unsigned_text =
      agreement_text(unsigned_agreements(verdicts.verdict_index, red));
  out += line("apart",
              unsigned_text.empty() ? "" : unsigned_text + ": unsigned imports, never counted");
  out += line("newest", newest.empty() ? "" : when(newest));
  return out.empty() ? "   no record\n" : out;
}

void print_overview(const Context& context, const PackRecords& verdicts,
                    const StatusOptions& options) {
  if (options.by == "pack") {
    for (const Manifest& pack : verdicts.packs) {
      for (const UpstreamUse& use : pack.upstreams) {
        if (use.from_environment) continue;
        context.out() << fmt::format("{} · {} {}\n", pack.slug.str(), use.name,
                                     short_version(use.red_pin))
                      << block(verdicts, pack, use, table_style(context)) << "\n";
      }
    }
    return;
  }
  for (const auto& [name, upstream] : verdicts.pins.all()) {
    std::string out;
    for (const Manifest& pack : verdicts.packs) {
      for (const UpstreamUse& use : pack.upstreams) {
        if (use.name != name || use.from_environment) continue;
        out +=
            fmt::format("{} · tested release {}\n", pack.slug.str(), short_version(use.red_pin)) +
            block(verdicts, pack, use, table_style(context));
      }
    }
    if (out.empty()) continue;
    const std::string newest =
        upstream.releases.empty() ? "none" : upstream.releases.back().version;
    context.out() << fmt::format("{} · {} locked releases, newest {} · {}\n{}\n", name,
                                 upstream.releases.size(), newest, upstream.url, out);
  }
}

/// Neighbouring releases of which the same was found are one row.
struct Run {
  std::string question, device, first, last, verdict, started;
  int num = 0;
  report::Color color = report::Color::kNone;
};

std::vector<Run> runs_of(const PackRecords& verdicts, const Manifest& pack,
                         const UpstreamUse& use) {
  std::map<std::string, std::size_t> position;
  for (const Pin& pin : verdicts.pins.upstream(use.name).releases)
    position.insert({pin.version, position.size()});
  using Key = std::tuple<std::string, std::string, std::size_t, std::string>;
  std::map<Key, Run> rows;  // question, device, position, version
  for (const auto& [key, devices] : verdicts.verdict_index.by_key()) {
    const bool runs_no_release = key.version == "-" && &use == &pack.upstreams.front();
    if (key.slug != pack.slug.str() || (key.upstream != use.name && !runs_no_release)) continue;
    const auto at = key.companions.empty() ? position.find(key.version) : position.end();
    const std::size_t index = at == position.end() ? position.size() : at->second;
    for (const auto& [device, cell] : devices) {
      const Finding* finding = cell.newest() != nullptr ? cell.newest() : cell.newest_unsigned();
      rows[{key.question.text(), device, index, version_text(key)}] = {
          key.question.text(), device, version_text(key),           "", marked(verdicts, *finding),
          finding->started,    1,      color_of(finding->outcome())};
    }
  }
  std::vector<Run> runs;
  for (const auto& [key, row] : rows) {
    const bool is_release = std::get<2>(key) < position.size();
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (is_release && last != nullptr && last->question == row.question &&
        last->device == row.device && last->verdict == row.verdict &&
        position.contains(last->first)) {
      last->last = row.first;
      last->started = std::min(last->started, row.started);
      ++last->num;
    } else {
      runs.push_back(row);
    }
  }
  return runs;
}

void print_details(const Context& context, const PackRecords& verdicts, const Manifest& pack) {
  for (const UpstreamUse& use : pack.upstreams) {
    if (use.from_environment) continue;
    context.out() << fmt::format("{} · {} {}\n", pack.slug.str(), use.name, use.red_pin)
                  << block(verdicts, pack, use, table_style(context));
    report::Table table({"question", "device", "version", "verdict", "oldest"});
    for (const Run& run : runs_of(verdicts, pack, use)) {
      // A commit's first twelve digits name it well enough here.
      const std::string first = run.first.starts_with("git:") ? run.first.substr(0, 16) : run.first;
      table.add({run.question, short_device(run.device),
                 run.num == 1 ? first : fmt::format("{}-{} ({})", first, run.last, run.num),
                 run.verdict, when(run.started)});
      table.color(3, run.color);
    }
    if (table.num_rows() > 0) context.out() << table.render(table_style(context));
    context.out() << "\n";
  }
}

void print_windows(const Context& context, const PackRecords& verdicts) {
  for (const Manifest& pack : verdicts.packs) {
    const std::vector<DeviceClassWindow> windows = windows_of(verdicts, pack);
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      context.out() << render_windows(verdicts, pack, use, windows, table_style(context)) << "\n";
    }
  }
}

Json cells_json(const VerdictIndex& verdict_index) {
  Json rows = Json::array();
  for (const auto& [key, devices] : verdict_index.by_key()) {
    for (const auto& [device, cell] : devices) {
      for (const Finding* finding : {cell.newest(), cell.newest_unsigned()}) {
        if (finding == nullptr) continue;
        rows.push_back({{"slug", key.slug},
                        {"upstream", key.upstream},
                        {"version", version_text(key)},
                        {"question", key.question.text()},
                        {"device", device},
                        {"sentinel", finding->sentinel},
                        {"started", finding->started},
                        {"is_isolated", finding->is_isolated},
                        {"is_counted", finding->is_counted},
                        {"verdict", finding->digest}});
      }
    }
  }
  return rows;
}

Json packs_json(const PackRecords& verdicts) {
  Json packs = Json::array();
  for (const Manifest& pack : verdicts.packs) {
    const std::vector<DeviceClassWindow> windows = windows_of(verdicts, pack);
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      const VerdictKey red = red_pin_of(pack, use);
      Json tiers = Json::array(), disagreements = Json::array();
      for (const DeviceClassWindow& window : windows) {
        if (window.upstream == use.name) tiers.push_back(window_json(window));
      }
      for (const Disagreement& one : disagreements_of(verdicts.verdict_index)) {
        if (one.key.slug == pack.slug.str() && one.key.upstream == use.name)
          disagreements.push_back({{"version", version_text(one.key)},
                                   {"question", one.key.question.text()},
                                   {"votes", agreement_json(one.agreements)}});
      }
      packs.push_back(
          {{"slug", pack.slug.str()},
           {"number", pack.number},
           {"upstream", use.name},
           {"red_pin", use.red_pin},
           {"quorum", agreement_json(quorum_of(verdicts.verdict_index, red))},
           {"unsigned_imports", agreement_json(unsigned_agreements(verdicts.verdict_index, red))},
           {"windows", tiers},
           {"disagreements", disagreements}});
    }
  }
  return packs;
}

/// Programs, which take --plain, know the words.
void print_legend(const Context& context) {
  if (!context.plain) context.out() << report::paragraph("", verdict_legend());
}

/// What changed since a time: keys that are new, or have another answer than before.
void print_changes(Context& context, const PackRecords& verdicts, const StatusOptions& options) {
  const VerdictIndex before =
      verdict_index_of(verdicts, {.slug = options.slug, .before = options.since});
  const std::vector<Change> changes = changes_between(before, verdicts.verdict_index);
  if (!changes.empty()) context.exit_code = kExitNo;
  Json rows = Json::array();
  report::Table table({"pack", "version", "question", "device", "before", "now"});
  for (const Change& change : changes) {
    rows.push_back({{"slug", change.key.slug},
                    {"upstream", change.key.upstream},
                    {"version", version_text(change.key)},
                    {"question", change.key.question.text()},
                    {"device", change.device},
                    {"before", change.before},
                    {"now", change.now},
                    {"verdict", change.digest}});
    table.add({change.key.slug, version_text(change.key), change.key.question.text(),
               short_device(change.device), change.before.empty() ? "unknown" : change.before,
               change.now});
    table.color(5, color_of(Outcome::from_text(change.now)));
  }
  if (context.json) {
    print_json(context, {{"since", options.since}, {"changes", rows}});
  } else if (changes.empty()) {
    context.out() << "nothing changed since " << options.since << "\n";
  } else {
    context.out() << table.render(table_style(context));
    print_legend(context);
  }
}

void run_status(Context& context, const StatusOptions& options) {
  if (!options.since.empty()) check_since(options.since);
  const bool is_committed = options.markdown || options.summary;
  const PackRecords verdicts = read_pack_records(
      context, {.slug = options.slug, .before = {}, .with_ledger = !is_committed});
  if (options.summary) {
    context.out() << (options.slug.empty() ? pack_table(verdicts) : tested_release_table(verdicts));
  } else if (options.markdown) {
    context.out() << status_markdown(verdicts);
  } else if (!options.since.empty()) {
    print_changes(context, verdicts, options);
  } else if (context.json) {
    context.out() << Json{{"packs", packs_json(verdicts)},
                          {"cells", cells_json(verdicts.verdict_index)}}
                         .dump(2)
                  << "\n";
  } else if (options.windows) {
    print_windows(context, verdicts);
  } else if (!options.slug.empty()) {
    print_details(context, verdicts, verdicts.packs.front());
    print_legend(context);
  } else {
    print_overview(context, verdicts, options);
    print_legend(context);
  }
}

/// Options of `status` that its parts do not take are not left unread.
void check_options(const CLI::App& command, const StatusOptions& options) {
  const std::vector<CLI::App*> parts = command.get_subcommands();
  const std::string part = parts.empty() ? "" : parts.front()->get_name();
  const bool has_day = part == "due" || part == "filing";
  std::string wrong;
  if (!options.day.empty() && !has_day) wrong = "--day";
  if (options.markdown && !part.empty() && part != "claims") wrong = "--markdown";
  if (options.summary && !part.empty()) wrong = "--summary";
  if (!options.since.empty() && !part.empty()) wrong = "--since";
  if (!wrong.empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("status {}: {} says nothing here; see --help", part, wrong));
}

/// The questions of `status` that have words of their own.
void add_questions(CLI::App& status, const StatusOptions& options, Context& context) {
  auto slug = std::make_shared<std::string>();
  CLI::App* windows = status.add_subcommand(
      "windows", "of each kind of device: first bad, last bad, first good, gaps");
  windows->add_option("slug", *slug, "this pack alone, with every release");
  windows->callback([slug, &context] {
    if (!slug->empty()) return show_windows(context, *slug);
    StatusOptions all;
    all.windows = true;
    run_status(context, all);
  });
  CLI::App* cases = status.add_subcommand("cases", "what each measured version shows on each case");
  cases->add_option("slug", *slug, "the pack")->required();
  cases->callback([slug, &context] { show_case_matrix(context, *slug); });
  add_claims_command(status, context, options.markdown);
  add_due_command(status, context, options.day);
  add_filing_command(status, context, options.day);
  add_page_command(status, context);
}

}  // namespace

void add_status_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command =
      app.add_subcommand("status", "where each pack stands on each upstream version, from records");
  command->add_option("slug", options->slug, "only this pack, with every question and version");
  command->add_option("--by", options->by, "pack or repository: what comes first")
      ->check(CLI::IsMember({"pack", "repository"}))
      ->capture_default_str();
  command->add_option(
      "--since", options->since,
      "only what changed since this day or time (2026-01-31, 2026-01-31T12:00:00Z); exit 1 if "
      "something did");
  command->add_flag("--markdown", options->markdown,
                    "reports/STATUS.md, from committed evidence alone; of claims: as tables for a "
                    "page");
  command->add_flag("--summary", options->summary,
                    "a row for each pack, or for each run of one, from committed evidence");
  command->footer(
      "\"red (class) on H200 ×2\": two runs that count (made here, committed, or signed by a "
      "trusted "
      "key).\nUnsigned imports have rows of their own and never count. Nothing is run.\nExamples:\n"
      "  patchbench status --by repository\n  patchbench status liger_flce_none_bwd\n"
      "  patchbench status windows liger_flce_none_bwd\n"
      "  patchbench status --since 2026-11-01   # for cron");
  command->add_option("--day", options->day,
                      "of due and filing: the day that counts as today, YYYY-MM-DD");
  add_questions(*command, *options, context);
  command->parse_complete_callback([options, command] { check_options(*command, *options); });
  command->callback([options, command, &context] {
    if (command->get_subcommands().empty()) run_status(context, *options);
  });
}

}  // namespace patchbench::cli
