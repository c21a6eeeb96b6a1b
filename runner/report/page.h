#pragma once
#include <string>
#include <vector>

#include "core/bug_state.h"
#include "core/json.h"
#include "core/manifest.h"
#include "report/chart.h"

namespace patchbench::report {

/// One release on one kind of device.
struct PageCell {
  std::string version, date;  ///< date: the run's day; "" where nothing was measured
  BugState state = BugStatus::kNotMeasured;
  std::string record;              ///< digest of the verdict; "" where there is none
  std::vector<std::string> marks;  ///< "unisolated", "stale: …", "3 of 9 cases"
};

/// One row of the matrix, and what stands under it in the pack's section.
struct PageDeviceClass {
  std::string upstream, device;
  std::vector<PageCell> cells;     ///< every locked release, oldest first
  std::string window;              ///< its intervals in words
  std::vector<ChartPoint> errors;  ///< worst error over limit
};

/// One verdict record.
struct PageRecord {
  std::string digest, question, version, device, verdict, date;
  std::vector<std::string> marks;
};

/// Everything about one pack.
struct PagePack {
  Manifest manifest;
  std::vector<PageDeviceClass> tiers;
  std::vector<std::string> quorum, unsigned_imports, disagreements;  ///< lines in words
  std::vector<std::string> mitigation, due;                          ///< lines in words
  std::vector<PageRecord> records;
  struct Bars {
    std::string title, unit;
    std::vector<Bar> bars;
  };
  std::vector<Bars> bars;
};

struct Page {
  std::string date;  ///< the day it was made
  std::vector<PagePack> packs;
};

/// One self-contained HTML page: no scripts, no resources from elsewhere. Every text is escaped.
std::string html_page(const Page& page);
/// The facts that the page shows.
Json page_json(const Page& page);

}  // namespace patchbench::report
