#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/html.h"

namespace patchbench::report {
namespace {

constexpr double kLeft = 56, kTop = 12, kPlotHeight = 150, kLabelHeight = 62;
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"};

/// Powers of ten that hold every value and 1.
struct Decades {
  int low = 0, high = 0;
  double y(double value) const {
    const double at = std::clamp(std::log10(value), double(low), double(high));
    return kTop + kPlotHeight * (high - at) / std::max(1, high - low);
  }
};

Decades decades_of(const std::vector<ChartSeries>& series) {
  Decades decades{-1, 1};
  for (const ChartSeries& one : series) {
    for (const ChartPoint& point : one.points) {
      if (!std::isfinite(point.value) || point.value <= 0) continue;
      decades.low = std::min(decades.low, static_cast<int>(std::floor(std::log10(point.value))));
      decades.high = std::max(decades.high, static_cast<int>(std::ceil(std::log10(point.value))));
    }
  }
  decades.low = std::max(decades.low, -6);
  decades.high = std::min(decades.high, 12);
  return decades;
}

std::string mark(std::size_t series, double x, double y, const std::string& title) {
  const std::string color = kColors[series % std::size(kColors)];
  const std::string body = "<title>" + html_text(title) + "</title>";
  switch (series % 3) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\">{}</circle>", x,
                         y, color, body);
    case 1:
      return fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"9\" height=\"9\" fill=\"none\" stroke=\"{}\" "
          "stroke-width=\"2\">{}</rect>",
          x - 4.5, y - 4.5, color, body);
    default:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l5 9h-10z\" fill=\"{}\">{}</path>", x, y - 5,
                         color, body);
  }
}

std::string axis(const Decades& decades, double width) {
  std::string out;
  const int step = std::max(1, (decades.high - decades.low + 5) / 6);
  for (int power = decades.low; power <= decades.high; ++power) {
    if ((power - decades.low) % step != 0 && power != 0) continue;
    const double y = decades.y(std::pow(10.0, power));
    out += fmt::format(
        "<line x1=\"{}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, width, y, y, power == 0 ? "limit" : "grid", kLeft - 6, y + 4,
        power == 0 ? "limit" : fmt::format("1e{}", power));
  }
  return out;
}

}  // namespace

std::string error_chart(const std::vector<std::string>& releases,
                        const std::vector<ChartSeries>& series) {
  const auto is_drawn = [](const ChartPoint& p) { return std::isfinite(p.value) && p.value > 0; };
  const bool has_any = std::any_of(series.begin(), series.end(), [&](const ChartSeries& one) {
    return std::any_of(one.points.begin(), one.points.end(), is_drawn);
  });
  if (!has_any) return "";
  const double step = std::clamp(760.0 / static_cast<double>(releases.size()), 24.0, 90.0);
  const double width = kLeft + step * static_cast<double>(releases.size()) + 16;
  const double height = kTop + kPlotHeight + kLabelHeight;
  const Decades decades = decades_of(series);
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" style=\"max-width:{:.0f}px\" role=\"img\" "
      "aria-label=\"worst error over its limit, by release\">",
      width, height, width);
  out += axis(decades, width);
  for (std::size_t i = 0; i < releases.size(); ++i) {
    const double x = kLeft + step * (static_cast<double>(i) + 0.5), y = kTop + kPlotHeight + 14;
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" transform=\"rotate(-45 {:.1f} "
        "{:.1f})\">{}</text>",
        x, y, x, y, html_text(releases[i]));
  }
  for (std::size_t k = 0; k < series.size(); ++k) {
    for (const ChartPoint& p : series[k].points) {
      if (!is_drawn(p) || p.release >= releases.size()) continue;
      const double x = kLeft + step * (static_cast<double>(p.release) + 0.5);
      out += mark(k, x, decades.y(p.value),
                  fmt::format("{} {}: {:.3g} times its limit", series[k].name, releases[p.release],
                              p.value));
    }
  }
  out += "</svg><p class=\"key\">";
  for (std::size_t k = 0; k < series.size(); ++k) {
    out += fmt::format("<svg class=\"mark\" viewBox=\"0 0 14 14\" aria-hidden=\"true\">{}</svg>{} ",
                       mark(k, 7, 7, series[k].name), html_text(series[k].name));
  }
  return out + "</p>";
}

std::string bar_chart(const std::string& title, const std::string& unit,
                      const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) most = std::max({most, bar.value, bar.high});
  if (most <= 0) return "";
  std::string out = "<figure class=\"bars\"><figcaption>" + html_text(title) + "</figcaption>";
  for (const Bar& bar : bars) {
    const auto share = [&](double value) { return std::clamp(100 * value / most, 0.0, 100.0); };
    const std::string spread = bar.high > bar.low && bar.low > 0
                                   ? fmt::format("<i style=\"left:{:.2f}%;width:{:.2f}%\"></i>",
                                                 share(bar.low), share(bar.high) - share(bar.low))
                                   : "";
    const std::string range = bar.high > bar.low && bar.low > 0
                                  ? fmt::format(" ({:.4g} to {:.4g})", bar.low, bar.high)
                                  : "";
    out += fmt::format(
        "<div class=\"bar\"><span class=\"name\">{}</span><span class=\"track\"><b class=\"{}\" "
        "style=\"width:{:.2f}%\"></b>{}</span><span class=\"num\">{:.4g} {}{}</span></div>",
        html_text(bar.name), html_text(bar.role), share(bar.value), spread, bar.value,
        html_text(unit), range);
  }
  return out + "</figure>";
}

}  // namespace patchbench::report
