#include "cli/pack_arguments.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace patchbench::cli {
namespace {

/// Whether there is a long option that the verb has not. It is named first: what looks like a pin
/// may be its value.
bool has_unknown_option(const CLI::App& command) {
  std::vector<std::string> left;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    const std::vector<std::string> more = app->remaining();
    left.insert(left.end(), more.begin(), more.end());
  }
  return std::any_of(left.begin(), left.end(),
                     [](const std::string& word) { return word.starts_with("--"); });
}

}  // namespace

NamedPins PackArguments::pins(const Context& context) const {
  return named_pins(context.manifest(slug), options, form);
}

// Wrong words are refused as soon as the verb's words are read.

std::shared_ptr<PackArguments> add_pack_arguments(CLI::App& command, Context& context, PinForm form,
                                                  const std::string& what, const bool* is_other) {
  auto options = std::make_shared<PackArguments>();
  options->form = std::move(form);
  command.add_option("slug", options->slug, "the pack (patchbench list)");
  command.add_option("pins", options->options, what);
  command.parse_complete_callback([options, is_other, &command, &context] {
    const bool is_ours = !has_unknown_option(command) && (is_other == nullptr || !*is_other);
    if (is_ours && !options->slug.empty()) (void)options->pins(context);
  });
  return options;
}

std::shared_ptr<PackArguments> add_pack_arguments_and_folder(CLI::App& command, Context& context,
                                                             const std::string& what,
                                                             const bool* is_all) {
  auto options = std::make_shared<PackArguments>();
  options->form = {.max_versions = 1,
                   .takes_companions = false,
                   .instead = "one version alone; the last word is the folder"};
  command.add_option("slug", options->slug, "the pack (patchbench list)")->required();
  command.add_option("pin_and_dir", options->options, what);
  command.parse_complete_callback([options, is_all, &command, &context] {
    if (has_unknown_option(command)) return;
    const bool is_every_pack = is_all != nullptr && *is_all;
    if (is_every_pack != options->options.empty())
      throw Error(ErrorCode::kUsage,
                  is_every_pack ? "--all: a folder alone comes with it"
                                : "want SLUG [[UPSTREAM@]WHICH] DIR: the folder is the last word");
    options->folder = is_every_pack ? std::exchange(options->slug, "") : options->options.back();
    if (is_every_pack) return;
    options->options.pop_back();
    (void)options->pins(context);
  });
  return options;
}

}  // namespace patchbench::cli
