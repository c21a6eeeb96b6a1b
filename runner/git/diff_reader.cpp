#include "git/diff_reader.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "core/edit_make.h"
#include "core/error.h"
#include "core/json.h"
#include "git/objects.h"

namespace patchbench::git {
namespace {

/// One hunk: its lines with their marks, as written.
struct Hunk {
  int old_start = 0, old_count = 1, new_start = 0, new_count = 1;
  int line = 0;  ///< of the diff
  std::vector<std::pair<char, std::string_view>> lines;
  bool old_has_newline = true, new_has_newline = true;  ///< of the last line of each side
};

/// What a diff does to one file; an empty path is /dev/null.
struct FilePatch {
  std::string old_path, new_path, new_mode;
  int line = 0;
  std::vector<Hunk> hunks;
};

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_number(std::string_view& text, int& value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || value < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

/// Reads git's and plain unified diffs; text around them (a mail's) is passed over.
class DiffReader {
 public:
  DiffReader(std::string_view text, const std::string& name)
      : lines_(split_lines(text)), name_(name) {}

  std::vector<FilePatch> read() {
    while (at_ < lines_.size()) {
      const std::string_view line = lines_[at_];
      if (line.starts_with("diff --git ")) {
        begin_file(line.substr(11));
      } else if (line.starts_with("--- ") && at_ + 1 < lines_.size() &&
                 lines_[at_ + 1].starts_with("+++ ")) {
        read_paths();
      } else if (line.starts_with("@@ -")) {
        read_hunk();
      } else {
        read_note(line);
        ++at_;
      }
    }
    if (files_.empty()) fail("no change of a file: not a unified diff");
    return std::move(files_);
  }

  std::string subject() const {
    for (std::string_view line : lines_) {
      if (!take(line, "Subject: ")) continue;
      while (line.starts_with('[') && line.find("] ") != line.npos)
        line.remove_prefix(line.find("] ") + 2);
      return std::string(line);
    }
    return "";
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorCode::kUsage, name_ + ":" + std::to_string(at_ + 1) + ": " + reason);
  }

  /// `a/P b/P`; where the halves differ the paths come from --- and +++.
  void begin_file(std::string_view rest) {
    const size_t half = rest.size() / 2;
    FilePatch file;
    file.line = static_cast<int>(at_) + 1;
    if (rest.size() % 2 == 1 && rest[half] == ' ' && half > 2 &&
        rest.substr(2, half - 2) == rest.substr(half + 3)) {
      file.old_path = file.new_path = std::string(rest.substr(0, half));
    }
    files_.push_back(file);
    has_paths_ = false;
    ++at_;
  }

  void read_note(std::string_view line) {
    if (files_.empty() || has_paths_) return;
    FilePatch& file = files_.back();
    if (take(line, "new file mode ")) {
      file.old_path.clear();
      file.new_mode = line == "100644" ? "" : std::string(line);
    } else if (take(line, "deleted file mode ")) {
      file.new_path.clear();
    } else if (take(line, "new mode ")) {
      file.new_mode = std::string(line);
    } else if (line.starts_with("rename ") || line.starts_with("copy ")) {
      fail("a rename or copy: make the diff with --no-renames");
    } else if (line.starts_with("GIT binary patch") || line.starts_with("Binary files")) {
      fail("a binary file; an edit holds lines of text only");
    }
    if (!file.new_mode.empty() && file.new_mode != "100644" && file.new_mode != "100755") {
      fail("mode " + shown(file.new_mode) + " is neither 100644 nor 100755");
    }
  }

  std::string path_of(std::string_view line) const {
    line = line.substr(4);
    if (line.starts_with('"'))
      fail("a quoted path: set core.quotePath to false and make the diff again");
    line = line.substr(0, line.find('\t'));
    return line == "/dev/null" ? "" : std::string(line);
  }

  void read_paths() {
    if (files_.empty() || has_paths_) {
      files_.emplace_back();
      files_.back().line = static_cast<int>(at_) + 1;
    }
    files_.back().old_path = path_of(lines_[at_]);
    files_.back().new_path = path_of(lines_[at_ + 1]);
    if (files_.back().old_path.empty() && files_.back().new_path.empty())
      fail("both paths are /dev/null");
    has_paths_ = true;
    at_ += 2;
  }

  void read_hunk() {
    Hunk hunk;
    hunk.line = static_cast<int>(at_) + 1;
    std::string_view rest = lines_[at_].substr(4);
    bool is_good = has_paths_ && take_number(rest, hunk.old_start);
    if (is_good && take(rest, ",")) is_good = take_number(rest, hunk.old_count);
    is_good = is_good && take(rest, " +") && take_number(rest, hunk.new_start);
    if (is_good && take(rest, ",")) is_good = take_number(rest, hunk.new_count);
    if (!is_good || !rest.starts_with(" @@")) fail("a broken hunk header");
    ++at_;
    int num_old = 0, num_new = 0;
    while (num_old < hunk.old_count || num_new < hunk.new_count) {
      if (at_ == lines_.size())
        fail("the hunk of line " + std::to_string(hunk.line) + " is cut off");
      const std::string_view line = lines_[at_];
      const char mark =
          line.empty() ? ' ' : line[0];  // some mailers strip the space of an empty context line
      if (mark == '\\') {
        read_no_newline(hunk);
        continue;
      }
      if (mark != ' ' && mark != '+' && mark != '-')
        fail("a hunk's line starts with ' ', '+', '-' or '\\'");
      num_old += mark != '+';
      num_new += mark != '-';
      hunk.lines.emplace_back(mark, line.empty() ? line : line.substr(1));
      ++at_;
    }
    if (num_old != hunk.old_count || num_new != hunk.new_count)
      fail("the hunk's lines do not fit its header");
    if (at_ < lines_.size() && lines_[at_].starts_with('\\')) read_no_newline(hunk);
    files_.back().hunks.push_back(std::move(hunk));
  }

  void read_no_newline(Hunk& hunk) {
    if (hunk.lines.empty()) fail("a mark of a missing line feed before any line");
    const char mark = hunk.lines.back().first;
    if (mark != '+') hunk.old_has_newline = false;
    if (mark != '-') hunk.new_has_newline = false;
    ++at_;
  }

  std::vector<std::string_view> lines_;
  const std::string& name_;
  std::vector<FilePatch> files_;
  size_t at_ = 0;
  bool has_paths_ = false;
};

/// Applies hunks where they say, to lines that are what they say.
std::string apply_hunks(const FilePatch& patch, const std::string& base, const std::string& path,
                        const std::string& name) {
  const std::vector<std::string_view> lines = split_lines(base);
  const auto fail = [&](int line, const std::string& reason) {
    throw Error(ErrorCode::kUsage, name + ":" + std::to_string(line) +
                                       ": does not apply exactly to " + path + ": " + reason);
  };
  std::string text;
  size_t at = 0;
  const auto copy_to = [&](size_t end) {
    for (; at < end; ++at) text += std::string(lines[at]) + "\n";
  };
  bool has_newline = base.empty() || base.back() == '\n';
  for (const Hunk& hunk : patch.hunks) {
    const auto start =
        static_cast<size_t>(hunk.old_count == 0 ? hunk.old_start : std::max(hunk.old_start - 1, 0));
    if (start < at || start > lines.size())
      fail(hunk.line, "there is no line " + std::to_string(hunk.old_start));
    copy_to(start);
    for (size_t i = 0; i < hunk.lines.size(); ++i) {
      const auto& [mark, line] = hunk.lines[i];
      if (mark == '+') {
        text += std::string(line) + "\n";
        continue;
      }
      if (at == lines.size() || lines[at] != line) {
        fail(hunk.line + static_cast<int>(i) + 1,
             "line " + std::to_string(at + 1) + " is not \"" + shown(line) + "\"");
      }
      if (mark == ' ') text += std::string(line) + "\n";
      ++at;
    }
    if (at == lines.size()) {
      const bool base_has_newline = base.empty() || base.back() == '\n';
      if (hunk.old_count > 0 && hunk.old_has_newline != base_has_newline)
        fail(hunk.line, "the last line's line feed differs");
      has_newline = hunk.new_has_newline;
    }
  }
  copy_to(lines.size());
  if (!has_newline && !text.empty()) text.pop_back();
  return text;
}

/// Turns a diff's paths into package-relative ones: as many leading folders go as the first file
/// that is known needs.
class PathMap {
 public:
  PathMap(const Entries& entries, const std::string& package)
      : entries_(entries), package_(package) {}

