#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/file_text.h"
#include "report/table.h"
#include "status/due.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;
using report::paragraph;

/// Whether a cell of the table is there; a folder counts once something is in it.
bool is_filled(const Context& context, const Slug& slug, Column column) {
  const fs::path cell = context.root / cell_path(slug, column);
  if (column == Column::kPack) return fs::exists(cell / "manifest.json");
  return fs::is_regular_file(cell) || (fs::is_directory(cell) && !fs::is_empty(cell));
}

Json cells_json(const Context& context, const Manifest& manifest) {
  Json out = Json::array();
  for (const Column column : all_columns()) {
    Json cell = {{"column", column_name(column)},
                 {"path", cell_path(manifest.slug, column)},
                 {"filled", is_filled(context, manifest.slug, column)}};
    if (const auto reason = manifest.waived(column)) cell["waived"] = *reason;
    out.push_back(std::move(cell));
  }
  return out;
}

int count_filled(const Json& cells) {
  return static_cast<int>(
      std::count_if(cells.begin(), cells.end(), [](const Json& cell) { return cell["filled"]; }));
}

void list_packs(const Context& context) {
  report::Table table({"no", "slug", "kind", "upstream", "tested release", "parts"});
  Json rows = Json::array();
  for (const std::string& slug : context.slugs()) {
    const Manifest manifest = context.manifest(slug);
    const Json cells = cells_json(context, manifest);
    Json upstreams = Json::array();
    for (const UpstreamUse& use : manifest.upstreams) {
      const bool is_first = &use == &manifest.upstreams.front();
      upstreams.push_back({{"name", use.name}, {"red_pin", use.red_pin}});
      table.add(is_first ? std::vector<std::string>{fmt::format("{:02}", manifest.number), slug,
                                                    manifest.kind, use.name, use.red_pin,
                                                    fmt::format("{}/{}", count_filled(cells),
                                                                cells.size())}
                         : std::vector<std::string>{"", "", "", use.name, use.red_pin, ""});
    }
    rows.push_back({{"number", manifest.number},
                    {"slug", slug},
                    {"kind", manifest.kind},
                    {"title", manifest.title},
                    {"upstreams", upstreams},
                    {"cells", cells}});
  }
  context.out() << (context.json ? rows.dump(2) + "\n" : table.render(table_style(context)));
}

/// What answers for each surface: of a pack its op or edit and the mitigation that puts it into a
/// running program, of others their implementations.
void list_catalog(const Context& context) {
  report::Table table({"surface", "family", "what", "role", "contract"});
  Json rows = Json::array();
  const auto add = [&](const Json& catalog, const std::string& slug, const std::string& what,
                       const std::string& role, const std::string& contract) {
    table.add({catalog.at("surface"), catalog.at("family"), what, role, contract});
    rows.push_back({{"slug", slug},
                    {"surface", catalog.at("surface")},
                    {"family", catalog.at("family")},
                    {"what", what},
                    {"role", role},
                    {"backend_contract", contract}});
  };
  for (const std::string& slug : context.slugs()) {
    const Manifest manifest = context.manifest(slug);
    const Json& catalog = manifest.lifecycle.at("catalog");
    add(catalog, slug, slug, catalog.at("role"), catalog.at("backend_contract"));
    if (is_filled(context, manifest.slug, Column::kMitigation))
      add(catalog, slug, slug + " in " + manifest.mitigated(), "adapter",
          fmt::format(
              "modes {}",
              fmt::join(manifest.mitigation.at("modes").get<std::vector<std::string>>(), ", ")));
    for (const Json& donor : catalog.value("donors", Json::array()))
      add(catalog, slug, donor.at("name"), "donor", donor.at("backend_contract"));
  }
  context.out() << (context.json ? rows.dump(2) + "\n" : table.render(table_style(context)));
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, " "));
}

std::string axes_text(const Json& axes) {
  std::string out;
  for (const auto& [key, value] : axes.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : canonical_json(value);
    out += (out.empty() ? "" : " ") + key + "=" + text;
  }
  return out;
}

/// The axes on which more than half of the cases agree: they are shown once.
Json usual_axes(const std::vector<Case>& cases) {
  std::map<std::string, std::map<std::string, size_t>> counts;
  Json out = Json::object();
  for (const Case& item : cases) {
    for (const auto& [key, value] : item.axes.items()) {
      if (++counts[key][canonical_json(value)] * 2 > cases.size()) out[key] = value;
    }
  }
  return out;
}

/// The axes of a case that differ from the usual ones; an axis it lacks is shown as "-".
Json unusual_axes(const Case& item, const Json& usual) {
  Json out = Json::object();
  for (const auto& [key, value] : item.axes.items()) {
    if (!usual.contains(key) || usual[key] != value) out[key] = value;
  }
  for (const auto& [key, value] : usual.items()) {
    if (!item.axes.contains(key)) out[key] = "-";
  }
  return out;
}

