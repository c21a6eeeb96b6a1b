#include "cli/pack_words.h"

#include <utility>

#include "core/error.h"

namespace patchbench::cli {

NamedPins PackWords::pins(const Context& context) const {
  return named_pins(context.manifest(slug), words, form);
}

// Wrong words are refused as soon as the verb's words are read, before options that it has not.

std::shared_ptr<PackWords> add_pack_words(CLI::App& command, Context& context, PinForm form,
                                          const std::string& what, const bool* is_other) {
  auto words = std::make_shared<PackWords>();
  words->form = std::move(form);
  command.add_option("slug", words->slug, "the pack (patchbench list)");
  command.add_option("pins", words->words, what);
  command.parse_complete_callback([words, is_other, &context] {
    const bool is_ours = is_other == nullptr || !*is_other;
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
  command.parse_complete_callback([words, is_all, &context] {
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
