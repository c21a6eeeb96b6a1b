#include "core/install_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/requirements_file.h"

namespace patchbench {
namespace {

using Words = std::vector<std::string>;

/// A simple command, and the line of each of its words.
struct Command {
  Words words;
  std::vector<int> lines;
};

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Cuts a script into simple commands. It expands $NAME and ${NAME} where the script has set them
/// before to one value. Another expansion stays in its word, with the "$". What a command between
/// $( ) or backticks starts is a command of its own.
class ShellReader {
 public:
  ShellReader() = default;
  ShellReader(std::map<std::string, std::string> values, int depth)
      : values_(std::move(values)), depth_(depth) {}

  std::vector<Command> read(std::string_view text) {
    std::string joined;
    int number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view part = text.substr(0, end);
      part = part.substr(0, part.find_last_not_of(" \t\r") + 1);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number;
      // A comment may stand between the lines of one command.
      const std::size_t begin = part.find_first_not_of(" \t");
      if (begin != std::string_view::npos && part[begin] == '#' && !joined.empty()) continue;
      starts_.emplace_back(joined.size(), number);
      const bool goes_on = part.ends_with("\\");
      joined += part.substr(0, part.size() - (goes_on ? 1 : 0));
      joined += goes_on ? " " : "";
      if (!goes_on) read_line(joined);
      if (!goes_on) joined.clear();
    }
    read_line(joined);
    return std::move(commands_);
  }

 private:
  void read_line(const std::string& line) {
    quote_ = '\0';
    for (std::size_t at = 0; at < line.size(); ++at) {
      const char c = line[at];
      if (quote_ == '\0' && c == '#' && !is_open_) break;
      if (quote_ == '\0' && (c == ' ' || c == '\t')) {
        is_open_ = false;
      } else if (quote_ != '\'' && (c == '$' || c == '`')) {
        at = expand(line, at);
      } else if (quote_ == '\0' && reads_end(line, at)) {
        end_command();
        is_guarded_ = c == '&' || c == '|';
      } else {
        at = read_character(line, at);
      }
    }
    // The value of NAME="a that goes on in the next line is not known.
    const std::string word = command_.words.empty() ? "" : command_.words.back();
    if (quote_ != '\0' && quoted_from_ > 0 && word.substr(0, quoted_from_).ends_with("="))
      command_.words.back() += kUnknown;
    end_command();
    is_guarded_ = false;
    starts_.clear();
  }

  /// Whether a character outside of quotes ends a command. "2>&1" and a brace in a word do not.
  bool reads_end(const std::string& line, std::size_t at) {
    const char c = line[at], next = at + 1 < line.size() ? line[at + 1] : ' ';
    if (c == '&') return next != '>' && (at == 0 || line[at - 1] != '>');
    if (c == '{' || c == '}') {
      const bool is_word = !is_open_ && (c == '}' || next == ' ' || next == '\t');
      if (is_word) nesting_ += c == '{' ? 1 : -1;
      return is_word;
    }
    // NAME=(a b) has several values.
    if (c == '(' && is_open_ && command_.words.back().ends_with("="))
      command_.words.back() += kUnknown;
    return std::string_view(";|()").find(c) != std::string_view::npos;
  }

  /// Returns the place of the last character that was read.
  std::size_t read_character(const std::string& line, std::size_t at) {
    const char c = line[at];
    std::string& word = word_at(at);
    if (c == quote_) {
      quote_ = '\0';
    } else if (quote_ == '\0' && (c == '"' || c == '\'')) {
      quote_ = c;
      quoted_from_ = word.size();
    } else if (c == '\\' && quote_ != '\'' && at + 1 < line.size()) {
      word += line[++at];
    } else {
      word += c;
    }
    return at;
  }

  std::string& word_at(std::size_t at) {
    if (!is_open_) {
      command_.words.emplace_back();
      const auto after =
          std::upper_bound(starts_.begin(), starts_.end(), at,
                           [](std::size_t x, const auto& one) { return x < one.first; });
      command_.lines.push_back(after == starts_.begin() ? 0 : (after - 1)->second);
    }
    is_open_ = true;
    return command_.words.back();
  }

