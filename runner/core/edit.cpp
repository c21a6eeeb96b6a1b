#include "core/edit.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "core/slug.h"

namespace patchbench {
namespace {

constexpr std::string_view kNew = "new", kDeleted = "deleted";

/// Walks the lines of one .edit and speaks of them by number.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : name_(name) {
    if (text.find('\0') != std::string_view::npos) fail("a NUL byte: an .edit is text");
    if (text.empty() || text.back() != '\n') {
      next_ = split_lines(text).size();
      fail("the file must end with a line feed");
    }
    lines_ = split_lines(text);
  }

  bool at_end() const { return next_ == lines_.size(); }
  std::string_view peek() const { return lines_[next_]; }
  std::string_view take(const std::string& wanted) {
    if (at_end()) fail("the file ends where " + wanted + " should stand");
    return lines_[next_++];
  }
  /// Speaks of the line taken last.
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorCode::kUsage,
                name_ + ":" + std::to_string(std::max<size_t>(next_, 1)) + ": " + reason);
  }

 private:
  const std::string& name_;
  std::vector<std::string_view> lines_;
  size_t next_ = 0;
};

std::string in_quotes(std::string_view text) { return "\"" + shown(text) + "\""; }

/// A plain decimal number without leading zeros at the start of `text`, taken off it.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<size_t>(end - text.data());
  if (code != std::errc() || length == 0 || text[0] == '-') return std::nullopt;
  if (length > 1 && text[0] == '0') return std::nullopt;
  text.remove_prefix(length);
  return value;
}

/// `s/^/<spaces>/` or `s/^<spaces>//` after the address.
bool read_shift(std::string_view rest, EdCommand& command) {
  if (!take_prefix(rest, "s/^")) return false;
  const size_t before = std::min(rest.find_first_not_of(' '), rest.size());
  rest.remove_prefix(before);
  if (!take_prefix(rest, "/")) return false;
  const size_t after = std::min(rest.find_first_not_of(' '), rest.size());
  rest.remove_prefix(after);
  if (rest != "/" || (before == 0) == (after == 0) || before + after > size_t{kMaxIndent})
    return false;
  command.verb = before > 0 ? '<' : '>';
  command.target = static_cast<int>(before + after);
  return true;
}

/// Text up to the line ".", with the lone-dot repairs folded in.
void read_text(Reader& in, EdCommand& command) {
  size_t start = 0;
  while (true) {
    const std::string_view line = in.take("the text's end, a line \".\",");
    if (line != ".") {
      command.lines.emplace_back(line);
      continue;
    }
    if (command.lines.size() == start) in.fail("a text without a line");
    if (in.at_end() || in.peek() != "s/.//") return;
    in.take("s/.//");
    if (command.lines.back() != "..") in.fail("s/.// may only repair a line \"..\" just written");
    command.lines.back() = ".";
    if (in.at_end() || in.peek() != "a") return;
    in.take("a");
    start = command.lines.size();
  }
}

EdCommand read_command(std::string_view line, Reader& in) {
  const auto refuse = [&](const std::string& reason) {
    in.fail(in_quotes(line) + " " + reason +
            "; taken are: Na, N,Mc, N,Md, N,MmT, N,Ms/^/<spaces>/, N,Ms/^<spaces>//, s/.// after a "
            "text, w");
  };
  EdCommand command;
  std::string_view rest = line;
  const std::optional<int> first = take_number(rest);
  if (!first) refuse("is no command that an .edit may hold");
  command.first = command.last = *first;
  if (take_prefix(rest, ",")) {
    const std::optional<int> last = take_number(rest);
    if (!last || *last <= *first) refuse("has no range of two lines or more");
    command.last = *last;
  }
  if (command.first == 0 && rest != "a") refuse("has no line 0 to act on");
  if (rest == "a" && command.first != command.last)
    refuse("appends after one line, not after a range");
  if (rest == "a" || rest == "c") {
    command.verb = rest[0];
    read_text(in, command);
  } else if (rest == "d") {
    command.verb = 'd';
  } else if (take_prefix(rest, "m")) {
    const std::optional<int> target = take_number(rest);
    if (!target || !rest.empty()) refuse("is no move to a line");
    if (*target >= command.first - 1 && *target <= command.last)
      refuse("moves lines to where they are");
    command.verb = 'm';
    command.target = *target;
  } else if (!read_shift(rest, command)) {
    refuse("is no command that an .edit may hold");
  }
  return command;
}

