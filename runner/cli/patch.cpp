#include "cli/patch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/pack_arguments.h"
#include "core/edit_make.h"
#include "core/edit_over.h"
#include "core/error.h"
#include "git/mail.h"
#include "git/source.h"
#include "git/work_folder.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct PatchOptions {
  std::shared_ptr<PackArguments> pack;
  std::string folder, subject, description, bug, name, out, signer;
  bool is_all = false;
};

/// The series at the version that the words name.
PackSeries series_of(const Context& context, const PatchOptions& options) {
  const NamedPins pins = options.pack->pins(context);
  return find_series(context, options.pack->slug, pins.upstream, pins.version());
}

fs::path patches_folder(const Context& context, const Slug& slug) {
  return context.root / cell_path(slug, Column::kPatches);
}

std::vector<std::string> names_of(const std::vector<Edit>& edits) {
  std::vector<std::string> names;
  for (const Edit& edit : edits) names.push_back(edit.name);
  return names;
}

/// "Scale each row's gradient" as "scale-each-row-s-gradient".
std::string dashed(const std::string& subject) {
  std::string out;
  for (const char c : subject) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte < 0x80 && std::isalnum(byte) != 0;
    if (is_plain) {
      out += static_cast<char>(std::tolower(byte));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  out = out.substr(0, 48);
  while (out.ends_with('-')) out.pop_back();
  return out.empty() ? "change" : out;
}

void run_new(const Context& context, const PatchOptions& options) {
  const PackSeries pack = series_of(context, options);
  git::Store store(context.cache, context.root);
  const std::vector<Edit> series = carried_series(pack, store);
  const git::Checkout checkout = store.materialize(pack.at, series);
  git::make_work_folder(
      options.pack->folder, checkout,
      {options.pack->slug, pack.upstream.name, pack.at.version, "", names_of(series)});
  const git::WorkFolder work = git::read_work_folder(options.pack->folder);
  const fs::path package = fs::absolute(options.pack->folder) / work.prefix;
  if (context.json) {
    print_json(context, {{"folder", fs::absolute(options.pack->folder).string()},
                         {"package", package.lexically_normal().string()},
                         {"slug", options.pack->slug},
                         {"upstream", work.upstream},
                         {"version", work.version},
                         {"series", work.series}});
    return;
  }
  context.out() << fmt::format(
      "{}: {} {} with {} edit(s) of {}\nedit under {}, then: patchbench patch save {} --subject "
      "\"...\"\n",
      options.pack->folder, work.upstream, work.version, series.size(), options.pack->slug,
      package.lexically_normal().string(), options.pack->folder);
}

/// The name of the edit to write, and how many edits of the series stand before it.
struct PatchTarget {
  std::string name;
  size_t num_before = 0;
};

PatchTarget place_of(const PatchOptions& options, const std::vector<Edit>& series,
                     const std::vector<std::string>& in_folder) {
  for (const std::string kind : {"mutant-", "claimed-", "wrong-", "right-"}) {
    if (options.name.starts_with(kind))
      return {kind + dashed(options.name.substr(kind.size())) + ".edit", 0};
  }
  if (options.name.empty()) {
    int last = 0;
    for (const Edit& edit : series) last = std::max(last, std::stoi(edit.name.substr(0, 4)));
    return {fmt::format("{:04}-{}.edit", last + 1, dashed(options.subject)), in_folder.size()};
  }
  const std::string name = options.name.ends_with(".edit") ? options.name : options.name + ".edit";
  const auto found = std::find(in_folder.begin(), in_folder.end(), name);
  if (found == in_folder.end()) return {name, in_folder.size()};
  if (found + 1 != in_folder.end()) {
    throw Error(ErrorCode::kUsage,
                name + ": later edits rest on it; only the last of a series can be replaced (" +
                    in_folder.back() + ")");
  }
  return {name, in_folder.size() - 1};
}

/// Fills the header: what the words say, else what the edit had, else what a fresh one has.
void complete_header(const Context& context, Edit& edit, const PatchOptions& options,
                     const PackSeries& pack, const Edit* old) {
  const auto choose = [&](const std::string& key, const std::string& said,
                          const std::string& fresh) {
    const std::string had = old == nullptr ? "" : old->field(key);
    const std::string value = !said.empty() ? said : !had.empty() ? had : fresh;
    if (!value.empty()) edit.set_field(key, value);
  };
  edit.header.clear();
  choose("Subject", options.subject, "");
  choose("Description", options.description, options.subject);
  edit.set_field("Upstream", pack.upstream.name);
  edit.set_field("Base", pack.at.version);
  choose("Origin", "", "vendor");
  choose("Author", "", "");
  choose("Bug", options.bug, "");
  choose("Forwarded", "", "no");
  choose("Applied-Upstream", "", "");
  edit.set_field("License", pack.upstream.license);
  edit.set_field("Last-Update", context.today());
  if (edit.field("Subject").empty())
    throw Error(ErrorCode::kUsage, "--subject is needed: one line that says what the edit does");
  if (edit.field("Subject").find('\n') != std::string::npos)
    throw Error(ErrorCode::kUsage, "--subject is one line");
}

void print_saved(const Context& context, const Json& saved) {
  for (const Json& run : saved["copied"]) {
    context.err() << "patchbench: copied from upstream: " << run.get<std::string>()
                  << "; write it in our own lines or move it\n";
  }
  if (context.json) {
    print_json(context, saved);
    return;
  }
  context.out() << saved["file"].get<std::string>() << "\n";
  for (const Json& file : saved["files"]) {
    context.out() << fmt::format("  {}: {} command(s), {} line(s) of ours\n",
                                 file["path"].get<std::string>(), file["commands"].get<size_t>(),
                                 file["lines"].get<size_t>());
  }
}

void run_save(const Context& context, const PatchOptions& options) {
  const git::WorkFolder work = git::read_work_folder(options.folder);
  const PackSeries pack = find_series(context, work.slug, work.upstream, work.version);
  if (pack.at.version != pack.base.version && options.out.empty()) {
    throw Error(ErrorCode::kUsage, options.folder + " was opened at " + pack.at.version +
                                       "; patches/" + work.slug + " rests on the tested release " +
                                       pack.base.version + ": give --out DIR to keep an edit for " +
                                       pack.at.version);
  }
  git::Store store(context.cache, context.root);
  const std::vector<Edit> series = carried_series(pack, store);
  std::vector<Edit> applied;
  for (const std::string& name : work.series) {
    const auto edit =
        std::find_if(series.begin(), series.end(), [&](const Edit& e) { return e.name == name; });
    if (edit == series.end())
      throw Error(ErrorCode::kUsage, name + ": is no longer in the series; open a new folder");
    applied.push_back(*edit);
  }
  const PatchTarget place = place_of(options, series, work.series);
  const std::vector<Edit> before(applied.begin(),
                                 applied.begin() + static_cast<std::ptrdiff_t>(place.num_before));
  Edit edit = git::edit_from_folder(fs::path(options.folder) / work.prefix, pack.at, store,
                                    place.name, before);
  const auto old = std::find_if(series.begin(), series.end(),
                                [&](const Edit& e) { return e.name == place.name; });
  complete_header(context, edit, options, pack, old == series.end() ? nullptr : &*old);
  const fs::path path =
      (options.out.empty() ? patches_folder(context, pack.manifest.slug) : fs::path(options.out)) /
      place.name;
  const bool is_over = place.name.starts_with("mutant-") || is_candidate(place.name);
  const bool is_alone = is_over || place.name.starts_with("claimed-");
  if (old == series.end() && fs::exists(path) && !is_alone) {
    throw Error(
        ErrorCode::kUsage,
        path.string() + ": exists and is not in this folder's series; choose another --name");
  }
  Json files = Json::array(), copied = Json::array();
  for (const FileEdit& file : edit.files) {
    size_t num_lines = 0;
    for (const EdCommand& command : file.commands) num_lines += command.lines.size();
    files.push_back(
        {{"path", file.path}, {"commands", file.commands.size()}, {"lines", num_lines}});
    for (const std::string& run :
         copied_runs(file, git::read_after(store, pack.at, before, file.path).value_or(""))) {
      copied.push_back(run);
    }
  }
  const Edit saved = parse_edit(format_edit(edit), edit.name);
  std::optional<Edit> over;
  if (is_over && options.out.empty()) over = over_fix(saved, pack.series.edits);
  write_whole(path, format_edit(over.value_or(saved)));
  print_saved(
      context,
      {{"file", path.string()}, {"name", place.name}, {"files", files}, {"copied", copied}});
}

void run_show(const Context& context, const PatchOptions& options) {
  const PackSeries pack = series_of(context, options);
  git::Store store(context.cache, context.root);
  std::vector<Edit> shown_edits = carried_series(pack, store), before;
  if (options.is_all && pack.at.version == pack.base.version) {
    for (const auto* lone : {&pack.series.mutants, &pack.series.claimed})
      shown_edits.insert(shown_edits.end(), lone->begin(), lone->end());
  }
  Json rows = Json::array();
  for (const Edit& edit : shown_edits) {
    const bool is_alone = edit.name.starts_with("mutant-") || edit.name.starts_with("claimed-");
    const std::string diff =
        git::unified_diff(edit, pack.at, store, is_alone ? std::vector<Edit>{} : before);
    if (context.json) {
      rows.push_back({{"name", edit.name},
                      {"subject", edit.field("Subject")},
                      {"version", pack.at.version},
                      {"diff", diff}});
    } else {
      context.out() << "# " << edit.name << ": " << edit.field("Subject") << "\n# on "
                    << pack.at.upstream << " " << pack.at.version << "\n"
                    << diff << "\n";
    }
    if (!is_alone) before.push_back(edit);
  }
  if (context.json) print_json(context, rows);
  if (!context.json && shown_edits.empty())
    context.out() << options.pack->slug << ": no edits for " << pack.upstream.name << "\n";
}

void run_apply(const Context& context, const PatchOptions& options) {
  const PackSeries pack = series_of(context, options);
  git::Store store(context.cache, context.root);
  const std::vector<Edit> series = carried_series(pack, store);
  if (series.empty())
    throw Error(ErrorCode::kUsage, options.pack->slug + ": no edits to apply for " +
                                       pack.upstream.name + " " + pack.at.version);
  const std::string prefix =
      git::prefix_of_folder(options.pack->folder, pack.upstream.package, pack.upstream.git_prefix);
  std::vector<std::string> changed;
  try {
    changed = git::apply_to_folder(fs::path(options.pack->folder) / prefix, series);
  } catch (const Error& e) {
    throw Error(e.code(),
                std::string(e.what()) +
                    "; nothing was changed; a version after the pack carries the series to it");
  }
  if (context.json) {
    print_json(context, {{"folder", fs::absolute(options.pack->folder).string()},
                         {"edits", names_of(series)},
                         {"changed", changed}});
    return;
  }
  context.out() << fmt::format("{}: {} edit(s) for {} {} applied\n", options.pack->folder,
                               series.size(), pack.upstream.name, pack.at.version);
  for (const std::string& path : changed) context.out() << "  " << prefix << path << "\n";
}

void run_export(const Context& context, const PatchOptions& options) {
  const NamedPins pins = options.is_all ? NamedPins{} : options.pack->pins(context);
  git::Store store(context.cache, context.root);
  Json rows = Json::array();
  for (const std::string& slug :
       options.is_all ? context.slugs() : std::vector<std::string>{options.pack->slug}) {
    const Manifest manifest = context.manifest(slug);
    for (const UpstreamUse& use : manifest.upstreams) {
      if (!pins.upstream.empty() && use.name != pins.upstream) continue;
      const PackSeries pack = find_series(context, slug, use.name, pins.version());
      const fs::path folder = manifest.upstreams.size() > 1
                                  ? fs::path(options.pack->folder) / slug / use.name
                                  : fs::path(options.pack->folder) / slug;
      const std::vector<std::string> names = export_series(pack, store, folder, options.signer);
      if (names.empty()) continue;
      rows.push_back({{"slug", slug},
                      {"upstream", use.name},
                      {"version", pack.at.version},
                      {"url", pack.upstream.url},
                      {"folder", folder.string()},
                      {"patches", names}});
    }
  }
  if (context.json) {
    print_json(context, rows);
    return;
  }
  for (const Json& row : rows) {
    context.out() << fmt::format(
        "{}: {} patch(es) for {} {}; git am {}/*.patch\n", row["slug"].get<std::string>(),
        row["patches"].size(), row["upstream"].get<std::string>(),
        row["version"].get<std::string>(), row["folder"].get<std::string>());
  }
  if (rows.empty()) context.out() << "no edits to export\n";
}

void add_new(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchOptions>();
  CLI::App* command = patch.add_subcommand(
      "new", "open a folder with the upstream at the pin, the series applied, to edit in");
  options->pack = add_pack_arguments_and_folder(
      *command, context, "[UPSTREAM@]WHICH (default: the tested release), then a new folder");
  command->footer(
      "The folder is a git repository with one commit: `git diff` there shows what you changed.\n"
      "Examples:\n  patchbench patch new liger_flce_none_bwd /tmp/liger\n"
      "  $EDITOR /tmp/liger/liger_kernel/ops/fused_linear_cross_entropy.py\n"
      "  patchbench patch save /tmp/liger --subject \"scale each row by its own gradient\"");
  command->callback([options, &context] { run_new(context, *options); });
}

void add_save(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchOptions>();
  CLI::App* command =
      patch.add_subcommand("save", "write what was changed in a folder of `patch new` as an .edit");
  command->add_option("dir", options->folder, "the folder that `patch new` opened")->required();
  command->add_option("--subject", options->subject, "one line that says what the edit does");
  command->add_option("--description", options->description,
                      "why it is right (default: the subject)");
  command->add_option("--bug", options->bug, "address of the upstream's report");
  command->add_option(
      "--name", options->name,
      "0001-row-scale; the series' last name replaces that edit. mutant-NAME: a wrong "
      "fix on purpose, over the pack's fix where that is shorter; wrong-NAME, right-NAME: the same "
      "as a candidate for validate --edit. claimed-NAME: all differences from the bare pin, a "
      "change as its proposal has it");
  command->add_option("--out", options->out, "folder for the .edit (default: patches/<slug>)");
  command->footer(
      "An .edit holds only our lines: moved and re-indented upstream lines become commands. Files "
      "of the\n"
      "upstream's package count, nothing else. Upstream lines that were copied are named on "
      "stderr.\n"
      "Examples:\n  patchbench patch save /tmp/liger --subject \"scale each row by its own "
      "gradient\" --bug https://…\n"
      "  patchbench patch save /tmp/half --name mutant-first-row-only --subject \"scales the first "
      "row "
      "only\"");
  command->callback([options, &context] { run_save(context, *options); });
}

void add_show(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchOptions>();
  CLI::App* command = patch.add_subcommand(
      "show", "print the series as unified diffs (upstream context: not to be committed)");
  options->pack = add_pack_arguments(*command, context,
                                     {.takes_companions = false, .instead = "one version alone"},
                                     "[UPSTREAM@]WHICH (default: the tested release)");
  command->get_option("slug")->required();
  command->add_flag("--mutants", options->is_all, "the mutants too");
  command->footer(
      "Examples:\n  patchbench patch show liger_flce_none_bwd\n  patchbench patch show "
      "liger_flce_none_bwd 0.7.0");
  command->callback([options, &context] { run_show(context, *options); });
}

void add_apply(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchOptions>();
  CLI::App* command = patch.add_subcommand(
      "apply", "apply the series to your own tree: all of it or nothing, never with fuzz");
  options->pack = add_pack_arguments_and_folder(
      *command, context,
      "[UPSTREAM@]WHICH (default: the tested release), then a clone, or the folder that holds the "
      "package (site-packages)");
  command->footer(
      "Examples:\n  patchbench patch apply liger_flce_none_bwd 0.8.1 ~/src/Liger-Kernel\n"
      "Each file must be the whole file the edit was made for (by git blob id); else nothing is "
      "written.");
  command->callback([options, &context] { run_apply(context, *options); });
}

void add_export(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchOptions>();
  CLI::App* command = patch.add_subcommand(
      "export", "write mails that git am takes, and a quilt series file, in the git layout");
  options->pack = add_pack_arguments_and_folder(
      *command, context, "[UPSTREAM@]WHICH (default: the tested release), then a folder",
      &options->is_all);
  command->add_flag("--all", options->is_all, "every pack that has edits: --all DIR");
  add_signer(*command, options->signer);
  command->footer(
      "Examples:\n  patchbench patch export liger_flce_none_bwd /tmp/out\n"
      "  cd Liger-Kernel && git checkout v0.8.0 && git am /tmp/out/liger_flce_none_bwd/*.patch\n"
      "  patchbench patch export --all /tmp/out");
  command->callback([options, &context] { run_export(context, *options); });
}

}  // namespace

