#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace patchbench::cli {
namespace {

/// The commands below an app that its help shows.
std::vector<CLI::App*> shown_commands(CLI::App& app) {
  return app.get_subcommands([](CLI::App* sub) { return !sub->get_group().empty(); });
}

/// What may follow a command: its commands and options and, where it takes a pack, the slugs.
std::string words_after(CLI::App& app, const std::vector<std::string>& slugs) {
  std::vector<std::string> options;
  for (const CLI::App* sub : shown_commands(app)) options.push_back(sub->get_name());
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    const std::string name = option->get_name(/*positional=*/true);
    if (option->get_positional() && (name == "slug" || name == "slugs"))
      options.insert(options.end(), slugs.begin(), slugs.end());
  }
  return fmt::format("{}", fmt::join(options, " "));
}

/// The branches of the script, one a command; `path` is " ledger export".
void add_branches(CLI::App& app, const std::string& path, const std::vector<std::string>& slugs,
                  std::string& branches) {
  branches += fmt::format("    '{}') words='{}' ;;\n", path, words_after(app, slugs));
  for (CLI::App* sub : shown_commands(app))
    add_branches(*sub, path + " " + sub->get_name(), slugs, branches);
}

void add_paths(CLI::App& app, const std::string& path, std::vector<std::string>& paths) {
  for (CLI::App* sub : shown_commands(app)) {
    paths.push_back(fmt::format("'{} {}'", path, sub->get_name()));
    add_paths(*sub, path + " " + sub->get_name(), paths);
  }
}

/// A function that bash's `complete` calls; where it has nothing to offer, files are.
std::string script_of(CLI::App& app, const std::vector<std::string>& slugs) {
  std::vector<std::string> paths;
  add_paths(app, "", paths);
  std::string branches;
  add_branches(app, "", slugs, branches);
  return fmt::format(
      R"(_patchbench() {{
  local path='' words='' word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="$path ${{COMP_WORDS[i]}}"
    case "$word" in
    {}) path=$word ;;
    esac
  done
  case "$path" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _patchbench patchbench
)",
      fmt::join(paths, " | "), branches);
}

}  // namespace

void add_completion_command(CLI::App& app, CLI::App& env, Context& context) {
  CLI::App* command =
      env.add_subcommand("completion", "a script that completes commands, options and packs");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  command->footer(
      "Examples:\n"
      "  patchbench env completion bash > ~/.local/share/bash-completion/completions/patchbench\n"
      "  eval \"$(patchbench env completion zsh)\"   # in ~/.zshrc, after compinit");
  command->callback([&app, &context, shell] {
    if (*shell == "zsh") context.out() << "autoload -U +X bashcompinit && bashcompinit\n";
    context.out() << script_of(app, context.slugs());
  });
}

}  // namespace patchbench::cli
