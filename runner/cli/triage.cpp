#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "exec/spawn.h"
#include "job/line_blocks.h"
#include "job/policy.h"
#include "job/triage.h"
#include "job/triage_rules.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

struct TriageOptions {
  std::vector<std::string> logs;
  std::string rules, torch;
  bool follow = false, is_hung = false;
};

volatile sig_atomic_t is_stopped = 0;

/// One log that is read: a file, or standard input as "-".
struct Log {
  std::string name;
  exec::Fd fd;
  std::unique_ptr<job::LineBlocks> blocks = std::make_unique<job::LineBlocks>();
  bool is_at_end = false;
};

exec::Fd open_log(const std::string& name) {
  if (name == "-") return exec::Fd(::dup(STDIN_FILENO));
  exec::Fd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd) throw Error(ErrorCode::kUsage, name + ": " + std::strerror(errno));
  if (::fstat(fd.get(), &info) == 0 && S_ISDIR(info.st_mode))
    throw Error(ErrorCode::kUsage, name + ": is a folder; name the logs in it");
  return fd;
}

/// Whether the file of that name is another one now, or shorter than what was read of it.
bool is_replaced(const Log& log) {
  struct stat there {
  }, here{};
  if (log.name == "-" || ::stat(log.name.c_str(), &there) != 0 || ::fstat(log.fd.get(), &here) != 0)
    return false;
  return there.st_ino != here.st_ino || there.st_dev != here.st_dev ||
         here.st_size < ::lseek(log.fd.get(), 0, SEEK_CUR);
}

void show_alert(const Context& context, const job::Alert& alert) {
  context.out() << fmt::format("{}:{}: {} (rank {})\n", alert.location.file, alert.location.line,
                               alert.rule, alert.rank);
  for (const std::string& line : alert.before) context.out() << fmt::format("    {}\n", line);
  context.out() << fmt::format("  > {}\n", alert.text);
  for (const std::string& line : alert.after) context.out() << fmt::format("    {}\n", line);
}

/// Alerts as they come, where a person or a JSON reader watches a growing log.
void show_new(const Context& context, job::Triage& triage) {
  for (const job::Alert& alert : triage.take_alerts()) {
    if (context.json) {
      const Json line = {{"alert", alert.rule},
                         {"rank", alert.rank},
                         {"file", alert.location.file},
                         {"line", alert.location.line},
                         {"text", alert.text}};
      context.out() << line.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
    } else {
      show_alert(context, alert);
    }
  }
  context.out().flush();
}

/// Reads what is there. Whether anything was.
bool read_on(Log& log, job::Triage& triage) {
  bool is_any = false;
  for (;;) {
    const job::LineBlocks::Read read = log.blocks->next(log.fd.get());
    log.is_at_end = read == job::LineBlocks::Read::kEnd;
    if (read != job::LineBlocks::Read::kSome || is_stopped != 0) return is_any;
    is_any = true;
    triage.open(log.name);
    triage.feed(log.blocks->block());
  }
}

void flush(Log& log, job::Triage& triage) {
  triage.open(log.name);
  triage.feed(log.blocks->flush());
}

