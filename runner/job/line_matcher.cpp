#include "job/line_matcher.h"

#include <hs.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "core/error.h"
#include "core/json.h"

namespace patchbench::job {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::strchr("\\^$.|?*+()[]{}#-/ ", c) != nullptr) out += '\\';
    out += c;
  }
  return out;
}

/// Whether a match of the pattern may hold a line feed: a negated class or a class of more than
/// word characters takes one. When in doubt, yes: such a line is looked at alone.
bool may_cross_lines(const LinePattern& pattern) {
  if (!pattern.is_regex) return false;
  for (std::size_t i = 0; i + 1 < pattern.text.size(); ++i) {
    const char c = pattern.text[i], next = pattern.text[i + 1];
    if ((c == '[' && next == '^') || (c == '(' && next == '?')) return true;
    if (c != '\\') continue;
    if (std::isalpha(static_cast<unsigned char>(next)) != 0 &&
        std::strchr("bBdSw", next) == nullptr)
      return true;
    ++i;
  }
  return false;
}

/// One database of all patterns. Frees what it holds.
struct Database {
  hs_database_t* handle = nullptr;
  ~Database() { hs_free_database(handle); }
};

void compile(Database& database, const std::vector<LinePattern>& patterns, unsigned flag) {
  std::vector<std::string> texts;
  std::vector<const char*> raw;
  std::vector<unsigned> flags, ids;
  for (const LinePattern& p : patterns) {
    texts.push_back(p.is_regex ? p.text : escaped(p.text));
    ids.push_back(static_cast<unsigned>(ids.size()));
    // Of a look-alike's matches any may be the one that is meant.
    flags.push_back(HS_FLAG_MULTILINE | (p.is_meant == nullptr ? flag : 0U));
  }
  for (const std::string& text : texts) raw.push_back(text.c_str());
  hs_compile_error_t* error = nullptr;
  if (hs_compile_multi(raw.data(), flags.data(), ids.data(), static_cast<unsigned>(raw.size()),
                       HS_MODE_BLOCK, nullptr, &database.handle, &error) == HS_SUCCESS)
    return;
  const std::string reason = error->message;
  const int which = error->expression;
  hs_free_compile_error(error);
  if (which < 0) throw Error(ErrorCode::kInternal, "vectorscan: " + reason);
  const LinePattern& bad = patterns[static_cast<std::size_t>(which)];
  throw Error(ErrorCode::kUsage,
              "rule " + shown(bad.name) + ": " + shown(bad.text) + ": " + shown(reason));
}

}  // namespace

struct LineMatcher::State {
  /// The first finds in a whole block, the second, made if a match may cross lines, on one line.
  Database where, what;
  hs_scratch_t* scratch = nullptr;
  std::vector<bool> may_cross;  ///< by pattern
  std::vector<decltype(LinePattern::is_meant)> is_meant;

  /// A line on which something matched; its ids are those from `first_id` to the next line's.
  struct Found {
    std::size_t begin, end, first_id;
    bool is_sure;
  };
  std::string_view block, one_line;  ///< `one_line`: what is looked at alone
  std::vector<Found> found;
  std::vector<unsigned> ids, alone;
  ~State() { hs_free_scratch(scratch); }

  /// Where the line begins of which `to` is past a byte.
  std::size_t begin_of_line(std::size_t to) const {
    const void* const before = ::memrchr(block.data(), '\n', to == 0 ? 0 : to - 1);
    return before == nullptr
               ? 0
               : static_cast<std::size_t>(static_cast<const char*>(before) - block.data()) + 1;
  }

  bool is_match(unsigned id, std::string_view before, std::string_view after) const {
    return is_meant[id] == nullptr || is_meant[id](before, after);
  }

  void note_alone(unsigned id, std::size_t to) {
    if (!is_match(id, one_line.substr(0, to), one_line.substr(to))) return;
    if (std::find(alone.begin(), alone.end(), id) == alone.end()) alone.push_back(id);
  }