/// One `Key: value`, its further lines included.
std::pair<std::string, std::string> read_field(Reader& in) {
  const std::string_view line = in.take("a header field");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) in.fail(in_quotes(line) + " is no \"Field: value\"");
  const std::string key(line.substr(0, colon));
  const auto& names = edit_field_names();
  if (std::find(names.begin(), names.end(), key) == names.end()) {
    in.fail("unknown field " + in_quotes(key) + did_you_mean(key, names));
  }
  std::string_view rest = line.substr(colon + 1);
  if (!rest.empty() && (!take_prefix(rest, " ") || rest.empty())) {
    in.fail("one space and the value follow the colon of " + key);
  }
  std::string value(rest);
  while (!in.at_end() && in.peek().starts_with(' ')) {
    const std::string_view more = in.take("a further line").substr(1);
    if (more.empty()) in.fail("an empty further line is written \" .\"");
    value += "\n";
    if (more != ".") value += more;
  }
  return {key, value};
}

std::string read_named(Reader& in, const std::string& key) {
  std::string_view line = in.take(key + ":");
  if (!take_prefix(line, key + ": ") || line.empty())
    in.fail("\"" + key + ": …\" should stand here");
  return std::string(line);
}

std::string read_id(Reader& in, const std::string& key, std::string_view none) {
  std::string value = read_named(in, key);
  if (value == none) return "";
  if (!is_hex(value, 40))
    in.fail(key + " is 40 lower-case hex digits or \"" + std::string(none) + "\"");
  return value;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.back() == '/' || path.find('\\') != path.npos)
    return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part == ".git") return false;
    at = end + 1;
  }
  return std::none_of(path.begin(), path.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

void read_options(Reader& in, FileEdit& file) {
  if (!in.at_end() && in.peek().starts_with("Mode: ")) {
    file.mode = read_named(in, "Mode");
    if (file.mode != "100644" && file.mode != "100755") in.fail("Mode is 100644 or 100755");
  }
  if (!in.at_end() && in.peek().starts_with("Final-Newline: ")) {
    if (read_named(in, "Final-Newline") != "no") in.fail("Final-Newline is \"no\" or not written");
    file.final_newline = false;
  }
}

FileEdit read_file_section(Reader& in) {
  FileEdit file;
  file.path = read_named(in, "File");
  if (!is_safe_path(file.path)) in.fail(in_quotes(file.path) + " is no path inside the package");
  file.blob = read_id(in, "Blob", kNew);
  file.result = read_id(in, "Result", kDeleted);
  if (file.blob.empty() && file.result.empty()) in.fail("a new file cannot be deleted");
  read_options(in, file);
  if (!in.take("a blank line").empty())
    in.fail("a blank line parts a section's fields from its script");
  for (std::string_view line = in.take("a command"); line != "w"; line = in.take("\"w\"")) {
    file.commands.push_back(read_command(line, in));
  }
  if (file.result.empty() &&
      (!file.commands.empty() || !file.mode.empty() || !file.final_newline)) {
    in.fail("a deleted file has no script, mode or final newline");
  }
  return file;
}

/// A buffer of lines that takes ed's commands.
class Lines {
 public:
  Lines(std::string_view base, const std::string& path) : path_(path) {
    for (const std::string_view line : split_lines(base)) lines_.emplace_back(line);
  }

  void run(const EdCommand& command) {
    const auto count = static_cast<int>(lines_.size());
    if (command.last > count || command.first > command.last ||
        (command.verb == 'm' && command.target > count)) {
      fail(command, "the file has " + std::to_string(count) + " lines there");
    }
    const auto begin = lines_.begin() + std::max(command.first - 1, 0);
    const auto end = lines_.begin() + command.last;
    switch (command.verb) {
      case 'a':
        lines_.insert(end, command.lines.begin(), command.lines.end());
        return;
      case 'c':
        lines_.insert(lines_.erase(begin, end), command.lines.begin(), command.lines.end());
        return;
      case 'd':
        lines_.erase(begin, end);
        return;
      case 'm':
        if (command.target < command.first) {
          std::rotate(lines_.begin() + command.target, begin, end);
        } else {
          std::rotate(begin, end, lines_.begin() + command.target);
        }
        return;
      default:
        shift(command);
    }
  }

  std::string text(bool final_newline) const {
    std::string out;
    for (const std::string& line : lines_) out += line + "\n";
    if (!final_newline && !out.empty()) out.pop_back();
    return out;
  }

 private:
  [[noreturn]] void fail(const EdCommand& command, const std::string& reason) const {
    throw Error(ErrorCode::kUsage, path_ + ": command '" + command.verb + "' on lines " +
                                       std::to_string(command.first) + "-" +
                                       std::to_string(command.last) + ": " + reason);
  }

  void shift(const EdCommand& command) {
    const std::string spaces(static_cast<size_t>(command.target), ' ');
    for (int i = command.first - 1; i < command.last; ++i) {
      std::string& line = lines_[static_cast<size_t>(i)];
      if (command.verb == '>') {
        line.insert(0, spaces);
      } else if (line.starts_with(spaces)) {
        line.erase(0, spaces.size());
      } else {
        fail(command, "line " + std::to_string(i + 1) + " has no " + std::to_string(spaces.size()) +
                          " spaces to take off");
      }
    }
  }

  const std::string& path_;
  std::vector<std::string> lines_;
};

std::string address(const EdCommand& command) {
  std::string out = std::to_string(command.first);
  if (command.first != command.last) out += "," + std::to_string(command.last);
  return out;
}

void write_text(const std::vector<std::string>& lines, std::string& out) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != ".") {
      out += lines[i] + "\n";
      continue;
    }
    out += "..\n.\ns/.//\n";
    if (i + 1 == lines.size()) return;
    out += "a\n";
  }
  out += ".\n";
}