  /// Where the bracket at `at` is closed; npos where that is too far away.
  static std::size_t closing(const std::string& line, std::size_t at) {
    constexpr std::size_t kMaxExpression = 4096;
    const char open = line[at], close = open == '(' ? ')' : open == '{' ? '}' : open;
    if (open == close) return line.find(close, at + 1);
    int num_open = 0;
    for (std::size_t i = at; i < std::min(line.size(), at + kMaxExpression); ++i) {
      num_open += line[i] == open ? 1 : line[i] == close ? -1 : 0;
      if (num_open == 0) return i;
    }
    return std::string::npos;
  }

  /// Adds the value of the expansion at `at`, which without quotes may be several words.
  std::size_t expand(const std::string& line, std::size_t at) {
    const char next = at + 1 < line.size() ? line[at + 1] : ' ';
    if (line[at] == '`' || next == '(') {
      const std::size_t begin = at + (line[at] == '`' ? 0 : 1), end = closing(line, begin);
      const bool is_alone = end == std::string::npos && line[at] == '`' && !is_open_;
      if (!is_alone) word_at(at) += kUnknown;
      if (end == std::string::npos && line[at] == '`' && quote_ == '\0') end_command();
      if (end == std::string::npos) return at;
      inner_.emplace_back(line.substr(begin + 1, end - begin - 1), command_.lines.back());
      return end;
    }
    const bool has_brace = next == '{';
    std::size_t end = at + 1;
    while (end < line.size() && is_name(line[end])) ++end;
    if (has_brace) end = closing(line, at + 1);
    if (end == std::string::npos || end == at + 1) {
      word_at(at) += '$';
      return at;
    }
    const std::size_t begin = at + (has_brace ? 2 : 1), last = has_brace ? end : end - 1;
    const auto value = values_.find(line.substr(begin, end - begin));
    if (value == values_.end()) {
      std::string text = line.substr(at, last + 1 - at);
      std::erase_if(text, [](char c) { return c == ' ' || c == '\t'; });
      word_at(at) += text;
      return last;
    }
    for (const char c : value->second) {
      if (c == ' ' && quote_ == '\0')
        is_open_ = false;
      else
        word_at(at) += c;
    }
    return last;
  }

  void end_command() {
    is_open_ = false;
    if (command_.words.empty()) return;
    remember();
    commands_.push_back(std::move(command_));
    command_ = {};
    constexpr int kMaxDepth = 4;
    const auto texts = std::exchange(inner_, {});
    for (const auto& [text, number] : texts) {
      if (depth_ == kMaxDepth) break;
      for (Command& one : ShellReader(values_, depth_ + 1).read(text)) {
        std::fill(one.lines.begin(), one.lines.end(), number);
        commands_.push_back(std::move(one));
      }
    }
  }

  /// The place behind the words of the shell that a command begins with ("then", "do").
  std::size_t leave_keywords() {
    static const std::set<std::string> kBegin = {"if", "while", "until", "for", "case"},
                                       kEnd = {"fi", "done", "esac"},
                                       kBefore = {"then", "else", "elif", "do", "!"};
    const Words& words = command_.words;
    for (std::size_t at = 0; at < words.size(); ++at) {
      nesting_ += kBegin.contains(words[at]) ? 1 : kEnd.contains(words[at]) ? -1 : 0;
      if (words[at] == "for" && at + 1 < words.size()) forget(words[at + 1]);
      if (!kBegin.contains(words[at]) && !kEnd.contains(words[at]) && !kBefore.contains(words[at]))
        return at;
    }
    return words.size();
  }

  /// NAME=VALUE, alone or behind export, ARG and ENV; "ENV NAME VALUE"; NAME+=MORE; "read NAME".
  void remember() {
    static const std::set<std::string> kSetters = {"export", "ARG",     "ENV",     "arg",
                                                   "local",  "declare", "typeset", "readonly"};
    const Words& words = command_.words;
    std::size_t at = leave_keywords();
    const bool is_read = at < words.size() && words[at] == "read";
    for (const std::string& one : is_read ? words : Words()) forget(one);
    const bool is_set = at < words.size() && kSetters.contains(words[at]);
    if (words[0] == "ENV" && words.size() == 3 && words[1].find('=') == std::string::npos)
      set(words[1], words[2]);
    for (at += is_set ? 1 : 0; at < words.size(); ++at) {
      if (is_set && words[at].starts_with("-")) continue;
      const std::size_t sign = words[at].find('=');
      if (sign == std::string::npos) break;
      const bool is_more = sign > 0 && words[at][sign - 1] == '+';
      const std::string name = words[at].substr(0, sign - (is_more ? 1 : 0)),
                        value = words[at].substr(sign + 1);
      if (name.empty() || !std::all_of(name.begin(), name.end(), is_name)) break;
      if (!is_more)
        set(name, value);
      else if (values_.contains(name))
        set(name, values_.at(name) + value);
    }
  }

