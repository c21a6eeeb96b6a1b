#include "report/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/pin.h"
#include "report/html.h"
#include "report/page_style.h"

namespace patchbench::report {
namespace {

/// How a state is shown: a class of the style sheet, a sign, a word.
struct Look {
  std::string css, sign;
};

Look look_of(const PagePack& pack, const BugState& state) {
  if (state == BugStatus::kAbsent) return {"absent", "●"};
  if (state == BugStatus::kUnsupported) return {"unsupported", "∅"};
  if (state == BugStatus::kUnresolved) return {"unresolved", "?"};
  if (state == BugStatus::kNotMeasured) return {"not_measured", "–"};
  const auto& classes = pack.manifest.classes_order;
  const auto at = std::find(classes.begin(), classes.end(), state.failure_class());
  const auto index = static_cast<std::size_t>(std::min<std::ptrdiff_t>(at - classes.begin(), 3));
  constexpr const char* kSigns[] = {"▲", "◆", "■", "★"};
  return {fmt::format("bad{}", index), kSigns[index]};
}

std::string record_id(const std::string& digest) { return "r-" + digest.substr(0, 16); }
std::string pack_id(const PagePack& pack) { return "p-" + pack.manifest.slug.str(); }

std::string with_marks(const std::string& text, const std::vector<std::string>& marks) {
  return marks.empty() ? text : fmt::format("{} ({})", text, fmt::join(marks, ", "));
}

std::string cell_html(const PagePack& pack, const PageDeviceClass& device_class,
                      const PageCell& cell) {
  const Look look = look_of(pack, cell.state);
  const std::string title = with_marks(
      fmt::format("{} {} on {}: {}{}{}", device_class.upstream, cell.version, device_class.device,
                  cell.state, cell.date.empty() ? "" : ", ", cell.date),
      cell.marks);
  const std::string body = fmt::format(
      "<b>{} {}</b><span>{}{}</span>", look.sign, html_text(short_version(cell.version)),
      cell.date.empty() ? "no run" : html_text(cell.date), cell.marks.empty() ? "" : " *");
  const std::string attributes =
      fmt::format("class=\"cell {}\" title=\"{}\"", look.css, html_text(title));
  if (cell.record.empty()) return fmt::format("<span {}>{}</span>", attributes, body);
  return fmt::format("<a {} href=\"#{}\">{}</a>", attributes, record_id(cell.record), body);
}

std::string device_class_row(const PagePack& pack, const PageDeviceClass& device_class,
                             const std::string& who) {
  std::string cells;
  for (const PageCell& cell : device_class.cells) cells += cell_html(pack, device_class, cell);
  return fmt::format(
      "<div class=\"row\"><div class=\"who\">{}</div><div class=\"cells\">{}</div></div>", who,
      cells);
}

/// The classes of a pack with their signs, and the states that any pack can have.
std::string key_of(const PagePack& pack) {
  std::string out;
  std::set<BugState> shown;
  for (const PageDeviceClass& device_class : pack.tiers) {
    for (const PageCell& cell : device_class.cells) {
      if (!shown.insert(cell.state).second) continue;
      out += fmt::format("{}{} {}", out.empty() ? "" : " · ", look_of(pack, cell.state).sign,
                         html_text(cell.state.text()));
    }
  }
  return "<p class=\"key\">" + out + "</p>";
}

std::string matrix(const Page& page) {
  std::string out =
      "<section id=\"matrix\"><h2>Packs and releases</h2><p class=\"soft\">Each box is the newest "
      "counted run on one release and one kind of device, with its day; it leads to its record. ● "
      "absent · ▲ ◆ ■ ★ present, in a pack's first, second, third or a further class · ∅ the "
      "release has no such code · ? no answer · – not measured · * has a mark: see the "
      "record.</p>";
  for (const PagePack& pack : page.packs) {
    const std::string name = pack.manifest.slug.str();
    if (pack.tiers.empty()) {
      out += fmt::format(
          "<div class=\"row\"><div class=\"who\"><b>{}</b></div><div>not measured</div></div>",
          link_to(pack_id(pack), name));
    }
    for (const PageDeviceClass& device_class : pack.tiers) {
      out += device_class_row(
          pack, device_class,
          fmt::format("<b>{}</b>{} · {}", link_to(pack_id(pack), name),
                      html_text(device_class.upstream), html_text(device_class.device)));
    }
  }
  return out + "</section>";
}

std::string fact(const std::string& name, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string body;
  for (const std::string& line : lines) body += element("p", line);
  return element("dt", name) + "<dd>" + body + "</dd>";
}

/// "owner/name#12" as a link to that thread; any other text as it is.
std::string thread_html(const std::string& thread) {
  const auto hash = thread.find('#'), slash = thread.find('/');
  const bool is_thread =
      hash != std::string::npos && slash < hash && hash + 1 < thread.size() &&
      thread.find_first_not_of("0123456789", hash + 1) == std::string::npos &&
      thread.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./#") ==
          std::string::npos;
  if (!is_thread) return html_text(thread.empty() ? "no thread" : thread);
  return fmt::format("<a href=\"https://github.com/{}/issues/{}\">{}</a>",
                     html_text(thread.substr(0, hash)), thread.substr(hash + 1), html_text(thread));
}

std::string filing_html(const Json& filing) {
  if (!filing.is_object() || filing.empty()) return "";
  std::string after = filing.at("group").get<std::string>();
  for (const Json& other : filing.at("depends_on")) after += " after " + other.get<std::string>();
  return fmt::format("<dt>Filing</dt><dd><p>{} · {} · order {}{}</p>{}</dd>",
                     html_text(filing.at("kind").get<std::string>()),
                     thread_html(filing.at("thread").get<std::string>()),
                     filing.at("order").get<int>(), html_text(after.empty() ? "" : " of " + after),
                     element("p", "risk: " + filing.at("risk").get<std::string>()));
}

std::string facts(const PagePack& pack) {
  std::vector<std::string> classes, upstreams, windows, life;
  for (const std::string& name : pack.manifest.classes_order)
    classes.push_back(look_of(pack, name).sign + " " + name + ": " +
                      pack.manifest.classes.at(name));
  for (const UpstreamUse& use : pack.manifest.upstreams)
    upstreams.push_back(use.name + ", tested release " + use.red_pin);
  for (const PageDeviceClass& device_class : pack.tiers)
    windows.push_back(device_class.upstream + " on " + device_class.device + ": " +
                      device_class.window);
  const Json& lifecycle = pack.manifest.lifecycle;
  if (lifecycle.is_object() && !lifecycle.empty()) {
    life = {"keep: " + lifecycle.at("keep").get<std::string>() + ", review on " +
                lifecycle.at("review_on").get<std::string>(),
            "retire when " + lifecycle.at("retire_when").get<std::string>()};
  }
  life.insert(life.end(), pack.due.begin(), pack.due.end());
  return "<dl>" + fact("Upstream", upstreams) + fact("Classes", classes) + fact("Window", windows) +
         fact("At the tested release", pack.quorum) +
         fact("Unsigned imports", pack.unsigned_imports) + fact("Mitigation", pack.mitigation) +
         filing_html(pack.manifest.filing) + fact("Lifecycle", life) + "</dl>";
}

std::string td(const std::string& heading, const std::string& markup) {
  return fmt::format("<td data-h=\"{}\">{}</td>", heading, markup);
}

std::string scope_table(const PagePack& pack) {
  std::set<std::string> here;
  for (const PageRecord& record : pack.records) here.insert(record.digest);
  std::string rows;
  for (const ScopeRow& row : pack.manifest.scope) {
    std::string records;
    for (const std::string& digest : row.records) {
      const std::string text = digest.substr(0, 12);
      records += (records.empty() ? "" : " ") +
                 (here.contains(digest) ? link_to(record_id(digest), text) : element("code", text));
    }
    rows += "<tr>" + td("claim", html_text(row.claim)) + td("on", html_text(row.architecture)) +
            td("verdict", html_text(row.verdict)) + td("records", records) + "</tr>";
  }
  return "<h3>Claims and scope</h3><table><thead><tr><th>claim</th><th>on</th><th>verdict</th>"
         "<th>records</th></tr></thead><tbody>" +
         rows + "</tbody></table>";
}

std::string record_table(const PagePack& pack) {
  if (pack.records.empty()) return "<h3>Records</h3><p>No record.</p>";
  std::string rows;
  for (const PageRecord& record : pack.records) {
    rows += fmt::format("<tr id=\"{}\">", record_id(record.digest)) +
            td("record", "<code>" + html_text(record.digest.substr(0, 16)) + "</code>") +
            td("question", html_text(record.question)) + td("version", html_text(record.version)) +
            td("device", html_text(record.device)) + td("verdict", html_text(record.verdict)) +
            td("day", html_text(record.date)) +
            td("marks", html_text(fmt::format("{}", fmt::join(record.marks, ", ")))) + "</tr>";
  }
  return "<h3>Records</h3><p class=\"soft\">The newest on each question; <code>patchbench ledger "
         "show "
         "DIGEST</code> prints one whole.</p><table><thead><tr><th>record</th><th>question</th>"
         "<th>version</th><th>device</th><th>verdict</th><th>day</th><th>marks</th></tr></thead>"
         "<tbody>" +
         rows + "</tbody></table>";
}

std::string charts(const PagePack& pack) {
  std::string out;
  std::set<std::string> done;
  for (const PageDeviceClass& first : pack.tiers) {
    if (!done.insert(first.upstream).second) continue;
    std::vector<std::string> releases;
    for (const PageCell& cell : first.cells) releases.push_back(short_version(cell.version));
    std::vector<ChartSeries> series;
    for (const PageDeviceClass& device_class : pack.tiers) {
      if (device_class.upstream == first.upstream)
        series.push_back({device_class.device, device_class.errors});
    }
    const std::string chart = error_chart(releases, series);
    if (chart.empty()) continue;
    out += "<h3>" + html_text(first.upstream) + ": worst error over its limit</h3>" + chart +
           "<p class=\"soft\">Of the judged outputs of a release. A failure that is no number (an "
           "exception, a refused shape) has no point.</p>";
  }
  for (const PagePack::Bars& one : pack.bars) out += bar_chart(one.title, one.unit, one.bars);
  return out;
}

std::string pack_section(const PagePack& pack) {
  std::string out =
      fmt::format("<section id=\"{}\"><h2>{}</h2><p>{}</p>", pack_id(pack),
                  html_text(pack.manifest.slug.str()), html_text(pack.manifest.title));
  for (const std::string& line : pack.disagreements)
    out += element("p", "Disagreement: " + line, "class=\"warn\"");
  for (const PageDeviceClass& device_class : pack.tiers)
    out += device_class_row(pack, device_class,
                            html_text(device_class.upstream + " · " + device_class.device));
  if (!pack.tiers.empty()) out += key_of(pack);
  return out + facts(pack) + charts(pack) + scope_table(pack) + record_table(pack) + "</section>";
}

}  // namespace

std::string html_page(const Page& page) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\"/><title>Patchbench: where the packs stand</title><style>" +
      std::string(kPageStyle) + "</style></head><body>";
  out += "<h1>Patchbench: where the packs stand</h1><p class=\"soft\">Made on " +
         html_text(page.date) +
         " from recorded runs; no verdict is typed. Days are those of the runs (UTC).</p><nav>";
  out += link_to("matrix", "all");
  for (const PagePack& pack : page.packs)
    out += " " + link_to(pack_id(pack), pack.manifest.slug.str());
  out += "</nav>" + matrix(page);
  for (const PagePack& pack : page.packs) out += pack_section(pack) + "\n";
  return out + "</body></html>\n";
}

