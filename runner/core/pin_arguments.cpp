#include "core/pin_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "core/shell_word.h"
#include "core/slug.h"

namespace patchbench {
namespace {

constexpr const char* kForm = "want [UPSTREAM@]WHICH: a version, path:DIR or git:COMMIT";

bool has_digit(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

PinWord parse_pin_word(const std::string& word, const std::vector<std::string>& upstreams,
                       const std::string& owner) {
  const bool is_place = word.starts_with("path:") || word.starts_with("git:");
  const std::size_t at = is_place ? std::string::npos : word.find('@');
  const std::string name = word.substr(0, at);
  PinWord parsed;
  if (at != std::string::npos) {
    parsed = {name, word.substr(at + 1)};
  } else {
    // Every version has a digit.
    const bool is_which = (is_place || has_digit(word)) &&
                          std::find(upstreams.begin(), upstreams.end(), word) == upstreams.end();
    (is_which ? parsed.which : parsed.upstream) = word;
  }
  const bool is_cut = at != std::string::npos && (parsed.upstream.empty() || parsed.which.empty());
  if (is_cut || word.empty() || parsed.which == "path:" || parsed.which == "git:")
    throw Error(ErrorCode::kUsage, fmt::format("'{}': {}", shown(word), kForm));
  if (!parsed.upstream.empty() &&
      std::find(upstreams.begin(), upstreams.end(), parsed.upstream) == upstreams.end())
    throw Error(ErrorCode::kUsage, fmt::format("{} has no upstream '{}'{}", owner, shown(name),
                                               did_you_mean(name, upstreams)));
  return parsed;
}

NamedPins named_pins(const Manifest& pack, const std::vector<std::string>& arguments,
                     const PinForm& form) {
  std::vector<std::string> upstreams;
  for (const UpstreamUse& use : pack.upstreams) upstreams.push_back(use.name);
  NamedPins pins;
  for (const std::string& word : arguments) {
    const PinWord parsed = parse_pin_word(word, upstreams, pack.slug.str());
    if (&word == &arguments.front()) pins.upstream = parsed.upstream;
    if (parsed.upstream.empty() || parsed.upstream == pins.upstream) {
      if (!parsed.which.empty()) pins.versions.push_back(parsed.which);
      continue;
    }
    if (!form.takes_companions || parsed.which.empty())
      throw Error(ErrorCode::kUsage,
                  fmt::format("'{}': {}", shown(word),
                              form.takes_companions
                                  ? "a companion needs its version: " + parsed.upstream + "@WHICH"
                                  : "one upstream alone is asked for here"));
    pins.companions.push_back(parsed);
  }
  if (pins.versions.size() > form.max_versions)
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}': {}", shown(pins.versions.back()), form.instead));
  return pins;
}

std::string pin_word(const std::string& upstream, const std::string& version) {
  return shell_word(upstream + "@" + version);
}

}  // namespace patchbench
