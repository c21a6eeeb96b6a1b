#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/bug_state.h"
#include "core/json.h"

namespace patchbench::report {

/// What one device's newest verdict says of a release.
struct DeviceState {
  std::string device;
  BugState state = BugStatus::kUnresolved;
  std::string started, digest;
};

/// One locked release; no states where nothing was measured.
struct AdvisoryRelease {
  std::string version;
  std::vector<DeviceState> states;
};

/// One pack on one of its upstreams, for other people's tools.
struct Advisory {
  std::string slug, title, upstream, project;  ///< project: the name on PyPI
  int number = 0;
  std::map<std::string, std::string> classes;  ///< failure class -> what it means
  Json mitigation;                             ///< of the manifest
  std::vector<std::string> threads;            ///< owner/name#number
  std::vector<AdvisoryRelease> releases;       ///< oldest first
};

}  // namespace patchbench::report