Pin resolve_version(const Context& context, const std::string& upstream,
                    const std::string& version) {
  const std::string kind = "path:";
  if (!version.starts_with(kind) || version == kind)
    return context.pins().resolve(upstream, version);
  const fs::path folder = fs::absolute(version.substr(kind.size())).lexically_normal();
  return context.pins().resolve(upstream, kind + folder.string());
}

PackSeries find_series(const Context& context, const std::string& slug, const std::string& upstream,
                       const std::string& at) {
  PackSeries pack;
  pack.manifest = context.manifest(slug);
  std::vector<std::string> names;
  const UpstreamUse* use = nullptr;
  for (const UpstreamUse& known : pack.manifest.upstreams) {
    names.push_back(known.name);
    if (use == nullptr && (upstream.empty() || known.name == upstream)) use = &known;
  }
  if (use == nullptr)
    throw Error(ErrorCode::kUsage, slug + " has no upstream \"" + shown(upstream) + "\"" +
                                       did_you_mean(upstream, names));
  const Pins pins = context.pins();
  pack.upstream = pins.upstream(use->name);
  pack.base = pins.resolve(use->name, use->red_pin);
  pack.at = at.empty() ? pack.base : resolve_version(context, use->name, at);
  const git::BasedSeries based =
      git::series_for(git::load_series(patches_folder(context, pack.manifest.slug), use->name),
                      pack.at.version, use->red_pin);
  pack.series = based.series;
  pack.base = context.pins().resolve(use->name, based.base);
  return pack;
}

