#pragma once
#include <string>
#include <vector>

namespace patchbench::report {

/// One number of one series over the releases.
struct ChartPoint {
  std::size_t release = 0;  ///< index into the chart's labels
  double value = 0;         ///< error over limit; above 1 is a failure
};
struct ChartSeries {
  std::string name;  ///< "cpu", "H200"
  std::vector<ChartPoint> points;
};

/// An SVG of the worst error over its limit for each release, on a logarithmic axis with the
/// tolerance as a line at 1. Series differ by their marks as well as by their colours; each mark
/// has its numbers as a title. "" without a finite point.
std::string error_chart(const std::vector<std::string>& releases,
                        const std::vector<ChartSeries>& series);

/// One bar: a median, and least and greatest where they were measured.
struct Bar {
  std::string name;
  std::string role;  ///< "ours", "upstream", "plain", "floor": sets its pattern of colour and text
  double value = 0, low = 0, high = 0;
};
/// Horizontal bars of one measure ("ms", "GiB"), each with its name and its number in text. A
/// spread is drawn as a whisker where there is one.
std::string bar_chart(const std::string& title, const std::string& unit,
                      const std::vector<Bar>& bars);

}  // namespace patchbench::report