  bool is_choice() const { return nesting_ > 0 || is_guarded_; }

  void forget(const std::string& name) {
    values_.erase(name);
    if (is_choice()) unknown_.insert(name);
  }

  /// A value that refers to itself may grow without end: a long one is not known, and neither is
  /// one of two that a branch chooses between.
  void set(const std::string& name, const std::string& value) {
    constexpr std::size_t kMaxValue = 4096;
    if (!is_choice()) unknown_.erase(name);
    const auto known = values_.find(name);
    const bool is_other = known != values_.end() && value.find(known->second) == std::string::npos;
    if (is_choice() && is_other) unknown_.insert(name);
    const bool is_whole = value.size() <= kMaxValue && value.find(kUnknown) == std::string::npos;
    if (is_whole && !unknown_.contains(name))
      values_[name] = value;
    else
      values_.erase(name);
  }

  static constexpr std::string_view kUnknown = "$(...)";  ///< of a value: what is not in the text
  std::vector<Command> commands_;
  Command command_;  ///< the one that is read
  char quote_ = '\0';
  std::size_t quoted_from_ = 0;  ///< the place in its word where the last quote began
  bool is_open_ = false;         ///< its last word has begun
  bool is_guarded_ = false;      ///< it runs behind && or ||
  std::map<std::string, std::string> values_;
  std::set<std::string> unknown_;                    ///< what a branch may have set
  std::vector<std::pair<std::string, int>> inner_;   ///< the commands in its words
  std::vector<std::pair<std::size_t, int>> starts_;  ///< where each line begins in the joined one
  int nesting_ = 0;                                  ///< of if, for, case and braces
  int depth_ = 0;
};

bool is_any(const std::string& word, std::initializer_list<std::string_view> of) {
  return std::find(of.begin(), of.end(), word) != of.end();
}

/// "pip" of "/opt/venv/bin/pip", and of "!pip" or "%pip" of a notebook.
std::string program_of(const std::string& word) {
  const std::size_t begin = word.starts_with("!") || word.starts_with("%") ? 1 : 0;
  return word.substr(std::max(word.rfind('/') + 1, begin));
}

/// "python3.11" for "python".
bool is_versioned(const std::string& word, std::string_view name) {
  return word.starts_with(name) &&
         word.find_first_not_of("0123456789.", name.size()) == std::string::npos;
}

enum class Installer { kPip, kConda };

/// The options of these installers that have a value in the next word and name no package.
bool has_value(const std::string& option) {
  static const std::set<std::string> kOptions = {"-i",
                                                 "--index-url",
                                                 "--extra-index-url",
                                                 "--index",
                                                 "--default-index",
                                                 "-f",
                                                 "--find-links",
                                                 "-t",
                                                 "--target",
                                                 "-p",
                                                 "--python",
                                                 "--prefix",
                                                 "--root",
                                                 "--platform",
                                                 "--python-version",
                                                 "--implementation",
                                                 "--abi",
                                                 "--src",
                                                 "--upgrade-strategy",
                                                 "--cache-dir",
                                                 "--trusted-host",
                                                 "--config-settings",
                                                 "--config-setting",
                                                 "-C",
                                                 "--progress-bar",
                                                 "--timeout",
                                                 "--retries",
                                                 "--proxy",
                                                 "--log",
                                                 "--global-option",
                                                 "--install-option",
                                                 "--no-binary",
                                                 "--only-binary",
                                                 "--no-build-isolation-package",
                                                 "--index-strategy",
                                                 "--torch-backend",
                                                 "--link-mode",
                                                 "--prerelease",
                                                 "--resolution",
                                                 "--exclude-newer",
                                                 "--group",
                                                 "--extra",
                                                 "-n",
                                                 "--name",
                                                 "--channel",
                                                 "--solver",
                                                 "-c",
                                                 "--use-feature",
                                                 "--root-user-action",
                                                 "--report"};
  return kOptions.contains(option);
}

/// Where the verb of the program at `at` is, behind its options: "install" of "uv -q pip install".
std::size_t verb_of(const Words& words, std::size_t at) {
  const bool is_uv = program_of(words[at]) == "uv";
  ++at;
  while (at < words.size() && (words[at].starts_with("-") || (is_uv && words[at] == "pip")))
    at += has_value(words[at]) ? 2 : 1;
  return at;
}

/// Which installer a command starts, itself or by another program (sudo, xargs, srun), and where
/// what it takes begins; nullopt for another command.
std::optional<std::pair<Installer, std::size_t>> installer_of(const Words& words) {
  const auto word = [&](std::size_t i) { return i < words.size() ? words[i] : std::string(); };
  if (is_any(words[0], {"echo", "printf"})) return std::nullopt;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string program = program_of(words[at]);
    const std::size_t verb = verb_of(words, at);
    const bool is_pip = is_versioned(program, "pip") || program == "uv";
    if (is_pip && word(verb) == "install") return std::pair(Installer::kPip, verb + 1);
    if (is_any(program, {"uv", "poetry", "pdm"}) && word(verb) == "add")
      return std::pair(Installer::kPip, verb + 1);
    if (is_any(program, {"conda", "mamba", "micromamba"}) &&
        is_any(word(verb), {"install", "create"}))
      return std::pair(Installer::kConda, verb + 1);
  }
  return std::nullopt;
}

