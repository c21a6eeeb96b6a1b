#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"

namespace patchbench {

/// One word of the form [UPSTREAM@]WHICH, where WHICH is a version, path:DIR or git:COMMIT. An
/// upstream's name alone is its tested release.
struct PinWord {
  std::string upstream;  ///< "": none is named
  std::string which;     ///< "": the tested release
};

/// Throws Error(kUsage) for a word that has not this form. `upstreams`: the names that it may have;
/// `owner`: whose they are, for the message.
PinWord parse_pin_word(const std::string& word, const std::vector<std::string>& upstreams,
                       const std::string& owner);

/// What the words after a pack say. The first word is of the upstream under test; a word without a
/// name is of that one, too; words of other upstreams name companions.
struct NamedPins {
  std::string upstream;               ///< "": the one that the question takes by itself
  std::vector<std::string> versions;  ///< of it; none: the tested release
  std::vector<PinWord> companions;
  /// The one version; "" without.
  std::string version() const { return versions.empty() ? "" : versions.front(); }
};

/// What a verb takes of them.
struct PinForm {
  std::size_t max_versions = 1;
  bool takes_companions = true;
  std::string instead;  ///< said where there are more versions than that
};

/// Throws Error(kUsage) for a word of another form, an upstream that the pack has not, or more than
/// the verb takes.
NamedPins named_pins(const Manifest& pack, const std::vector<std::string>& arguments,
                     const PinForm& form);

/// The word for a version of an upstream, for a shell: "liger-kernel@0.8.0".
std::string pin_word(const std::string& upstream, const std::string& version);

}  // namespace patchbench