Json page_json(const Page& page) {
  Json packs = Json::array();
  for (const PagePack& pack : page.packs) {
    Json tiers = Json::array(), records = Json::array(), bars = Json::array();
    for (const PageDeviceClass& device_class : pack.tiers) {
      Json cells = Json::array(), errors = Json::array();
      for (const PageCell& cell : device_class.cells)
        cells.push_back({{"version", cell.version},
                         {"state", cell.state.text()},
                         {"date", cell.date},
                         {"verdict", cell.record},
                         {"marks", cell.marks}});
      for (const ChartPoint& point : device_class.errors)
        errors.push_back({{"version", device_class.cells.at(point.release).version},
                          {"error_over_limit", number_or_name(point.value)}});
      tiers.push_back({{"upstream", device_class.upstream},
                       {"device", device_class.device},
                       {"window", device_class.window},
                       {"releases", cells},
                       {"errors", errors}});
    }
    for (const PageRecord& record : pack.records)
      records.push_back({{"digest", record.digest},
                         {"question", record.question},
                         {"version", record.version},
                         {"device", record.device},
                         {"verdict", record.verdict},
                         {"date", record.date},
                         {"marks", record.marks}});
    for (const PagePack::Bars& one : pack.bars) {
      for (const Bar& bar : one.bars)
        bars.push_back({{"figure", one.title},
                        {"name", bar.name},
                        {"role", bar.role},
                        {"unit", one.unit},
                        {"value", bar.value}});
    }
    packs.push_back({{"slug", pack.manifest.slug.str()},
                     {"tiers", tiers},
                     {"quorum", pack.quorum},
                     {"unsigned_imports", pack.unsigned_imports},
                     {"disagreements", pack.disagreements},
                     {"mitigation", pack.mitigation},
                     {"filing", pack.manifest.filing},
                     {"due", pack.due},
                     {"bars", bars},
                     {"records", records}});
  }
  return {{"date", page.date}, {"packs", packs}};
}

}  // namespace patchbench::report