/// Whether a command installs what another file says, or is an installer that is not read.
bool installs_from_file(const Words& words) {
  // $PIP is not set in the script.
  if (words.size() > 1 && words[0].starts_with("$") && words[1] == "install") return true;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string program = program_of(words[at]);
    const std::size_t verb = verb_of(words, at);
    const std::string does = verb < words.size() ? words[verb] : "";
    if (program == "pip-sync" || (is_any(program, {"uv", "pdm", "pipenv"}) && does == "sync") ||
        (is_any(program, {"poetry", "pdm", "pipenv", "pixi"}) && does == "install") ||
        (is_any(program, {"pixi", "rye"}) && does == "add") || program == "easy_install" ||
        (program == "setup.py" && is_any(does, {"install", "develop"})) ||
        (is_any(program, {"conda", "mamba", "micromamba"}) && does == "env"))
      return true;
  }
  return false;
}

/// "FROM image", in lower case only where it can be nothing of Python.
bool names_base(const Words& words) {
  if (words.size() < 2) return false;
  const bool is_short = words.size() == 2 || (words.size() == 4 && is_any(words[2], {"AS", "as"}));
  return words[0] == "FROM" || (words[0] == "from" && is_short);
}

/// The words of a command in a list, as Docker's RUN ["pip", "install", "a"] has them, or Python.
Words without_list(Words words) {
  const bool is_list = words[0].starts_with("[") || (words.size() > 1 && words[1].starts_with("["));
  for (std::string& word : words) {
    if (is_list && word.starts_with("[") && word.size() > 1) word.erase(0, 1);
    if (is_list && (word.ends_with(",") || word.ends_with("]"))) word.pop_back();
  }
  return words;
}

class Recipe {
 public:
  Recipe(std::string file, const ReadIncluded& read_included)
      : file_(std::move(file)), read_included_(read_included) {}

  PackageList read(std::string_view text) {
    for (const Command& command : ShellReader().read(text)) read_command(command);
    PackageList list = required_packages(lines_, file_, read_included_);
    for (const auto& [name, version, line] : conda_) {
      list.num_unpinned += version.empty() ? 1 : 0;
      list.add(name, {.version = version, .source = "conda", .file = file_, .line = line});
    }
    for (const std::string& one : unread_) list.leave_unread(one);
    list.lists_all = false;
    return list;
  }

 private:
  struct CondaPackage {
    std::string name, version;
    int line = 0;
  };

  void read_command(const Command& command, int depth = 0) {
    const Words words = without_list(command.words);
    if (names_base(words)) return read_base(words, command.lines[0]);
    if (is_any(words[0], {"From:", "from:", "FROM:"}) && words.size() > 1)
      return add_base(words[1], command.lines[0]);
    const auto installer = installer_of(words);
    if (!installer) return read_other(words, command.lines, depth);
    const std::size_t num_before = lines_.size() + conda_.size() + unread_.size();
    for (std::size_t at = installer->second; at < words.size(); ++at) {
      if (installer->first == Installer::kPip)
        at = read_pip(words, at, command.lines[at]);
      else
        at = read_conda(words, at, command.lines[at]);
    }
    if (lines_.size() + conda_.size() + unread_.size() == num_before)
      leave_unread(words, command.lines[0]);
  }