std::string identity_text(const Manifest& manifest) {
  std::string out = paragraph(
      "", fmt::format("{} · pack {:02} · {}", manifest.slug.str(), manifest.number, manifest.kind));
  out += paragraph("", manifest.title) + "\nUpstreams\n";
  for (const UpstreamUse& use : manifest.upstreams) {
    out += paragraph("  ", fmt::format("{}, tested release {}", use.name, use.red_pin));
    for (const std::string& file : use.files) out += paragraph("    ", file);
  }
  out += "\nFailure classes\n";
  for (const std::string& name : manifest.classes_order) {
    out += paragraph("  ", name + ": " + manifest.classes.at(name));
  }
  return out;
}

std::string scope_text(const Manifest& manifest) {
  std::string out = "\nScope\n";
  for (const ScopeRow& row : manifest.scope) {
    out += paragraph("  ", fmt::format("{} · {}", row.verdict, row.architecture)) +
           paragraph("    ", row.claim);
    if (!row.why.empty()) out += paragraph("      why: ", row.why);
    if (!row.cases.empty()) out += paragraph("      cases ", joined(row.cases));
    if (row.test)
      out += paragraph("      test ",
                       fmt::format("{}: {} of {} is {} ({}), {} is not", row.test->name,
                                   row.test->subject, row.test->version, row.test->expects,
                                   row.test->failure_class, row.test->contrast));
    for (const std::string& digest : row.records)
      out += "      record " + digest.substr(0, 16) + "\n";
  }
  return out;
}

std::string cases_text(const Manifest& manifest) {
  if (manifest.cases.empty()) return "";
  std::string out = fmt::format("\nCases ({})\n", manifest.cases.size());
  const Json usual = usual_axes(manifest.cases);
  if (!usual.empty()) out += paragraph("  ", "unless a case says otherwise: " + axes_text(usual));
  for (const Case& item : manifest.cases) {
    const std::string of = item.upstream.empty() ? "" : ", " + item.upstream;
    out += paragraph("  ", fmt::format("{}, {}, judged on {}{}", item.name, role_name(item.role),
                                       joined(item.judged_on), of));
    const Json axes = unusual_axes(item, usual);
    if (!axes.empty()) out += paragraph("    ", axes_text(axes));
  }
  if (!manifest.bounds.empty()) out += "\nBounds\n";
  for (const auto& [name, bound] : manifest.bounds.items()) {
    Json figures = bound;
    figures.erase("why");
    out += paragraph("  ", name + ": " + axes_text(figures)) +
           paragraph("    ", bound.at("why").get<std::string>());
  }
  return out;
}

std::string cells_text(const Json& cells) {
  std::string out = fmt::format("\nCells ({} of {})\n", count_filled(cells), cells.size());
  for (const Json& cell : cells) {
    const std::string state = cell["filled"] ? ""
                              : cell.contains("waived")
                                  ? " (waived: " + cell["waived"].get<std::string>() + ")"
                                  : " (missing)";
    out += paragraph(fmt::format("  {:<12}", cell["column"].get<std::string>()),
                     cell["path"].get<std::string>() + state);
  }
  return out;
}

void show_pack(const Context& context, const std::string& slug) {
  const Manifest manifest = context.manifest(slug);
  const Json cells = cells_json(context, manifest);
  if (context.json) {
    const std::string path = cell_path(manifest.slug, Column::kPack) + "/manifest.json";
    const Json document = parse_json(read_file(context.root / path), path);
    print_json(context, {{"manifest", document}, {"sha256", manifest.sha256}, {"cells", cells}});
    return;
  }
  context.out() << identity_text(manifest) << scope_text(manifest) << cases_text(manifest)
                << cells_text(cells);
}

}  // namespace

void add_list_commands(CLI::App& app, Context& context) {
  CLI::App* list = app.add_subcommand(
      "list", "every pack: number, slug, kind, upstreams, tested release, parts");
  auto is_catalog = std::make_shared<bool>(false);
  list->add_flag(
      "--catalog", *is_catalog,
      "by surface: each op or edit, the adapter that puts it into a running program, and "
      "what others have for it");
  list->footer("Examples:\n  patchbench list\n  patchbench list --catalog");
  list->callback(
      [is_catalog, &context] { *is_catalog ? list_catalog(context) : list_packs(context); });
  CLI::App* show = app.add_subcommand(
      "show", "one pack: what it claims, its cases and bounds, and where its parts are");
  auto slug = std::make_shared<std::string>();
  show->add_option("slug", *slug, "the pack")->required();
  show->footer(
      "Examples:\n  patchbench show liger_flce_none_bwd\n  patchbench show te_fused_ce --json");
  show->callback([slug, &context] { show_pack(context, *slug); });
}

}  // namespace patchbench::cli