std::vector<Edit> carried_series(const PackSeries& pack, git::Store& store) {
  if (pack.at.version == pack.base.version) return pack.series.edits;
  std::vector<Edit> carried;
  const std::vector<git::Rebase> rebases =
      git::rebase_series(pack.series.edits, pack.base, pack.at, store);
  for (size_t i = 0; i < rebases.size(); ++i) {
    if (!rebases[i].conflicts.empty()) {
      throw Error(
          ErrorCode::kUnresolved,
          fmt::format("{} does not reach {} {}: {} at {}; see `patchbench patch rebase {} {}`",
                      pack.series.edits[i].name, pack.at.upstream, pack.at.version,
                      git::rebase_state_name(rebases[i].state),
                      conflict_place(rebases[i].conflicts.front()), pack.manifest.slug.str(),
                      pin_word(pack.at.upstream, pack.at.version)));
    }
    if (rebases[i].edit) carried.push_back(*rebases[i].edit);
  }
  return carried;
}

void add_signer(CLI::App& command, std::string& signer) {
  command
      .add_option("--from", signer,
                  "\"Name <mail>\" of who files: author and Signed-off-by of the mails")
      ->check([](const std::string& text) {
        return git::is_mailbox(text) ? std::string()
                                     : shown(text) + ": write it as \"Name <mail@host>\"";
      });
}

