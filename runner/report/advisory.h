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

/// An OSV record (schema 1.6 or later). Null if no release is affected. Ranges reach from the first
/// measured bad release to the first measured right one next to it ("fixed"), else to the last bad
/// one ("last_affected"): nothing is said of a release that was not measured. Any failure class is
/// affected; the class and the records stand in database_specific. Devices that saw different
/// things have an entry each.
Json osv_record(const Advisory& advisory);

/// An OpenVEX 0.2.0 document: affected where a device saw a failure, with the action; fixed where
/// every device that judged saw none and an older release is affected; not_affected where none is
/// older; under_investigation where nothing was judged.
Json openvex_document(const std::vector<Advisory>& advisories);

}  // namespace patchbench::report
