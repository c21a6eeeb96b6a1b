#pragma once
#include <string>

namespace patchbench {

/// `text` as one word for a POSIX shell: as it is where no character has a meaning there, else in
/// single quotes.
std::string shell_word(const std::string& text);

}  // namespace patchbench
