#include "core/install_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
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

/// Cuts a script into simple commands. It expands $NAME and ${NAME} where the
/// script has set them before. Another expansion stays in its word, with the "$".
class ShellReader {
 public:
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
      } else if (quote_ == '\0' && std::string_view(";&|(){}`").find(c) != std::string_view::npos) {
        end_command();
      } else {
        at = read_character(line, at);
      }
    }
    end_command();
    starts_.clear();
  }

  /// Returns the place of the last character that was read.
  std::size_t read_character(const std::string& line, std::size_t at) {
    const char c = line[at];
    if (c == '$' && quote_ != '\'') return expand(line, at);
    std::string& word = word_at(at);
    if (c == quote_) {
      quote_ = '\0';
    } else if (quote_ == '\0' && (c == '"' || c == '\'')) {
      quote_ = c;
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

  /// Adds the value of the variable at `at`, which without quotes may be several words.
  std::size_t expand(const std::string& line, std::size_t at) {
    const bool has_brace = at + 1 < line.size() && line[at + 1] == '{';
    const std::size_t begin = at + (has_brace ? 2 : 1);
    std::size_t end = begin;
    while (end < line.size() && is_name(line[end])) ++end;
    const auto value = values_.find(line.substr(begin, end - begin));
    const bool is_closed = !has_brace || (end < line.size() && line[end] == '}');
    if (value == values_.end() || !is_closed) {
      word_at(at) += '$';
      return at;
    }
    for (const char c : value->second) {
      if (c == ' ' && quote_ == '\0')
        is_open_ = false;
      else
        word_at(at) += c;
    }
    return has_brace ? end : end - 1;
  }

  void end_command() {
    is_open_ = false;
    if (command_.words.empty()) return;
    remember();
    commands_.push_back(std::move(command_));
    command_ = {};
  }

  /// NAME=VALUE, alone or behind export, ARG and ENV; "ENV NAME VALUE".
  void remember() {
    const Words& words = command_.words;
    const bool is_set = words[0] == "export" || words[0] == "ARG" || words[0] == "ENV";
    if (words[0] == "ENV" && words.size() == 3 && words[1].find('=') == std::string::npos)
      set(words[1], words[2]);
    for (std::size_t at = is_set ? 1 : 0; at < words.size(); ++at) {
      const std::size_t sign = words[at].find('=');
      if (sign == std::string::npos || sign == 0 ||
          !std::all_of(words[at].begin(), words[at].begin() + static_cast<std::ptrdiff_t>(sign),
                       is_name))
        break;
      set(words[at].substr(0, sign), words[at].substr(sign + 1));
    }
  }

  /// A value that refers to itself may grow without end: a long one is not known.
  void set(const std::string& name, const std::string& value) {
    constexpr std::size_t kMaxValue = 4096;
    if (value.size() <= kMaxValue && value.find('$') == std::string::npos)
      values_[name] = value;
    else
      values_.erase(name);
  }

  std::vector<Command> commands_;
  Command command_;  ///< the one that is read
  char quote_ = '\0';
  bool is_open_ = false;  ///< its last word has begun
  std::map<std::string, std::string> values_;
  std::vector<std::pair<std::size_t, int>> starts_;  ///< where each line begins in the joined one
};

bool is_any(const std::string& word, std::initializer_list<std::string_view> of) {
  return std::find(of.begin(), of.end(), word) != of.end();
}

std::string program_of(const std::string& word) { return word.substr(word.rfind('/') + 1); }

/// "python3.11" for "python".
bool is_versioned(const std::string& word, std::string_view name) {
  return word.starts_with(name) &&
         word.find_first_not_of("0123456789.", name.size()) == std::string::npos;
}

enum class Installer { kPip, kConda };

/// Where the verb of the program at `at` is, behind its options: "install" of "uv -q pip install".
std::size_t verb_of(const Words& words, std::size_t at) {
  const bool is_uv = program_of(words[at]) == "uv";
  do ++at;
  while (at < words.size() && (words[at].starts_with("-") || (is_uv && words[at] == "pip")));
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

/// Whether a command installs what another file says; it is not looked for.
bool installs_from_file(const Words& words) {
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string program = program_of(words[at]);
    const std::size_t verb = verb_of(words, at);
    const std::string does = verb < words.size() ? words[verb] : "";
    if (program == "pip-sync" || (is_any(program, {"uv", "pdm", "pipenv"}) && does == "sync") ||
        (is_any(program, {"poetry", "pdm", "pipenv", "pixi"}) && does == "install") ||
        (is_any(program, {"conda", "mamba", "micromamba"}) && does == "env"))
      return true;
  }
  return false;
}

/// The words of a command in a list, as Docker's RUN ["pip", "install", "a"] has them.
Words without_list(Words words) {
  if (words.size() < 2 || !words[1].starts_with("[")) return words;
  for (std::string& word : words) {
    if (word.starts_with("[") && &word != &words[0]) word.erase(0, 1);
    if (word.ends_with(",") || word.ends_with("]")) word.pop_back();
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
    if (words[0] == "FROM" && words.size() > 1) return read_base(words, command.lines[0]);
    if (words[0] == "From:" && words.size() > 1) return add_base(words[1], command.lines[0]);
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
    // A redirection ends what is taken.
    if (word.find_first_of("<>") == 0 || word.starts_with("2>")) return words.size();
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
    return installer_of(words) || installs_from_file(words) ||
           (words[0] == "FROM" && words.size() > 1);
  });
}

PackageList installed_packages(std::string_view text, const std::string& file,
                               const ReadIncluded& read_included) {
  return Recipe(file, read_included).read(text);
}

}  // namespace patchbench