void write_command(const EdCommand& command, std::string& out) {
  out += address(command);
  const std::string spaces(static_cast<size_t>(std::max(command.target, 0)), ' ');
  switch (command.verb) {
    case 'a':
    case 'c':
      out += std::string(1, command.verb) + "\n";
      write_text(command.lines, out);
      return;
    case 'd':
      out += "d\n";
      return;
    case 'm':
      out += "m" + std::to_string(command.target) + "\n";
      return;
    case '>':
      out += "s/^/" + spaces + "/\n";
      return;
    case '<':
      out += "s/^" + spaces + "//\n";
      return;
    default:
      throw Error(ErrorCode::kInternal, std::string("no ed verb '") + command.verb + "'");
  }
}

void write_field(const std::string& key, const std::string& value, std::string& out) {
  out += key + ":";
  size_t at = 0;
  for (bool is_first = true; at <= value.size(); is_first = false) {
    const size_t end = std::min(value.find('\n', at), value.size());
    const std::string line = value.substr(at, end - at);
    if (line == "." && !is_first)
      throw Error(ErrorCode::kUsage, key + ": a line \".\" cannot be written");
    if (is_first) {
      out += line.empty() ? "\n" : " " + line + "\n";
    } else {
      out += " " + (line.empty() ? "." : line) + "\n";
    }
    at = end + 1;
  }
}

