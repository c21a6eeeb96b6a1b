#include "report/page.h"

#include <gtest/gtest.h>

#include <limits>

#include "report/bench.h"
#include "report/html.h"

namespace patchbench::report {
namespace {

TEST(Html, EscapesWhatCouldEndAnElementOrAnAttribute) {
  EXPECT_EQ(html_text("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(html_text("tab\tand\x1b[31m"),
            "tab\xef\xbf\xbd"
            "and\xef\xbf\xbd[31m");
  EXPECT_EQ(html_text("\xff×"), "\xef\xbf\xbd×");
}

TEST(Html, ALinkHoldsItsTextAndTargetApart) {
  EXPECT_EQ(link_to("a\"b", "<x>"), "<a href=\"#a&quot;b\">&lt;x&gt;</a>");
}

TEST(ErrorChart, IsEmptyWithoutAFinitePoint) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_chart({"1"}, {{"cpu", {}}}), "");
  EXPECT_EQ(error_chart({"1"}, {{"cpu", {{0, infinite}, {0, 0}}}}), "");
}

TEST(ErrorChart, NamesEachPointAndTheLimit) {
  const std::string chart = error_chart({"0.8.0", "0.8.5"}, {{"cpu", {{0, 2e6}, {1, 0.5}}}});
  EXPECT_NE(chart.find("cpu 0.8.0: 2e+06 times its limit"), std::string::npos);
  EXPECT_NE(chart.find("cpu 0.8.5: 0.5 times its limit"), std::string::npos);
  EXPECT_NE(chart.find("class=\"limit\""), std::string::npos);
}

TEST(Bars, AreReadFromRunsWithRows) {
  const Json bench = {{"runs",
                       {{{"device", "GPU"},
                         {"dtype", "bf16"},
                         {"shape", {2, 3}},
                         {"rows",
                          {{{"name", "patchbench::x"},
                            {"median_ms", 2.0},
                            {"low_ms", 1.5},
                            {"high_ms", 2.5},
                            {"peak_bytes", 1 << 30}},
                           {{"name", "plain torch"}, {"median_ms", 4.0}},
                           {{"name", "floor: one GEMM"}, {"median_ms", 1.0}}}}}}}};
  const auto bars = bars_of(bench);
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_EQ(bars[0].title, "Time: GPU, bf16, 2 x 3");
  ASSERT_EQ(bars[0].bars.size(), 3u);
  EXPECT_EQ(bars[0].bars[0].role + bars[0].bars[1].role + bars[0].bars[2].role, "oursplainfloor");
  EXPECT_EQ(bars[1].unit, "GiB");
  EXPECT_DOUBLE_EQ(bars[1].bars[0].value, 1);
}

TEST(Bars, AreReadFromRowsOfSpreads) {
  const Json bench = {{"device", "GPU"},
                      {"floor", {{"ms_at_4.3_TB/s", 0.4}, {"shape", {4, 5}}}},
                      {"rows",
                       {{{"shape", {4, 5}},
                         {"ours", {1.0, 0.9, 1.1}},
                         {"upstream_best", {{"ms", {2.0, 1.9, 2.1}}}},
                         {"difference", 7e-5}}}}};
  const auto bars = bars_of(bench);
  ASSERT_EQ(bars.size(), 1u);
  ASSERT_EQ(bars[0].bars.size(), 3u);
  EXPECT_EQ(bars[0].bars[0].role, "ours");
  EXPECT_DOUBLE_EQ(bars[0].bars[1].low, 1.9);
  EXPECT_EQ(bars[0].bars[2].role, "floor");
}

TEST(Bars, AnotherFormGivesNone) {
  for (const Json& bench : {Json(3), Json::object(), Json{{"rows", 1}}, Json{{"runs", {1, "x"}}}})
    EXPECT_TRUE(bars_of(bench).empty()) << bench;
}

TEST(Page, AMarkOfACellIsShownWithItsRecord) {
  PagePack pack{.manifest = {}};
  pack.manifest.slug = Slug("some_pack");
  pack.manifest.classes_order = {"wrong"};
  pack.manifest.classes = {{"wrong", "it is wrong"}};
  const std::string digest(64, 'a');
  pack.tiers = {{"up", "cpu", {{"1.0", "2026-01-01", "wrong", digest, {"unisolated"}}}, "w", {}}};
  pack.records = {{digest,
                   "reproduce",
                   "up 1.0",
                   "cpu",
                   "BUG_REPRODUCED(wrong)",
                   "2026-01-01",
                   {"unisolated"}}};
  const std::string page = html_page({"2026-01-02", {pack}});
  EXPECT_NE(page.find("title=\"up 1.0 on cpu: wrong, 2026-01-01 (unisolated)\""),
            std::string::npos);
  EXPECT_NE(page.find("href=\"#r-aaaaaaaaaaaaaaaa\""), std::string::npos);
  EXPECT_NE(page.find("<tr id=\"r-aaaaaaaaaaaaaaaa\">"), std::string::npos);
  EXPECT_NE(page.find("<td data-h=\"marks\">unisolated</td>"), std::string::npos);
}

}  // namespace
}  // namespace patchbench::report
