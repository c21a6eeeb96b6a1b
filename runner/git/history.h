#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/pin.h"
#include "git/source.h"

namespace patchbench::git {

/// The history of one upstream: a bare repository that holds commits and trees, no file contents.
/// Locked for the object's life.
class History {
 public:
  History(const Places& places, const Upstream& upstream);
  /// As Store::commits_between, which says what it throws.
  std::vector<Pin> commits_between(const Pin& good, const Pin& bad,
                                   const std::vector<std::string>& files);

 private:
  std::string git(const std::vector<std::string>& arguments);
  std::string commit_of_tag(const std::string& version);
  std::string commit_of(const Pin& pin);
  std::string merge_base(const std::string& one, const std::string& other);
  void fetch(const std::vector<std::string>& commits);

  Upstream upstream_;
  UpstreamLock lock_;
  std::filesystem::path bare_;
};

}  // namespace patchbench::git
