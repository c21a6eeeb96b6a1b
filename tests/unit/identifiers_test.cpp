/// The names that the code of the runner does not use: each had several meanings, or none that a
/// reader could guess.

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// The word that is used instead of a name; the first column is matched as a whole identifier.
const std::map<std::string, std::string>& banned() {
  static const std::map<std::string, std::string> kNames = {
      {"Board", "VerdictIndex"},       {"board", "verdict_index"}, {"Book", "RecordSet"},
      {"book", "record_set"},          {"Sayings", "Tallies"},     {"sayings", "tallies"},
      {"Votes", "Agreement"},          {"votes", "agreements"},    {"Place", "VerdictKey"},
      {"Standing", "CurrentVerdict"},  {"standing", "current"},    {"Behaviour", "CaseMatrix"},
      {"behaviour", "matrix"},         {"Seen", "CaseStatus"},     {"seen", "status"},
      {"asked", "question"},           {"beside", "companions"},   {"apart", "unsigned_imports"},
      {"right_ones", "control_draws"}, {"tier", "device_class"},   {"costs", "cost_history"},
  };
  return kNames;
}

/// A source without comments, strings and characters.
std::string code_of(const std::string& text) {
  std::string code;
  const auto skip_to = [&](std::size_t from, const std::string& end) {
    const std::size_t at = text.find(end, from);
    return at == std::string::npos ? text.size() : at + end.size();
  };
  const auto skip_quoted = [&](std::size_t at, char quote) {
    for (++at; at < text.size() && text[at] != quote; ++at) at += text[at] == '\\' ? 1 : 0;
    return at + 1;
  };
  for (std::size_t at = 0; at < text.size();) {
    const bool is_after_digit = at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]));
    if (text.compare(at, 2, "//") == 0) {
      at = skip_to(at, "\n");
      code += '\n';
    } else if (text.compare(at, 2, "/*") == 0) {
      at = skip_to(at, "*/");
    } else if (text.compare(at, 2, "R\"") == 0) {
      const std::size_t open = text.find('(', at);
      at = skip_to(open, ")" + text.substr(at + 2, open - at - 2) + "\"");
    } else if (text[at] == '"' || (text[at] == '\'' && !is_after_digit)) {
      at = skip_quoted(at, text[at]);
    } else {
      code += text[at++];
    }
  }
  return code;
}

std::set<std::string> identifiers_in(const std::string& code) {
  std::set<std::string> names;
  std::string name;
  for (const char c : code + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      name += c;
    } else if (!name.empty()) {
      names.insert(std::exchange(name, ""));
    }
  }
  return names;
}

/// "Board (say VerdictIndex)" of each banned name in a source. In the verbs the arguments and
/// options of a command line are not called words either.
std::vector<std::string> banned_in(const std::string& text, bool is_verb) {
  std::vector<std::string> out;
  const std::set<std::string> names = identifiers_in(code_of(text));
  for (const auto& [name, instead] : banned()) {
    if (names.contains(name)) out.push_back(name + " (say " + instead + ")");
  }
  if (is_verb && names.contains("words")) out.emplace_back("words (say options or arguments)");
  return out;
}

TEST(Identifiers, ABannedNameIsFoundInCodeAlone) {
  EXPECT_EQ(banned_in("struct Board {};", false),
            (std::vector<std::string>{"Board (say VerdictIndex)"}));
  EXPECT_EQ(banned_in("int words;", true).size(), 1u);
  EXPECT_EQ(banned_in("int words;", false).size(), 0u);
  EXPECT_EQ(
      banned_in("// a Board\n/* asked */ f(\"seen\", R\"x(tier)x\", 'a', 1'000);", false).size(),
      0u);
  EXPECT_EQ(banned_in("int n = 1'000; bool seen = '\\'' == c;", false).size(), 1u);
}

TEST(Identifiers, TheRunnerUsesNone) {
  const fs::path root = PATCHBENCH_ROOT;
  int num_files = 0;
  for (const auto& file : fs::recursive_directory_iterator(root / "runner")) {
    const std::string kind = file.path().extension();
    if (kind != ".cpp" && kind != ".h") continue;
    std::ostringstream text;
    text << std::ifstream(file.path()).rdbuf();
    const std::string path = fs::relative(file.path(), root).string();
    for (const std::string& name : banned_in(text.str(), path.starts_with("runner/cli/")))
      ADD_FAILURE() << path << ": " << name;
    ++num_files;
  }
  EXPECT_GT(num_files, 200);
}

}  // namespace
}  // namespace patchbench
