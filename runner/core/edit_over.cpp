#include "core/edit_over.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <set>

#include "core/edit_make.h"
#include "core/edit_pieces.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"
#include "core/split.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kUsage, what); }

/// The commands that make the pieces of the release, the last lines first, as make_file_edit writes
/// them.
class Commands {
 public:
  explicit Commands(const std::string& path) : path_(path) {}

  std::vector<EdCommand> of(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.base == 0) {
        ours_.push_back(piece.line);
        continue;
      }
      if (piece.base < next_) refuse(path_ + ": lines are moved; write the edit over the release");
      close_hunk(piece.base);
      if (piece.shift != 0) add_shift(piece);
      next_ = piece.base + piece.count;
    }
    close_hunk(next_);
    std::reverse(commands_.begin(), commands_.end());
    return std::move(commands_);
  }

 private:
  /// Writes what stands between the last line of the release that is kept and line `kept`.
  void close_hunk(int64_t kept) {
    if (kept == next_ && ours_.empty()) return;
    EdCommand command;
    command.verb = ours_.empty() ? 'd' : kept == next_ ? 'a' : 'c';
    command.last = static_cast<int>(kept - 1);
    command.first = command.verb == 'a' ? command.last : static_cast<int>(next_);
    command.lines = std::move(ours_);
    ours_.clear();
    commands_.push_back(std::move(command));
  }

  void add_shift(const Piece& piece) {
    const char verb = piece.shift > 0 ? '>' : '<';
    const int by = std::abs(piece.shift), first = static_cast<int>(piece.base),
              last = static_cast<int>(piece.base + piece.count - 1);
    if (by > kMaxIndent) refuse(path_ + ": lines are indented by " + std::to_string(by));
    EdCommand* const before = commands_.empty() ? nullptr : &commands_.back();
    if (before != nullptr && before->verb == verb && before->target == by &&
        before->last + 1 == first) {
      before->last = last;
    } else {
      commands_.push_back({verb, first, last, by, {}});
    }
  }

  const std::string& path_;
  int64_t next_ = 1;  ///< the first line of the release that is not yet dealt with
  std::vector<std::string> ours_;
  std::vector<EdCommand> commands_;
};

/// Edits by path; in `fix`, a series as one edit against the release.
using Files = std::map<std::string, FileEdit>;

Pieces after(const FileEdit& file, const std::vector<EdCommand>& more = {}) {
  Pieces pieces(file.path, file.blob.empty());
  for (const EdCommand& command : file.commands) pieces.run(command);
  for (const EdCommand& command : more) pieces.run(command);
  return pieces;
}

/// `over` on top of `under`, which may be null, as one edit of the file.
FileEdit composed(const FileEdit* under, const FileEdit& over) {
  FileEdit out = over;
  if (under == nullptr) return out;
  if (under->result.empty()) refuse(out.path + ": the fix deletes this file");
  out.blob = under->blob;
  if (out.mode.empty()) out.mode = under->mode;
  if (!out.result.empty())
    out.commands = Commands(out.path).of(after(*under, over.commands).list());
  return out;
}

Files series_as_one(const std::vector<Edit>& fix) {
  Files files;
  for (const Edit& edit : fix) {
    for (const FileEdit& file : edit.files) {
      const auto under = files.find(file.path);
      if (under != files.end() && under->second.result != file.blob)
        refuse(edit.name + ": " + file.path + " does not go on where the edit before it ends");
      FileEdit both = composed(under == files.end() ? nullptr : &under->second, file);
      files.insert_or_assign(file.path, std::move(both));
    }
  }
  return files;
}

/// Takes the hunks of these numbers out; returns the files that lose some.
std::set<std::string> leave_out(Files& fix, const std::set<int>& numbers) {
  std::set<std::string> changed;
  int number = 0;
  for (auto& [path, file] : fix) {
    std::vector<EdCommand> kept;
    for (EdCommand& command : file.commands) {
      if (!numbers.contains(++number)) {
        kept.push_back(std::move(command));
      } else {
        changed.insert(path);
      }
    }
    file.commands = std::move(kept);
  }
  if (!numbers.empty() && *numbers.rbegin() > number)
    refuse("Without: " + std::to_string(*numbers.rbegin()) + ": the fix has " +
           std::to_string(number) + " hunks");
  return changed;
}