void follow(const Context& context, std::vector<Log>& logs, job::Triage& triage) {
  struct sigaction action {};
  action.sa_handler = [](int) { is_stopped = 1; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  while (is_stopped == 0) {
    bool is_any = false;
    for (Log& log : logs) {
      is_any |= read_on(log, triage);
      if (!log.is_at_end || !is_replaced(log)) continue;
      flush(log, triage);
      log.fd = open_log(log.name);
      *log.blocks = job::LineBlocks();
      triage.restart(log.name);
      is_any = true;
    }
    show_new(context, triage);
    const bool is_pipe_done = std::all_of(
        logs.begin(), logs.end(), [](const Log& l) { return l.name == "-" && l.is_at_end; });
    if (is_pipe_done) return;
    if (!is_any) ::poll(nullptr, 0, 200);
  }
}

job::TriageRules read_rules(const Context& context, const std::string& file) {
  const std::string schema = read_file(context.root / "env/triage.schema.json");
  job::TriageRules rules;
  if (!file.empty()) rules.add(read_file(file), file, schema, false);
  rules.add(read_file(context.root / "env/triage.json"), "env/triage.json", schema, true);
  return rules;
}

std::string ranks_text(const Json& ranks) {
  std::string out;
  std::size_t shown_ranks = 0;
  for (const auto& [rank, count] : ranks.items()) {
    if (++shown_ranks > 4) return fmt::format("{} and {} more", out, ranks.size() - 4);
    out += fmt::format("{}{}:{}", out.empty() ? "" : " ", rank, count.get<int64_t>());
  }
  return out;
}

void show_tables(const Context& context, const Json& report) {
  const report::Style style = table_style(context);
  report::Table rules({"rule", "action", "count", "by rank"});
  for (const Json& r : report.at("rules")) {
    if (r.at("count") > 0)
      rules.add({r.at("rule"), r.at("action"), r.at("count").dump(), ranks_text(r.at("ranks"))});
  }
  if (rules.num_rows() > 0) context.out() << rules.render(style) << "\n";
  report::Table sites({"site", "what", "count", "over"});
  for (const char* what : {"graph_breaks", "recompiles"}) {
    for (const Json& s : report.at(what))
      sites.add({s.at("site"), what, s.at("count").dump(),
                 s.at("over") == true ? "over " + s.at("budget").dump() : ""});
  }
  for (const Json& t : report.at("graph_break_totals")) {
    sites.add({"all sites, rank " + t.at("rank").get<std::string>(), "graph_breaks of frames",
               t.at("count").dump(), t.at("over") == true ? "over " + t.at("budget").dump() : ""});
  }
  if (sites.num_rows() > 0) context.out() << sites.render(style) << "\n";
  report::Table unknown({"unknown warning", "count", "first at"});
  for (const Json& u : report.at("unknown")) {
    if (unknown.num_rows() == 20) break;
    unknown.add({u.at("shape"), u.at("count").dump(),
                 fmt::format("{}:{}", u["first"].at("file").get<std::string>(),
                             u["first"].at("line").dump())});
  }
  if (unknown.num_rows() > 0) context.out() << unknown.render(style) << "\n";
}

void show_report(const Context& context, const Json& report) {
  show_tables(context, report);
  for (const Json& s : report.at("stale"))
    context.out() << fmt::format("rule {}: {}\n", s.at("rule").get<std::string>(),
                                 s.at("why").get<std::string>());
  const Json& hang = report.at("hang");
  if (!hang.is_null()) {
    const std::string cause = hang.at("cause");
    context.out() << fmt::format(
        "hang: {}\n", cause == "ranks"   ? "the ranks wait for each other"
                      : cause == "cache" ? "a compile cache is locked or cannot be written"
                      : cause == "autotune"
                          ? "an autotuner waits for a candidate"
                          : "these logs do not tell ranks, cache and autotune apart");
  }
  context.out() << fmt::format("{} lines, {} alerts, {} unknown warnings of {} shapes\n",
                               report.at("lines").dump(), report.at("num_alerts").dump(),
                               report.at("num_unknown").dump(), report.at("unknown").size());
}

void run(Context& context, const TriageOptions& options) {
  const job::Policy policy =
      job::Policy::parse(read_file(context.root / "env/policy.json"), "env/policy.json",
                         read_file(context.root / "env/policy.schema.json"));
  job::Triage triage(
      read_rules(context, options.rules), policy.budgets,
      {.torch_version = options.torch, .today = context.today(), .is_hung = options.is_hung});
  std::vector<Log> logs;
  for (const std::string& name : options.logs) logs.push_back({name, open_log(name)});
  if (options.follow) {
    follow(context, logs, triage);
  } else {
    for (Log& log : logs) {
      while (!log.is_at_end) read_on(log, triage);
    }
  }
  int64_t num_cut = 0;
  for (Log& log : logs) {
    flush(log, triage);
    num_cut += log.blocks->num_cut_lines();
  }
  Json report = triage.finish();
  report["num_cut_lines"] = num_cut;
  context.exit_code = report.at("num_alerts") == 0 ? kExitYes : kExitNo;
  if (context.json) {
    context.out() << report.dump(options.follow ? -1 : 2, ' ', false,
                                 Json::error_handler_t::replace)
                  << "\n";
    return;
  }
  if (options.follow) {
    show_new(context, triage);
  } else {
    for (const job::Alert& alert : triage.take_alerts()) show_alert(context, alert);
  }
  show_report(context, report);
  if (num_cut > 0)
    context.out() << fmt::format("{} pieces of lines over 32 MiB were read apart\n", num_cut);
}

}  // namespace

void add_triage_command(CLI::App& job, Context& context) {
  auto options = std::make_shared<TriageOptions>();
  CLI::App* command =
      job.add_subcommand("triage", "training logs: what to ignore, what to count, what to act on");
  command->add_option("log", options->logs, "files, or - for standard input")->required();
  command->add_option(
      "--rules", options->rules,
      "your own rules (form: env/triage.schema.json); they decide before the built-in ones");
  command->add_option("--torch", options->torch, "the logs' torch version, for rules of some only");
  command->add_flag("--follow", options->follow,
                    "go on as the logs grow; SIGINT or SIGTERM ends with the report");
  command->add_flag("--hung", options->is_hung, "the job hung: say what each rank did last");
  command->footer(
      "Exit: 0 no alert, 1 alerts.\n"
      "Ranks are told by [rank3]:, [default3]:, `3: ` or the path (.../3/stderr.log).\n"
      "TORCH_LOGS=graph_breaks,recompiles and TORCH_TRACE files give counts by site, held against\n"
      "the budgets of env/policy.json. Built-in rules: env/triage.json.\n"
      "Examples:\n  patchbench job triage train.log\n"
      "  cat train.log | patchbench job triage - --hung");
  command->callback([options, &context] { run(context, *options); });
}

}  // namespace patchbench::cli