std::string id_or(const std::string& id, std::string_view none) {
  return id.empty() ? std::string(none) : id;
}

}  // namespace

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::string Edit::field(std::string_view key) const {
  for (const auto& [name_of, value] : header) {
    if (name_of == key) return value;
  }
  return "";
}

void Edit::set_field(const std::string& key, const std::string& value) {
  for (auto& [name_of, old] : header) {
    if (name_of == key) {
      old = value;
      return;
    }
  }
  header.emplace_back(key, value);
}

bool is_candidate(std::string_view name) {
  return name.starts_with("wrong-") || name.starts_with("right-");
}

const std::vector<std::string>& edit_field_names() {
  static const std::vector<std::string> kNames = {
      "Subject",          "Description", "Upstream",   "Base", "Over",
      "Without",          "Origin",      "Author",     "Bug",  "Forwarded",
      "Applied-Upstream", "License",     "Last-Update"};
  return kNames;
}

std::vector<std::string> missing_fields(const Edit& edit) {
  std::vector<std::string> missing;
  for (const char* key : {"Subject", "Description", "Upstream", "Base", "Origin", "Forwarded",
                          "License", "Last-Update"}) {
    if (edit.field(key).empty()) missing.emplace_back(key);
  }
  return missing;
}

Edit parse_edit(std::string_view text, const std::string& name) {
  Reader in(text, name);
  Edit edit;
  edit.name = name;
  while (!in.at_end() && !in.peek().empty()) {
    auto field = read_field(in);
    for (const auto& [key, value] : edit.header) {
      if (key == field.first) in.fail("the field " + key + " stands twice");
    }
    edit.header.push_back(std::move(field));
  }
  if (edit.field("Subject").empty()) in.fail("the header has no Subject");
  while (!in.at_end()) {
    if (!in.take("a blank line").empty()) in.fail("a blank line should stand here");
    FileEdit file = read_file_section(in);
    for (const FileEdit& other : edit.files) {
      if (other.path == file.path) in.fail("the file " + file.path + " stands twice");
    }
    edit.files.push_back(std::move(file));
  }
  if (edit.files.empty() && edit.field("Without").empty()) in.fail("no \"File:\" section");
  return edit;
}

std::string ed_script(const FileEdit& edit) {
  std::string out;
  for (const EdCommand& command : edit.commands) write_command(command, out);
  return out + "w\n";
}

std::string format_edit(const Edit& edit) {
  std::string out;
  for (const auto& [key, value] : edit.header) write_field(key, value, out);
  for (const FileEdit& file : edit.files) {
    out += "\nFile: " + file.path + "\nBlob: " + id_or(file.blob, kNew) +
           "\nResult: " + id_or(file.result, kDeleted) + "\n";
    if (!file.mode.empty()) out += "Mode: " + file.mode + "\n";
    if (!file.final_newline) out += "Final-Newline: no\n";
    out += "\n" + ed_script(file);
  }
  if (out.find('\0') != std::string::npos)
    throw Error(ErrorCode::kUsage, edit.name + ": a NUL byte in the text");
  return out;
}

std::string apply_file_edit(const FileEdit& edit, std::string_view base) {
  const std::string got = edit.blob.empty() && base.empty() ? "" : git_blob_id(base);
  if (got != edit.blob) {
    throw Error(ErrorCode::kUsage, edit.path + ": the edit wants the base blob " +
                                       id_or(edit.blob, kNew) + ", got " + got +
                                       "; `patchbench patch rebase` carries it to another version");
  }
  if (edit.result.empty()) return "";
  Lines lines(base, edit.path);
  for (const EdCommand& command : edit.commands) lines.run(command);
  const std::string text = lines.text(edit.final_newline);
  const std::string result = git_blob_id(text);
  if (result != edit.result) {
    throw Error(ErrorCode::kUsage, edit.path + ": the script's result is blob " + result +
                                       ", the edit records " + edit.result +
                                       "; the .edit was changed by hand: save it anew");
  }
  return text;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace patchbench
