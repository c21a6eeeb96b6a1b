#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/python_code.h"

namespace patchbench {

/// The code of the files that packs name, in every version of their upstreams that was read
/// (env/functions.json, written by `env pins functions`).
class FunctionTable {
 public:
  /// A file's entries besides its functions: core/python_code.h says what they hold.
  static constexpr const char *kWhole = "(whole)", *kModuleLevel = "(module level)";
  /// In place of a digest: the version was read and has no such function, or no such file.
  static constexpr const char* kAbsent = "absent";

  /// The inverse of `text`. Throws Error(kUsage) `<where>: <reason>`.
  static FunctionTable parse(std::string_view text, const std::string& where);
  /// JSON: upstream -> file -> entry -> digest -> the versions that have it, parted by spaces.
  std::string text() const;

  /// Takes note of one file of a version. `code` is null where the version has no such file.
  void take(const std::string& upstream, const std::string& version, const std::string& file,
            const PythonCode* code, const std::vector<std::string>& functions);
  /// A digest or kAbsent; "" where the version was not read.
  std::string find(const std::string& upstream, const std::string& version, const std::string& file,
                   const std::string& entry) const;
  /// Replaces the rows of an upstream by the rows of `other`.
  void replace(const std::string& upstream, const FunctionTable& other);
  /// "<file> <entry>: <version>" of each digest of `read` that is another here, or is not here.
  std::vector<std::string> differences(const FunctionTable& read) const;

 private:
  using Entries = std::map<std::string, std::map<std::string, std::string>>;  ///< entry, version
  std::map<std::string, std::map<std::string, Entries>> upstreams_;           ///< by file
};

}  // namespace patchbench
