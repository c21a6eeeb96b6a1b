#include <pybind11/pybind11.h>

#include <string>

#include "core/digest.h"
#include "core/edit_over.h"
#include "core/error.h"
#include "core/json.h"
#include "core/record.h"

namespace py = pybind11;

namespace patchbench {
namespace {

/// The class of patchbench.program that says what an Error means.
const char* class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "UsageError";
    case ErrorCode::kNotRunnable:
      return "NotRunnableError";
    case ErrorCode::kIntegrity:
      return "IntegrityError";
    case ErrorCode::kUnresolved:
      return "UnresolvedError";
    case ErrorCode::kInternal:
      return "InternalError";
  }
  return "InternalError";
}

void raise(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const Error& e) {
    const py::object type = py::module_::import("patchbench.program").attr(class_of(e.code()));
    PyErr_SetString(type.ptr(), e.what());
  }
}

/// {"name", "header": [(key, value)], "files": [{"path", "blob", "result", "mode", "script"}],
/// "text"}
py::dict parts_of(const Edit& edit) {
  py::list header, files;
  for (const auto& [key, value] : edit.header) header.append(py::make_tuple(key, value));
  for (const FileEdit& file : edit.files) {
    py::dict row;
    row["path"] = file.path;
    row["blob"] = file.blob;
    row["result"] = file.result;
    row["mode"] = file.mode;
    row["script"] = file.commands.empty() ? std::string() : ed_script(file);
    files.append(row);
  }
  py::dict out;
  out["name"] = edit.name;
  out["header"] = header;
  out["files"] = files;
  out["text"] = format_edit(edit);
  return out;
}

py::bytes apply_edit(const std::string& text, const std::string& name, const std::string& path,
                     const py::bytes& base) {
  const Edit edit = parse_edit(text, name);
  for (const FileEdit& file : edit.files) {
    if (file.path == path) return apply_file_edit(file, std::string(base));
  }
  throw Error(ErrorCode::kUsage, edit.name + " does not change '" + shown(path) + "'");
}

}  // namespace
}  // namespace patchbench

PYBIND11_MODULE(_patchbench, module) {
  using namespace patchbench;
  module.doc() = "The core of Patchbench. Errors are the classes of patchbench.program.";
  py::register_local_exception_translator(raise);
  module.def(
      "read_edit",
      [](const std::string& text, const std::string& name) {
        return parts_of(expand_edit(parse_edit(text, name), {}));
      },
      py::arg("text"), py::arg("name"), "The parts of an .edit text: name, header, files, text.");
  module.def(
      "load_edit", [](const std::string& file) { return parts_of(load_edit(file)); },
      py::arg("file"), "The same of an .edit file; a mutant over its fix is expanded.");
  module.def("apply_edit", apply_edit, py::arg("text"), py::arg("name"), py::arg("path"),
             py::arg("base"), "The bytes of one file after the edit.");
  module.def(
      "sha256", [](const py::bytes& data) { return sha256_hex(std::string(data)); },
      py::arg("data"), "SHA-256, 64 hex digits.");
  module.def(
      "git_blob_id", [](const py::bytes& data) { return git_blob_id(std::string(data)); },
      py::arg("data"), "The id that git gives a file of these bytes.");
  module.def(
      "canonical_json",
      [](const std::string& text) { return canonical_json(parse_json(text, "text")); },
      py::arg("text"), "The RFC 8785 form of a JSON text.");
  module.def(
      "record_digest",
      [](const std::string& line) { return parse_record(line, "record").digest(); },
      py::arg("line"), "The digest of one whole record, whose form is checked.");
}
