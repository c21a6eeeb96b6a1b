#include "cli/help_format.h"

#include "report/table.h"

namespace patchbench::cli {
namespace {

constexpr int kColumns = 100;
constexpr std::size_t kIndent = 24;

/// A name, and from a column of its own on what it is.
std::string row(std::string name, const std::string& what) {
  name.insert(0, "  ");
  if (name.size() < kIndent) {
    name.resize(kIndent, ' ');
  } else {
    name += " ";
  }
  // The text's first line goes on after a long name.
  const std::string margin(kIndent, ' ');
  const std::string text = report::paragraph(margin, name.substr(kIndent) + what, kColumns);
  return name.substr(0, kIndent) + text.substr(std::min(kIndent, text.size()));
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return row(make_option_name(option, is_positional) + make_option_opts(option),
             make_option_desc(option));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_type_size() == 0) return "";
  const std::string type = option->get_type_name();  // "INT:INT in [1 - 64]"
  std::string text = " " + type.substr(0, type.find(':'));
  if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
  if (option->get_expected_max() > 1) text += " ...";
  return text + (option->get_required() ? " REQUIRED" : "");
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return row(sub->get_name(), sub->get_description());
}

}  // namespace patchbench::cli