  std::string map(const FilePatch& patch, const std::string& name) const {
    const bool is_new = patch.old_path.empty();
    std::string_view path = is_new ? patch.new_path : patch.old_path;
    const std::string first(path);
    while (true) {
      const bool is_known =
          is_new ? path.starts_with(package_) : entries_.contains(std::string(path));
      if (is_known) return std::string(path);
      const size_t slash = path.find('/');
      if (slash == path.npos) break;
      path.remove_prefix(slash + 1);
    }
    throw Error(ErrorCode::kUsage, name + ":" + std::to_string(patch.line) + ": " + shown(first) +
                                       " is no file of this upstream version (package " + package_ +
                                       ")");
  }

 private:
  const Entries& entries_;
  const std::string& package_;
};

}  // namespace

Edit edit_from_diff(std::string_view diff, const Pin& pin, Store& store, const std::string& name,
                    const std::vector<Edit>& before) {
  DiffReader reader(diff, name);
  const std::vector<FilePatch> patches = reader.read();
  std::string package = store.upstream_of(pin).package;
  std::replace(package.begin(), package.end(), '.', '/');
  package += "/";
  Entries entries = store.entries(pin);
  for (const Edit& edit : before) {
    for (const FileEdit& file : edit.files) entries[file.path];
  }
  const PathMap paths(entries, package);
  Edit edit{name,
            {{"Subject", reader.subject().empty() ? "changes of a diff" : reader.subject()},
             {"Upstream", pin.upstream},
             {"Base", pin.version}},
            {}};
  std::set<std::string> known;
  for (const FilePatch& patch : patches) {
    const std::string path = paths.map(patch, name);
    if (!known.insert(path).second) {
      throw Error(ErrorCode::kUsage,
                  name + ":" + std::to_string(patch.line) + ": " + path + " stands twice");
    }
    const std::optional<std::string> base = read_after(store, pin, before, path);
    if (base.has_value() == patch.old_path.empty()) {
      throw Error(ErrorCode::kUsage, name + ":" + std::to_string(patch.line) + ": " + path +
                                         (base ? " is there already" : " is not there"));
    }
    const std::string text = apply_hunks(patch, base.value_or(""), path, name);
    if (patch.new_path.empty() && !text.empty()) {
      throw Error(ErrorCode::kUsage, name + ":" + std::to_string(patch.line) + ": " + path +
                                         " is deleted, but not all of it");
    }
    std::optional<std::string_view> wanted;
    if (!patch.new_path.empty()) wanted = text;
    edit.files.push_back(
        make_file_edit(path, base ? std::optional<std::string_view>(*base) : std::nullopt, wanted));
    edit.files.back().mode = patch.new_mode;
  }
  return edit;
}

}  // namespace patchbench::git
