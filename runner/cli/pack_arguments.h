#pragma once
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "core/pin_arguments.h"
#include "workbench/context.h"

namespace patchbench::cli {

/// The words of `VERB SLUG [[UPSTREAM@]WHICH]…`, or with a folder at their end.
struct PackArguments {
  std::string slug, folder;
  std::vector<std::string> options;  ///< [UPSTREAM@]WHICH …
  PinForm form;

  NamedPins pins(const Context& context) const;
};

/// Adds the words to a verb. They are looked at before the verb starts, unless `is_other` says then
/// that they are of another form.
std::shared_ptr<PackArguments> add_pack_arguments(CLI::App& command, Context& context, PinForm form,
                                                  const std::string& what,
                                                  const bool* is_other = nullptr);

/// The same with a folder as the last word. `is_all`: the verb takes every pack, too, and then a
/// folder alone, which leaves `slug` empty.
std::shared_ptr<PackArguments> add_pack_arguments_and_folder(CLI::App& command, Context& context,
                                                             const std::string& what,
                                                             const bool* is_all = nullptr);

}  // namespace patchbench::cli