/// Numbers of hunks from the text of `Without:`, such as "2 5-7".
std::set<int> hunk_numbers(const std::string& text) {
  constexpr int kMost = 10'000;
  std::set<int> numbers;
  if (text.empty()) return numbers;
  for (const std::string& word : split(text, " ")) {
    const auto number_at = [](std::string_view digits) {
      int number = 0;
      const char* const end = digits.data() + digits.size();
      const auto [stop, code] = std::from_chars(digits.data(), end, number);
      return code == std::errc() && stop == end ? number : 0;
    };
    const size_t dash = word.find('-');
    const int first = number_at(std::string_view(word).substr(0, dash));
    const int last =
        dash == std::string::npos ? first : number_at(std::string_view(word).substr(dash + 1));
    if (first < 1 || last < first || last > kMost)
      refuse("Without: " + shown(text) + ": should be numbers of hunks, such as 2 5-7");
    for (int number = first; number <= last; ++number) numbers.insert(number);
  }
  return numbers;
}

std::string text_of(const std::set<int>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int first = *at;
    int last = first;
    for (++at; at != numbers.end() && *at == last + 1; ++at) ++last;
    text += (text.empty() ? "" : " ") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

std::string names_of(const std::vector<Edit>& edits) {
  std::string names;
  for (const Edit& edit : edits) names += (names.empty() ? "" : " ") + edit.name;
  return names;
}

Edit expand(const Edit& mutant, const std::vector<Edit>& fix) {
  if (mutant.field("Over") != names_of(fix))
    refuse("Over: needs the edits " + shown(mutant.field("Over")) + " of its folder");
  Files files = series_as_one(fix);
  std::set<std::string> open = leave_out(files, hunk_numbers(mutant.field("Without")));
  for (const FileEdit& file : mutant.files) {
    const auto under = files.find(file.path);
    if (under != files.end() && under->second.blob != file.blob)
      refuse(file.path + ": Blob is not the one of the fix");
    open.erase(file.path);
    FileEdit both = composed(under == files.end() ? nullptr : &under->second, file);
    files.insert_or_assign(file.path, std::move(both));
  }
  Edit out{mutant.name, {}, {}};
  for (const auto& field : mutant.header) {
    if (field.first != "Over" && field.first != "Without") out.header.push_back(field);
  }
  for (auto& [path, file] : files) {
    if (open.contains(path) && !file.commands.empty())
      refuse(path + ": hunks are left out and no section gives its Result");
    if (open.contains(path)) continue;
    out.files.push_back(std::move(file));
  }
  return out;
}

/// The pieces as a text: a line of the release is its number, which no line of ours can be.
std::string text_of_numbers(const Pieces& pieces, int64_t last_line) {
  std::string out;
  for (const Piece& piece : pieces.list()) {
    if (piece.base == 0) out += piece.line + "\n";
    if (piece.base == 0) continue;
    const int64_t end = std::min(piece.base + piece.count, last_line + 1);
    for (int64_t line = piece.base; line < end; ++line)
      out += std::string(static_cast<size_t>(std::max(kMaxIndent + piece.shift, 0)), ' ') + '\1' +
             std::to_string(line) + "\n";
  }
  return out;
}

int64_t last_line_of(const FileEdit& file) {
  int64_t last = 0;
  for (const EdCommand& command : file.commands) last = std::max<int64_t>(last, command.last);
  return last;
}

/// The script over `under` that makes `wanted`; none where it would need text of the release.
std::optional<std::vector<EdCommand>> script_over(const FileEdit& under, const FileEdit& wanted) {
  const int64_t last = std::max(last_line_of(under), last_line_of(wanted)) + 1;
  std::vector<EdCommand> script = make_file_edit(wanted.path, text_of_numbers(after(under), last),
                                                 text_of_numbers(after(wanted), last))
                                      .commands;
  for (const EdCommand& command : script) {
    for (const std::string& line : command.lines) {
      if (line.find('\1') != std::string::npos) return std::nullopt;
    }
  }
  return script;
}

/// The edit over the fix without these hunks; none where it would need text of the release.
std::optional<Edit> over_without(const Edit& mutant, const std::vector<Edit>& fix,
                                 const std::set<int>& numbers) {
  Files files = series_as_one(fix);
  const std::set<std::string> changed = leave_out(files, numbers);
  Edit over{mutant.name, {}, {}};
  for (const auto& field : mutant.header) {
    over.header.push_back(field);
    if (field.first != "Base") continue;
    over.header.emplace_back("Over", names_of(fix));
    if (!numbers.empty()) over.header.emplace_back("Without", text_of(numbers));
  }
  for (const FileEdit& wanted : mutant.files) {
    FileEdit section = wanted;
    const auto under = files.find(wanted.path);
    if (under != files.end()) {
      if (under->second == wanted && !changed.contains(wanted.path)) continue;
      std::optional<std::vector<EdCommand>> script = script_over(under->second, wanted);
      if (!script) return std::nullopt;
      section.commands = *std::move(script);
    }
    over.files.push_back(std::move(section));
  }
  if (over.files.empty() && numbers.empty()) return std::nullopt;  // the fix itself
  try {
    if (expand_edit(over, fix) != mutant) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  return over;
}

size_t num_lines(const Edit& edit) { return split_lines(format_edit(edit)).size(); }

/// The hunks of the fix whose lines of the release the mutant keeps: they must be left out.
std::set<int> hunks_undone(const Edit& mutant, const Files& fix) {
  std::set<int> numbers;
  int number = 0;
  for (const auto& [path, file] : fix) {
    const auto wanted = std::find_if(mutant.files.begin(), mutant.files.end(),
                                     [&](const FileEdit& f) { return f.path == path; });
    std::optional<Pieces> kept;
    if (wanted != mutant.files.end()) kept = after(*wanted);
    for (const EdCommand& command : file.commands) {
      ++number;
      if (!kept) numbers.insert(number);
      if (!kept || (command.verb != 'c' && command.verb != 'd')) continue;
      for (const Piece& piece : kept->list()) {
        if (piece.base > 0 && piece.base <= command.last &&
            piece.base + piece.count > command.first)
          numbers.insert(number);
      }
    }
  }
  return numbers;
}

/// over_fix for one choice of the edits.
std::optional<Edit> over_these(const Edit& mutant, const std::vector<Edit>& fix) {
  const Files files = series_as_one(fix);
  std::set<int> numbers = hunks_undone(mutant, files);
  std::optional<Edit> best = over_without(mutant, fix, numbers);
  int num_hunks = 0;
  for (const auto& [path, file] : files) num_hunks += static_cast<int>(file.commands.size());
  for (int number = 1; number <= num_hunks && best; ++number) {
    if (!numbers.insert(number).second) continue;
    std::optional<Edit> other = over_without(mutant, fix, numbers);
    if (other && num_lines(*other) <= num_lines(*best)) {
      best = std::move(other);
    } else {
      numbers.erase(number);
    }
  }
  return best;
}

}  // namespace

Edit expand_edit(const Edit& mutant, const std::vector<Edit>& fix) {
  if (mutant.field("Over").empty() && mutant.field("Without").empty()) return mutant;
  try {
    return expand(mutant, fix);
  } catch (const Error& e) {
    throw Error(e.code(), mutant.name + ": " + e.what());
  }
}

std::optional<Edit> over_fix(const Edit& mutant, const std::vector<Edit>& series) {
  std::vector<std::vector<Edit>> choices = {series};
  if (series.size() > 1) {
    for (const Edit& edit : series) choices.push_back({edit});
  }
  std::optional<Edit> best;
  for (const std::vector<Edit>& fix : choices) {
    try {
      std::optional<Edit> other = over_these(mutant, fix);
      if (other && num_lines(*other) < num_lines(best ? *best : mutant)) best = std::move(other);
    } catch (const Error&) {
      // Nothing is written over a fix that moves lines or deletes a file, or over an edit whose
      // base is not the release.
    }
  }
  return best;
}

Edit load_edit(const fs::path& file) {
  Edit edit = parse_edit(read_file(file), file.filename().string());
  const std::string over = edit.field("Over");
  if (over.empty() && edit.field("Without").empty()) return edit;
  const auto fail = [&](const std::string& reason) { refuse(edit.name + ": Over: " + reason); };
  if (!edit.name.starts_with("mutant-") && !is_candidate(edit.name))
    fail("only a mutant-, wrong- or right-NAME.edit is written over a fix");
  std::vector<Edit> fix;
  for (const std::string& name : split(over, " ")) {
    const fs::path sibling = file.parent_path() / name;
    if (name.find('/') != std::string::npos || !name.ends_with(".edit") || !fs::exists(sibling))
      fail("no edit " + shown(name) + " in its folder");
    fix.push_back(parse_edit(read_file(sibling), name));
    for (const char* key : {"Upstream", "Base"}) {
      if (fix.back().field(key) != edit.field(key)) fail(name + " has another " + key);
    }
    if (!fix.back().field("Over").empty()) fail(name + " is a mutant itself");
  }
  return expand_edit(edit, fix);
}

}  // namespace patchbench