  /// What starts no installer: it may have one in a word (bash -c "pip install a"), or take what it
  /// installs from a file.
  void read_other(const Words& words, const std::vector<int>& lines, int depth) {
    constexpr int kMaxDepth = 4;
    if (is_any(words[0], {"echo", "printf"})) return;
    if (installs_from_file(words)) return leave_unread(words, lines[0]);
    for (std::size_t at = 0; at < words.size(); ++at) {
      if (program_of(words[0]) == "uv" && words[at] == "--with" && at + 1 < words.size())
        add(words[at + 1], lines[at + 1]);
      if (words[at].find(' ') == std::string::npos || depth == kMaxDepth) continue;
      for (Command& inner : ShellReader().read(words[at])) {
        std::fill(inner.lines.begin(), inner.lines.end(), lines[at]);
        read_command(inner, depth + 1);
      }
    }
  }

  void leave_unread(const Words& words, int line) {
    unread_.push_back(
        fmt::format("{}:{}: {}", file_, line, shown(fmt::format("{}", fmt::join(words, " ")))));
  }

  void read_base(const Words& words, int line) {
    std::size_t at = 1;
    while (at + 1 < words.size() && words[at].starts_with("--")) ++at;
    const bool is_stage = stages_.contains(words[at]);
    if (at + 2 < words.size() && is_any(words[at + 1], {"AS", "as"})) stages_.insert(words[at + 2]);
    if (!is_stage && words[at] != "scratch") add_base(words[at], line);
  }

  void add_base(const std::string& image, int line) {
    unread_.push_back(fmt::format("{}:{}: the base image {}", file_, line, shown(image)));
  }

  /// Returns the place of the last word that was read.
  std::size_t read_pip(const Words& words, std::size_t at, int line) {
    const std::string& word = words[at];
    for (const char* option : {"-r", "--requirement", "-e", "--editable", "--constraint"}) {
      if (!word.starts_with(option)) continue;
      std::string value = word.substr(std::string(option).size());
      const bool is_next = value.empty();
      if (is_next) value = at + 1 < words.size() ? words[at + 1] : "";
      if (!is_next && option[1] == '-' && value[0] != '=') continue;
      add(std::string(option) + " " + (value.starts_with("=") ? value.substr(1) : value), line);
      return is_next ? at + 1 : at;
    }
    if (word.starts_with("-")) return has_value(word) ? at + 1 : at;
    // A redirection, with its file in the same word or in the next.
    const std::size_t sign = word.find_first_of("<>");
    if (sign != std::string::npos && word.find_first_not_of("0123456789&") == sign)
      return word.find_last_of("<>") + 1 == word.size() ? at + 1 : at;
    add(word, line);
    return at;
  }

  void add(const std::string& text, int line) {
    if (text.find('$') != std::string::npos)
      unread_.push_back(fmt::format("{}:{}: {}", file_, line, shown(text)));
    else
      lines_.push_back({text, line});
  }

  std::size_t read_conda(const Words& words, std::size_t at, int line) {
    const std::string& word = words[at];
    if (is_any(word, {"-f", "--file"})) {
      const std::string list = at + 1 < words.size() ? words[at + 1] : "";
      unread_.push_back(fmt::format("{}:{}: --file {}", file_, line, shown(list)));
      return at + 1;
    }
    if (word.starts_with("-")) return has_value(word) ? at + 1 : at;
    const auto [name, version] = conda_package(word);
    conda_.push_back({name, version, line});
    return at;
  }

  std::string file_;
  const ReadIncluded& read_included_;
  std::vector<RequirementLine> lines_;
  std::vector<CondaPackage> conda_;
  std::vector<std::string> unread_;
  std::set<std::string> stages_;
};

}  // namespace

bool is_install_script(std::string_view text) {
  if (text.starts_with("#!")) return true;
  const std::vector<Command> commands = ShellReader().read(text);
  return std::any_of(commands.begin(), commands.end(), [](const Command& one) {
    const Words words = without_list(one.words);
    return installer_of(words) || installs_from_file(words) || names_base(words) ||
           is_any(words[0], {"Bootstrap:", "BootStrap:", "bootstrap:"});
  });
}

PackageList installed_packages(std::string_view text, const std::string& file,
                               const ReadIncluded& read_included) {
  return Recipe(file, read_included).read(text);
}

}  // namespace patchbench