std::vector<std::string> export_series(const PackSeries& pack, git::Store& store,
                                       const fs::path& folder, const std::string& signer) {
  const std::vector<Edit> edits = carried_series(pack, store);
  std::vector<Edit> before;
  std::vector<std::string> names;
  std::string list;
  for (const Edit& edit : edits) {
    const std::string name =
        edit.name.substr(0, edit.name.size() - std::string(".edit").size()) + ".patch";
    const auto number = static_cast<int>(before.size()) + 1;
    write_whole(folder / name,
                git::format_mail(edit, pack.at, store, pack.upstream.git_prefix, number,
                                 static_cast<int>(edits.size()), before, signer));
    before.push_back(edit);
    names.push_back(name);
    list += name + "\n";
  }
  if (!names.empty()) write_whole(folder / "series", list);
  return names;
}

std::string conflict_place(const git::Conflict& conflict) {
  if (conflict.first_line == 0) return conflict.path;
  if (conflict.first_line == conflict.last_line)
    return fmt::format("{}:{}", conflict.path, conflict.first_line);
  return fmt::format("{}:{}-{}", conflict.path, conflict.first_line, conflict.last_line);
}

Json conflicts_json(const std::vector<git::Conflict>& conflicts) {
  Json rows = Json::array();
  for (const git::Conflict& conflict : conflicts) {
    rows.push_back({{"path", conflict.path},
                    {"first_line", conflict.first_line},
                    {"last_line", conflict.last_line},
                    {"ours", conflict.ours},
                    {"theirs", conflict.theirs}});
  }
  return rows;
}

void add_patch_command(CLI::App& app, Context& context) {
  CLI::App* patch =
      app.add_subcommand("patch", "make, look at, apply, export and carry a pack's edits");
  patch->require_subcommand(1);
  patch->footer(
      "An edit's way: new -> (edit the files) -> save -> show -> rebase -> export.\n"
      "Examples:\n  patchbench patch new liger_flce_none_bwd /tmp/liger\n"
      "  patchbench patch show liger_flce_none_bwd");
  add_new(*patch, context);
  add_save(*patch, context);
  add_show(*patch, context);
  add_apply(*patch, context);
  add_export(*patch, context);
  add_patch_rebase(*patch, context);
  add_patch_check(*patch, context);
  add_patch_read(*patch, context);
}

}  // namespace patchbench::cli
