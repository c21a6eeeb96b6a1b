#include "status/upstream_threads.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <set>

#include "core/error.h"
#include "core/file_text.h"
#include "core/schema.h"

namespace patchbench {
namespace {

using Days = std::chrono::sys_days;

std::optional<Days> day_of(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return {};
  int year = 0;
  unsigned month = 0, day = 0;
  const auto read = [&](std::size_t at, std::size_t length, auto& value) {
    const char* end = text.data() + at + length;
    return std::from_chars(text.data() + at, end, value).ptr == end;
  };
  if (!read(0, 4, year) || !read(5, 2, month) || !read(8, 2, day)) return {};
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (!date.ok()) return {};
  return Days(date);
}

constexpr std::array kStateNames = {"open", "closed", "merged", "superseded", "unchecked"};

/// Of a word that the schema has let pass.
ThreadState thread_state_from(const std::string& name) {
  return static_cast<ThreadState>(std::find(kStateNames.begin(), kStateNames.end(), name) -
                                  kStateNames.begin());
}

/// owner/name#number
bool is_thread_name(const std::string& name) {
  const auto slash = name.find('/'), hash = name.find('#');
  return slash != name.npos && hash != name.npos && slash > 0 && hash > slash + 1 &&
         name.find_first_not_of("0123456789", hash + 1) == name.npos && hash + 1 < name.size();
}

}  // namespace

std::string thread_state_name(ThreadState state) {
  return kStateNames.at(static_cast<std::size_t>(state));
}

int days_between(const std::string& from, const std::string& to) {
  const auto first = day_of(from), last = day_of(to);
  if (!first || !last)
    throw Error(ErrorCode::kUsage, "'" + shown(first ? to : from) + "' is no day; 2026-01-31 is");
  return static_cast<int>((*last - *first).count());
}

std::vector<Thread> read_upstream_threads(const Context& context) {
  const std::string path = "env/threads.json";
  JsonLines lines;
  const Json document = check_schema(read_file(context.root / path), path,
                                     read_file(context.root / "env/threads.schema.json"), &lines);
  const std::vector<std::string> slugs = context.slugs();
  std::vector<Thread> threads;
  std::set<std::string> names;
  for (std::size_t i = 0; i < document.at("threads").size(); ++i) {
    const Json& row = document.at("threads")[i];
    const std::string at = "/threads/" + std::to_string(i);
    Thread thread{row.at("thread"),
                  row.at("about"),
                  thread_state_from(row.at("state")),
                  row.at("seen"),
                  row.at("source"),
                  row.value("superseded_by", ""),
                  {}};
    if (!is_thread_name(thread.name))
      fail_at(path, lines, at + "/thread", "is not owner/name#number");
    if (!names.insert(thread.name).second)
      fail_at(path, lines, at + "/thread", "this thread stands twice");
    const bool is_unchecked = thread.state == ThreadState::kUnchecked;
    if (is_unchecked != thread.checked.empty() || (!is_unchecked && !day_of(thread.checked)))
      fail_at(path, lines, at + "/seen", "a day YYYY-MM-DD for a state that was seen, else empty");
    if ((thread.state == ThreadState::kSuperseded) != !thread.superseded_by.empty())
      fail_at(path, lines, at + "/state", "\"superseded\" and \"superseded_by\" go together");
    for (std::size_t k = 0; k < row.at("packs").size(); ++k) {
      const Json& pack = row.at("packs")[k];
      const std::string slug = pack.at("slug");
      if (std::find(slugs.begin(), slugs.end(), slug) == slugs.end())
        fail_at(path, lines, at + "/packs/" + std::to_string(k) + "/slug",
                "no pack \"" + shown(slug) + "\"" + did_you_mean(shown(slug), slugs));
      thread.packs.push_back({slug, pack.at("relation")});
    }
    threads.push_back(std::move(thread));
  }
  return threads;
}

std::vector<std::string> threads_about(const std::vector<Thread>& threads,
                                       const std::string& slug) {
  std::vector<std::string> names;
  for (const Thread& thread : threads) {
    for (const Thread::Relation& pack : thread.packs) {
      if (pack.slug == slug && (pack.relation == "reports" || pack.relation == "fixes"))
        names.push_back(thread.name);
    }
  }
  return names;
}

}  // namespace patchbench
