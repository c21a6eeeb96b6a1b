#pragma once
#include <map>
#include <string>
#include <string_view>

namespace patchbench {

/// The code of one Python module as digests over its tokens (core/python_tokens.h). Comments,
/// docstrings and layout do not count, so that a module that was formatted anew has the same
/// digests; parentheses, trailing commas and the kind of quotes are tokens and count.
struct PythonCode {
  std::string whole;  ///< of the module
  /// Of the module without the bodies of its functions and methods: what runs on import, and their
  /// names, parameters and decorators.
  std::string module_level;
  /// Qualified name -> digest: "function", "Class.method", "outer.inner". Decorators belong to the
  /// function, and what is nested in it. Several definitions of one name are one entry.
  std::map<std::string, std::string> functions;
};

/// Throws Error(kUsage) as python_tokens does, and for a `def` or a `class` without a body.
PythonCode python_code(std::string_view source, const std::string& where);

}  // namespace patchbench
