#include "core/install_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
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

/// Cuts a script into simple commands. Of expansions it knows $NAME and ${NAME}; a word with
/// another one keeps its "$".
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
    commands_.emplace_back();
    char quote = '\0';
    bool is_open = false;
    for (std::size_t at = 0; at < line.size(); ++at) {
      const char c = line[at];
      if (quote == '\0' && c == '#' && !is_open) break;
      if (quote == '\0' && (c == ' ' || c == '\t')) {
        is_open = false;
        continue;
      }
      if (quote == '\0' && std::string_view(";&|(){}`").find(c) != std::string_view::npos) {
        commands_.emplace_back();
        is_open = false;
        continue;
      }
      std::string& word = word_at(at, is_open);
      if (c == quote) {
        quote = '\0';
      } else if (quote == '\0' && (c == '"' || c == '\'')) {
        quote = c;
      } else if (c == '\\' && quote != '\'' && at + 1 < line.size()) {
        word += line[++at];
      } else if (c == '$' && quote != '\'') {
        at = expand(line, at, word);
      } else {
        word += c;
      }
    }
    remember();
    starts_.clear();
  }

  std::string& word_at(std::size_t at, bool& is_open) {
    Command& command = commands_.back();
    if (!is_open) {
      command.words.emplace_back();
      const auto start = std::find_if(starts_.rbegin(), starts_.rend(),
                                      [&](const auto& one) { return one.first <= at; });
      command.lines.push_back(start == starts_.rend() ? 0 : start->second);
    }
    is_open = true;
    return command.words.back();
  }

  /// Adds the value of the variable at `at`; returns the place of its last character.
  std::size_t expand(const std::string& line, std::size_t at, std::string& word) const {
    const bool has_brace = at + 1 < line.size() && line[at + 1] == '{';
    const std::size_t begin = at + (has_brace ? 2 : 1);
    std::size_t end = begin;
    while (end < line.size() && is_name(line[end])) ++end;
    const auto value = values_.find(line.substr(begin, end - begin));
    const bool is_closed = !has_brace || (end < line.size() && line[end] == '}');
    if (value == values_.end() || !is_closed) {
      word += '$';
      return at;
    }
    word += value->second;
    return has_brace ? end : end - 1;
  }

  /// NAME=VALUE of the commands of the last line: plain, or after export, ARG and ENV.
  void remember() {
    for (const Command& command : commands_) {
      for (std::size_t at = 0; at < command.words.size(); ++at) {
        const std::string& word = command.words[at];
        const bool is_setting = word == "export" || word == "ARG" || word == "ENV";
        const std::size_t sign = word.find('=');
        if (is_setting) continue;
        if (sign == std::string::npos || sign == 0 ||
            !std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(sign), is_name)) {
          // "ENV NAME value"
          if (at == 1 && command.words[0] == "ENV" && command.words.size() == 3)
            values_[word] = command.words[2];
          break;
        }
        values_[word.substr(0, sign)] = word.substr(sign + 1);
      }
    }
    std::erase_if(commands_, [](const Command& one) { return one.words.empty(); });
  }

  std::vector<Command> commands_;
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

/// Which installer a command is, and where what it takes begins; nullopt for another command.
std::optional<std::pair<Installer, std::size_t>> installer_of(const Words& words) {
  std::size_t at = 0;
  const auto word = [&](std::size_t i) { return i < words.size() ? words[i] : std::string(); };
  while (at < words.size() && (words[at].find('=') != std::string::npos ||
                               words[at].ends_with(":") || words[at].starts_with("-") ||
                               is_any(words[at], {"RUN", "sudo", "env", "time", "exec", "then",
                                                  "do", "else", "if", "!"})))
    ++at;
  if (is_versioned(program_of(word(at)), "python") && word(at + 1) == "-m") at += 2;
  const std::string program = program_of(word(at));
  if (program == "uv" && word(at + 1) == "pip") ++at;
  const std::string verb = word(at + 1);
  if ((is_versioned(program, "pip") || program == "uv") && verb == "install")
    return std::pair(Installer::kPip, at + 2);
  if (is_any(program, {"uv", "poetry", "pdm"}) && verb == "add")
    return std::pair(Installer::kPip, at + 2);
  if (is_any(program, {"conda", "mamba", "micromamba"}) && is_any(verb, {"install", "create"}))
    return std::pair(Installer::kConda, at + 2);
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
  for (std::size_t at = 0; at + 1 < words.size(); ++at) {
    const std::string program = program_of(words[at]);
    if (program == "pip-sync" ||
        (is_any(program, {"uv", "pdm", "pipenv"}) && words[at + 1] == "sync") ||
        (is_any(program, {"poetry", "pdm", "pipenv", "pixi"}) && words[at + 1] == "install") ||
        (is_any(program, {"conda", "mamba", "micromamba"}) && words[at + 1] == "env"))
      return true;
  }
  return false;
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

  void read_command(const Command& command) {
    const Words& words = command.words;
    if (words[0] == "FROM" && words.size() > 1) return read_base(words, command.lines[0]);
    if (words[0] == "From:" && words.size() > 1) return add_base(words[1], command.lines[0]);
    const auto installer = installer_of(words);
    if (!installer && installs_from_file(words))
      unread_.push_back(fmt::format("{}:{}: {}", file_, command.lines[0],
                                    shown(fmt::format("{}", fmt::join(words, " ")))));
    if (!installer) return;
    for (std::size_t at = installer->second; at < words.size(); ++at) {
      if (installer->first == Installer::kPip)
        at = read_pip(words, at, command.lines[at]);
      else
        at = read_conda(words, at, command.lines[at]);
    }
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
    const bool is_open = word.find('$') != std::string::npos;
    if (is_any(word, {"-r", "--requirement", "-e", "--editable", "--constraint"}) &&
        at + 1 < words.size()) {
      add(word + " " + words[at + 1], line);
      return at + 1;
    }
    if (word.starts_with("-")) return has_value(word) ? at + 1 : at;
    if (is_any(word, {">", "2>&1", "<"}) || word.starts_with(">") || word.starts_with("2>"))
      return words.size();
    if (is_open)
      unread_.push_back(fmt::format("{}:{}: {}", file_, line, shown(word)));
    else
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
    std::string word = words[at];
    if (is_any(word, {"-f", "--file"})) {
      const std::string list = at + 1 < words.size() ? words[at + 1] : "";
      unread_.push_back(fmt::format("{}:{}: --file {}", file_, line, shown(list)));
      return at + 1;
    }
    if (word.starts_with("-")) return has_value(word) ? at + 1 : at;
    if (const std::size_t channel = word.find("::"); channel != std::string::npos)
      word = word.substr(channel + 2);
    const std::size_t end = std::min(word.find_first_of("=<>!~[ "), word.size());
    std::string version = word.substr(std::min(word.find_first_not_of("= ", end), word.size()));
    version = version.substr(0, version.find('='));
    if (version.find_first_of("<>!~*|,[ $") != std::string::npos) version.clear();
    conda_.push_back({word.substr(0, end), version, line});
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
    return installer_of(one.words) || (one.words[0] == "FROM" && one.words.size() > 1);
  });
}

PackageList installed_packages(std::string_view text, const std::string& file,
                               const ReadIncluded& read_included) {
  return Recipe(file, read_included).read(text);
}

}  // namespace patchbench