  void note(unsigned id, std::size_t to) {
    // `to` is past the last byte of the match. Matches come in the order of their ends.
    const bool is_known = !found.empty() && to <= found.back().end;
    const std::size_t begin = is_known ? found.back().begin : begin_of_line(to);
    if (!is_match(id, block.substr(begin, to - begin), block.substr(to))) return;
    if (!is_known) {
      found.push_back({.begin = begin,
                       .end = std::min(block.find('\n', to == 0 ? 0 : to - 1), block.size()),
                       .first_id = ids.size(),
                       .is_sure = true});
    }
    Found& line = found.back();
    line.is_sure = line.is_sure && !may_cross[id];
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(line.first_id);
    if (std::find(first, ids.end(), id) == ids.end()) ids.push_back(id);
  }
};

LineMatcher::LineMatcher(const std::vector<LinePattern>& patterns)
    : state_(std::make_unique<State>()) {
  for (const LinePattern& p : patterns) {
    if (p.text.find('\0') != std::string::npos || p.text.find('\n') != std::string::npos)
      throw Error(ErrorCode::kUsage, "rule " + shown(p.name) + ": a pattern is of one line");
  }
  for (const LinePattern& p : patterns) {
    state_->may_cross.push_back(may_cross_lines(p));
    state_->is_meant.push_back(p.is_meant);
  }
  compile(state_->where, patterns, 0);
  const bool is_any_crossing = std::find(state_->may_cross.begin(), state_->may_cross.end(),
                                         true) != state_->may_cross.end();
  if (is_any_crossing) compile(state_->what, patterns, HS_FLAG_SINGLEMATCH);
  if (hs_alloc_scratch(state_->where.handle, &state_->scratch) != HS_SUCCESS ||
      (is_any_crossing && hs_alloc_scratch(state_->what.handle, &state_->scratch) != HS_SUCCESS))
    throw Error(ErrorCode::kInternal, "vectorscan: no memory");
}

LineMatcher::~LineMatcher() = default;

void LineMatcher::scan(std::string_view block, const std::function<void(const Hit&)>& on_hit) {
  State& state = *state_;
  state.block = block;
  state.found.clear();
  state.ids.clear();
  const auto note = [](unsigned id, unsigned long long, unsigned long long to, unsigned,
                       void* context) {
    static_cast<State*>(context)->note(id, to);
    return 0;
  };
  if (hs_scan(state.where.handle, block.data(), static_cast<unsigned>(block.size()), 0,
              state.scratch, note, &state) != HS_SUCCESS)
    throw Error(ErrorCode::kInternal, "vectorscan: the scan failed");
  const auto collect = [](unsigned id, unsigned long long, unsigned long long to, unsigned,
                          void* context) {
    static_cast<State*>(context)->note_alone(id, to);
    return 0;
  };
  for (std::size_t i = 0; i < state.found.size(); ++i) {
    const State::Found& line = state.found[i];
    const std::size_t last =
        i + 1 < state.found.size() ? state.found[i + 1].first_id : state.ids.size();
    std::span<unsigned> ids(state.ids.data() + line.first_id, last - line.first_id);
    if (!line.is_sure) {
      state.alone.clear();
      state.one_line = block.substr(line.begin, line.end - line.begin);
      hs_scan(state.what.handle, state.one_line.data(),
              static_cast<unsigned>(state.one_line.size()), 0, state.scratch, collect, &state);
      if (state.alone.empty()) continue;
      ids = state.alone;
    }
    std::sort(ids.begin(), ids.end());
    on_hit({line.begin, line.end, ids});
  }
}

int64_t count_lines(std::string_view text) {
  int64_t lines = 0;
  // Bytes are added up in runs of 255, so that the compiler can keep the sums in bytes.
  for (std::size_t at = 0; at < text.size(); at += 255) {
    const std::string_view part = text.substr(at, 255);
    uint8_t sum = 0;
    for (const char c : part) sum = static_cast<uint8_t>(sum + (c == '\n' ? 1 : 0));
    lines += sum;
  }
  return lines;
}

}  // namespace patchbench::job
