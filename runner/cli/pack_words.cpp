#include "cli/pack_words.h"

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

NamedPins PackWords::pins(const Context& context) const {
  return named_pins(context.manifest(slug), words, form);
}

// Wrong words are refused as soon as the verb's words are read.

std::shared_ptr<PackWords> add_pack_words(CLI::App& command, Context& context, PinForm form,
                                          const std::string& what, const bool* is_other) {
  auto words = std::make_shared<PackWords>();
  words->form = std::move(form);
  command.add_option("slug", words->slug, "the pack (patchbench list)");
  command.add_option("pins", words->words, what);
  command.parse_complete_callback([words, is_other, &command, &context] {
    const bool is_ours = !has_unknown_option(command) && (is_other == nullptr || !*is_other);
    if (is_ours && !words->slug.empty()) (void)words->pins(context);
  });
  return words;
}

std::shared_ptr<PackWords> add_pack_words_and_folder(CLI::App& command, Context& context,
                                                     const std::string& what, const bool* is_all) {
  auto words = std::make_shared<PackWords>();
  words->form = {.max_versions = 1,
                 .takes_companions = false,
                 .instead = "one version alone; the last word is the folder"};
  command.add_option("slug", words->slug, "the pack (patchbench list)")->required();
  command.add_option("pin_and_dir", words->words, what);
  command.parse_complete_callback([words, is_all, &command, &context] {
    if (has_unknown_option(command)) return;
    const bool is_every_pack = is_all != nullptr && *is_all;
    if (is_every_pack != words->words.empty())
      throw Error(ErrorCode::kUsage,
                  is_every_pack ? "--all: a folder alone comes with it"
                                : "want SLUG [[UPSTREAM@]WHICH] DIR: the folder is the last word");
    words->folder = is_every_pack ? std::exchange(words->slug, "") : words->words.back();
    if (is_every_pack) return;
    words->words.pop_back();
    (void)words->pins(context);
  });
  return words;
}

}  // namespace patchbench::cli
