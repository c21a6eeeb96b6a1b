#include <fmt/format.h>

#include <memory>

#include "cli/patch.h"
#include "core/edit_over.h"
#include "core/error.h"
#include "core/file_text.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct ReadOptions {
  std::string edit, file, base;
};

Json file_json(const FileEdit& file) {
  return {{"path", file.path},
          {"blob", file.blob},
          {"result", file.result},
          {"mode", file.mode},
          {"script", file.commands.empty() ? "" : ed_script(file)}};
}

void print_edit(const Context& context, const Edit& edit) {
  if (context.json) {
    Json header = Json::array(), files = Json::array();
    for (const auto& [key, value] : edit.header) header.push_back({key, value});
    for (const FileEdit& file : edit.files) files.push_back(file_json(file));
    print_json(
        context,
        {{"name", edit.name}, {"header", header}, {"files", files}, {"text", format_edit(edit)}});
    return;
  }
  for (const auto& [key, value] : edit.header)
    context.out() << fmt::format("{}: {}\n", key, value.substr(0, value.find('\n')));
  for (const FileEdit& file : edit.files)
    context.out() << fmt::format("{}: {} -> {}\n", file.path,
                                 file.blob.empty() ? "new" : file.blob.substr(0, 12),
                                 file.result.empty() ? "deleted" : file.result.substr(0, 12));
}

/// The bytes of one file of the edit, from the bytes that it was written for.
std::string edited(const Edit& edit, const ReadOptions& options) {
  std::vector<std::string> paths;
  for (const FileEdit& file : edit.files) {
    if (file.path == options.file)
      return apply_file_edit(file, options.base.empty() ? "" : read_file(options.base));
    paths.push_back(file.path);
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("{} does not change '{}'{}", edit.name, shown(options.file),
                          did_you_mean(options.file, paths)));
}

void read_edit(const Context& context, const ReadOptions& options) {
  const Edit edit = load_edit(options.edit);
  if (options.file.empty()) return print_edit(context, edit);
  const std::string text = edited(edit, options);
  if (context.json) {
    // Bytes that are not UTF-8 would not come through as JSON text.
    throw Error(ErrorCode::kUsage, "patch read --file writes the file's bytes: leave out --json");
  }
  context.out() << text;
}

}  // namespace

void add_patch_read(CLI::App& patch, Context& context) {
  auto options = std::make_shared<ReadOptions>();
  CLI::App* command =
      patch.add_subcommand("read", "one .edit file: its header and files, checked; no upstream");
  command->add_option("edit", options->edit, "an .edit file")->required();
  CLI::Option* file = command->add_option(
      "--file", options->file, "apply the edit to this file of it, and write the bytes to stdout");
  command->add_option("--base", options->base, "the file as released (none: the edit makes it)")
      ->needs(file);
  command->callback([options, &context] { read_edit(context, *options); });
}

}  // namespace patchbench::cli
