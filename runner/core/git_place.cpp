#include "core/git_place.h"

#include <algorithm>
#include <string>

#include "core/split.h"

namespace patchbench {
namespace {

/// What follows `key` in a query, up to the next "&"; "" without it.
std::string_view value_of(std::string_view query, std::string_view key) {
  for (std::size_t at = 0; at < query.size();) {
    const std::size_t end = std::min(query.find('&', at), query.size());
    const std::string_view pair = query.substr(at, end - at);
    if (pair.starts_with(key)) return pair.substr(key.size());
    at = end + 1;
  }
  return {};
}

}  // namespace

void read_git_place(std::string_view place, Listed& one) {
  one.source = "git";
  if (place.find("subdirectory=") != std::string_view::npos) return;
  one.commit = commit_of(place);
  if (place.starts_with("git+")) place.remove_prefix(4);
  place = place.substr(0, place.find('#'));
  const std::size_t question = std::min(place.find('?'), place.size());
  const std::string_view query = place.substr(std::min(question + 1, place.size()));
  place = place.substr(0, question);
  const std::size_t scheme = place.find("://");
  if (scheme != std::string_view::npos) place.remove_prefix(scheme + 3);
  std::string path = percent_decoded(place);
  // Without a scheme a colon ends the host.
  if (const std::size_t colon = path.find(':');
      scheme == std::string_view::npos && colon < path.find('/'))
    path[colon] = '/';
  path.erase(0, path.rfind('@', path.find('/')) + 1);
  for (const std::string_view key : {"tag=", "rev="})
    if (one.tag.empty()) one.tag = percent_decoded(value_of(query, key));
  if (const std::size_t at = path.rfind('@'); at != std::string::npos) {
    if (one.tag.empty()) one.tag = path.substr(at + 1);
    path.resize(at);
  }
  while (path.ends_with('/')) path.pop_back();
  if (path.ends_with(".git")) path.resize(path.size() - 4);
  one.repository = lower(path);
}

}  // namespace patchbench
