#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "unit/mutation.h"

/// Spellings of a package that is a known hit, as pip, uv, conda and the makers of SBOMs take them.
namespace patchbench::spellings {

using mutation::Random;

/// A package with a version that is a known hit, and one that is known to be right.
struct Planted {
  std::string name, bad, right;
};

/// A text that lists it, and the files that the text includes.
struct Input {
  std::string kind, text;
  std::map<std::string, std::string> included;
};

inline std::string one_of(Random& random, const std::vector<std::string>& all) {
  return random.pick(all);
}

inline std::string with_case(std::string text, Random& random) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z' && random.below(4) == 0) c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

/// PEP 503: no case, and any run of "-", "_" and "." is one.
inline std::string name_of(const std::string& name, Random& random) {
  std::string out;
  for (const char c : name) {
    const size_t length = c == '-' ? 1 + random.below(3) : 0;
    for (size_t i = 0; i < length; ++i) out += one_of(random, {"-", "_", "."});
    if (length == 0) out += c;
  }
  return with_case(out, random);
}

/// PEP 440: other texts of the same version.
inline std::string version_of(std::string version, Random& random) {
  const size_t post = version.find(".post");
  if (post != std::string::npos && random.below(2) == 0)
    version = version.substr(0, post) +
              one_of(random, {"-", "post", ".rev", "-r", "_post", ".POST", ".post."}) +
              version.substr(post + 5);
  if (post == std::string::npos && random.below(6) == 0) version += one_of(random, {".0", ".0.0"});
  if (random.below(8) == 0) version = "0" + version;
  if (random.below(8) == 0) version = "0!" + version;
  if (random.below(6) == 0) version = one_of(random, {"v", "V"}) + version;
  return version;
}

inline std::string space(Random& random) {
  return one_of(random, {"", "", "", " ", "  ", "\t", " \t"});
}

inline std::string wheel_of(const Planted& one, const std::string& version) {
  std::string name = one.name;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name + "-" + version + "-py3-none-any.whl";
}

inline std::string marker_of(Random& random) {
  return one_of(random, {"python_version >= '3.0'", "python_version>\"3\" and os_name != 'x'",
                         "(sys_platform == 'linux' or sys_platform != \"a;b\")",
                         "'x' not in platform_machine", "python_full_version in '3.11.1, 3.12.1'"});
}

inline std::string specifier_of(const Planted& one, Random& random) {
  const std::string version = version_of(one.bad, random), gap = space(random);
  switch (random.below(8)) {
    case 0:
      return "===" + gap + one.bad;
    case 1:
      return "(" + gap + "==" + version + ")";
    case 2:
      return "==" + version + gap + "," + space(random) + "!=99.1";
    case 3:
      return ">=0.1" + gap + ",==" + gap + version;
    case 4:
      return ">=" + one.bad + ",<=" + gap + one.bad;
    case 5:
      return "~=" + gap + one.bad;
    default:
      return "==" + gap + version;
  }
}

/// A requirement that leads to a place.
inline std::string place_of(const Planted& one, Random& random) {
  const std::string wheel = wheel_of(one, one.bad), name = name_of(one.name, random),
                    host = one_of(random, {"https://example.org/a/", "file:///srv/"});
  switch (random.below(6)) {
    case 0:
      return name + space(random) + "@ " + host + wheel;
    case 1:
      return "./" + wheel;
    case 2:
      return host + wheel + one_of(random, {"", "#sha256=00", "#egg=" + name});
    case 3:
      return "git+https://example.org/x.git@v" + one.bad + "#egg=" + name;
    case 4:
      return one_of(random, {"-e ", "--editable ", "--editable=", "-e"}) +
             "git+https://example.org/x.git@" + std::string(40, 'a') + "#egg=" + name;
    default:
      return name + "@git+https://example.org/x@" + one.bad;
  }
}

/// One requirement of a requirements file, without a comment.
inline std::string requirement_of(const Planted& one, Random& random) {
  if (random.below(5) == 0) return place_of(one, random);
  std::string text = name_of(one.name, random);
  if (random.below(4) == 0) text += space(random) + "[a" + space(random) + ",b-c]";
  text += space(random) + specifier_of(one, random);
  if (random.below(3) == 0) text += space(random) + ";" + space(random) + marker_of(random);
  if (random.below(3) == 0) {
    text += one_of(random, {" ", "  ", " \\\n    "}) +
            one_of(random, {"--hash=sha256:00", "--hash sha256:00 --hash=sha256:11",
                            "--config-settings=\"a=b c\"", "--global-option='x y'"});
  }
  return text;
}

/// The same as a line: pip joins what a backslash at its end continues.
inline std::string line_of(const Planted& one, Random& random) {
  std::string text = requirement_of(one, random);
  if (random.below(8) == 0) text.insert(1 + random.below(3), "\\\n");
  return space(random) + text + one_of(random, {"", "", " # why", "\t#", "  #\\"});
}

/// Lines of others; of the same package none that pins it without a marker.
inline std::string other_line(const Planted& one, Random& random) {
  std::string text = one_of(
      random, {"numpy==1.26.4", "torch>=2.1", "# a comment", "#", "", "--no-index",
               "-i https://user@index.example/simple", "--find-links ./wheels", one.name,
               one.name + "==" + one.right + " ; sys_platform == 'win32'", one.name + ">=0.0.1",
               "scipy @ https://example.org/scipy.tar.gz", "./vendored", "-e .", "${X}", "a b c",
               "six==1.0 \\\n --hash=sha256:00", "# coding style", "pillow==9 # \xc3\xa9"});
  if (random.below(10) == 0) mutation::mutate_bytes(text, {"x==1\n", "[a]", "\"y\""}, random);
  // What opens another kind of text, or a line that goes on, may take the planted line away.
  while (text.ends_with("\\")) text.pop_back();
  return text;
}

inline std::string utf16_of(const std::string& text, bool is_big) {
  std::string out = is_big ? "\xfe\xff" : "\xff\xfe";
  for (const char c : text) {
    out += is_big ? '\0' : c;
    out += is_big ? c : '\0';
  }
  return out;
}

inline Input requirements_of(const Planted& one, Random& random) {
  const std::string end = one_of(random, {"\n", "\n", "\n", "\r\n", "\r", "\v", "\f", "\x1c",
                                          "\x1e", "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9"});
  const auto lines = [&](const std::string& planted) {
    std::string text;
    const size_t num_before = random.below(6), num_after = random.below(4);
    for (size_t i = 0; i < num_before; ++i) text += other_line(one, random) + end;
    // pip refuses a second requirement on a line: nothing of it may be taken for all of it.
    if (random.below(12) == 0) text += one_of(random, {"numpy==1.26.4 ", "six==1.0, ", "torch "});
    text += planted;
    for (size_t i = 0; i < num_after; ++i) text += end + other_line(one, random);
    return text + (random.below(3) == 0 ? "" : end);
  };
  Input input{.kind = "requirements"};
  if (random.below(5) == 0) {
    const std::string option =
        one_of(random, {"-r more.txt", "-rmore.txt", "--requirement more.txt",
                        "--requirement=more.txt", "-r 'more.txt'", "-c more.txt",
                        "--constraint=more.txt", "-cmore.txt", "--pre -r more.txt"});
    input.included["more.txt"] =
        (random.below(4) == 0 ? "\xef\xbb\xbf" : "") + lines(line_of(one, random));
    input.text = lines(option);
  } else {
    input.text = lines(line_of(one, random));
  }
  const bool is_ascii = std::all_of(input.text.begin(), input.text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  const size_t encoding = random.below(12);
  if (encoding == 0) input.text = "\xef\xbb\xbf" + input.text;
  if (encoding == 1 && is_ascii) input.text = utf16_of(input.text, random.below(2) == 0);
  return input;
}

inline std::string toml_text(const std::string& text, Random& random) {
  if (random.below(8) == 0) return "'" + text + "'";
  if (random.below(8) == 0) return "\"\"\"" + text + "\"\"\"";
  if (random.below(8) == 0)
    return fmt::format("\"\\u{:04x}{}\"", static_cast<int>(text[0]), text.substr(1));
  return "\"" + text + "\"";
}

/// One table of uv, poetry, pdm or pylock.
inline std::string toml_table(const std::string& header, const std::string& name,
                              const std::string& version, const std::string& rest, Random& random) {
  std::string gap = space(random);
  return header + gap + "\nname" + gap + "=" + gap + toml_text(name, random) + space(random) +
         one_of(random, {"", "# x"}) + "\nversion = " + toml_text(version, random) + "\n" + rest +
         "\n";
}

inline Input toml_lock_of(const Planted& one, Random& random) {
  const std::string header = one_of(random, {"[[package]]", "[[package]]", "[[packages]]"});
  const auto other = [&] {
    return toml_table(
        header, one_of(random, {"numpy", "six", "a-b", one.name}), one.right,
        one_of(random, {"", "optional = true\n", "source = { registry = \"https://x/simple\" }\n"}),
        random);
  };
  const std::string wheel = wheel_of(one, one.bad);
  const std::vector<std::string> rests = {
      "",
      "source = { registry = \"https://x/simple\" }\n",
      "groups = [\"default\"]\n",
      "files = [\n  {file = \"" + wheel + "\", hash = \"sha256:00\"},\n]\n",
      "[package.source]\ntype = \"legacy\"\nurl = \"https://x\"\n",
      "[[packages.wheels]]\nname = \"" + wheel + "\"\n",
      "sdist = { url = \"https://x/a/" + one.name + "-" + one.bad + ".tar.gz\" }\n"};
  std::string text = one_of(random, {"version = 1\n\n", "lock-version = \"1.0\"\n", "# x\n", ""});
  for (size_t i = random.below(3); i > 0; --i) text += other();
  // In a third the version is right and a file of the package is not.
  const bool is_hidden = random.below(3) == 0;
  const std::string rest =
      is_hidden
          ? one_of(random, {rests[3], rests[6],
                            "wheels = [\n  { url = \"https://x/y/" + wheel + "#sha256=0\" },\n]\n",
                            "wheels = [{ filename = '" + wheel + "' }]\n"})
          : random.pick(rests);
  const bool is_own_table = rest.starts_with("[");
  text +=
      toml_table(is_own_table ? (rest.starts_with("[[") ? "[[packages]]" : "[[package]]") : header,
                 random.below(2) == 0 ? one.name : name_of(one.name, random),
                 is_hidden ? one.right : version_of(one.bad, random), rest, random);
  for (size_t i = random.below(3); i > 0; --i) text += other();
  return {.kind = "toml_lock", .text = random.below(6) == 0 ? "\xef\xbb\xbf" + text : text};
}

/// Some letters as %XX.
inline std::string percent_coded(const std::string& text, Random& random) {
  std::string out;
  for (const char c : text)
    out += random.below(8) == 0 || c == '!' ? fmt::format("%{:02x}", static_cast<unsigned char>(c))
                                            : std::string(1, c);
  return out;
}

inline std::string purl_of(const Planted& one, Random& random) {
  const std::string type = one_of(random, {"pypi", "pypi", "pypi", "PyPI", "generic",
                                           "github/owner", "huggingface/o", "conda", "x-y"});
  return one_of(random, {"pkg:", "pkg:", "PKG:", "pkg://", "pkg:/"}) + type + "/" +
         percent_coded(name_of(one.name, random), random) + "@" +
         percent_coded(version_of(one.bad, random), random) +
         one_of(random, {"", "?a=b", "#sub", "?vcs_url=git%2Bhttps://x", "?package-id=0123"});
}

inline std::string json_text(const Json& value, Random& random) {
  std::string text = value.dump(one_of(random, {"", "x"}).empty() ? -1 : 2);
  return (random.below(8) == 0 ? "\n \t" : "") + text + "\n";
}

inline Input bill_of(const Planted& one, Random& random) {
  const std::string name = name_of(one.name, random), version = version_of(one.bad, random);
  Json component = {{"type", "library"}, {"name", name}, {"version", version}};
  const std::string right = "pkg:pypi/" + one.name + "@" + one.right;
  switch (random.below(7)) {
    case 0:
      break;  // no package URL
    case 1:
      component["purl"] = right;  // another version
      break;
    case 2:
      component["version"] = one.right;
      component["purl"] = purl_of(one, random);
      break;
    case 3:
      component = {{"name", "x"}, {"type", "library"}, {"bom-ref", purl_of(one, random)}};
      break;
    case 4:
      component = {{"name", "x"},
                   {"purl", "pkg:pypi/x@1"},
                   {"type", one_of(random, {"application", "framework", "", "Library"})}};
      component["evidence"]["identity"] =
          Json::array({Json{{"field", "purl"}, {"concludedValue", purl_of(one, random)}}});
      break;
    default:
      component["purl"] = purl_of(one, random);
  }
  for (size_t depth = random.below(4); depth > 0; --depth)
    component = {{"type", one_of(random, {"container", "application", "operating-system"})},
                 {"name", "outer"},
                 {"components", Json::array({component})}};
  const Json numpy = {{"type", "library"},
                      {"name", "numpy"},
                      {"version", "1"},
                      {"purl", "pkg:pypi/numpy@1"}},
             bash = {{"type", "library"},
                     {"name", "bash"},
                     {"version", "5"},
                     {"purl", "pkg:deb/debian/bash@5"}};
  Json bill = {{"bomFormat", "CycloneDX"},
               {"specVersion", "1.6"},
               {"components", Json::array({numpy, bash})}};
  const size_t place = random.below(8);
  if (place == 0) {
    bill["metadata"]["component"] = component;
  } else if (place == 1) {
    bill["dependencies"] =
        Json::array({Json{{"ref", "a"}, {"dependsOn", Json::array({purl_of(one, random)})}}});
  } else {
    bill["components"].push_back(component);
  }
  return {.kind = "cyclonedx", .text = json_text(bill, random)};
}

inline Input spdx_of(const Planted& one, Random& random) {
  const std::string purl = purl_of(one, random), right = "pkg:pypi/" + one.name + "@" + one.right;
  const bool is_named = random.below(2) == 0;
  const Json name = is_named ? name_of(one.name, random) : "x",
             version = is_named ? version_of(one.bad, random) : one.right;
  const auto urls = [&](const char* key) {
    Json all = Json::array();
    for (const std::string& text :
         {right, is_named ? right : purl, std::string("pkg:pypi/numpy@1")})
      all.insert(random.below(2) == 0 ? all.begin() : all.end(),
                 Json{{key, text}, {"referenceType", "purl"}});
    return all;
  };
  const Json other = {{"name", "numpy"}, {"versionInfo", "1"}};
  const Json own = {
      {"name", name}, {"versionInfo", version}, {"externalRefs", urls("referenceLocator")}};
  const Json element = {{"type", one_of(random, {"software_Package", "software:Package"})},
                        {"name", name},
                        {"software_packageVersion", version},
                        {"externalIdentifier", urls("identifier")}};
  if (random.below(2) == 0)
    return {.kind = "spdx",
            .text = json_text(
                {{"spdxVersion", "SPDX-2.3"}, {"packages", Json::array({other, own})}}, random)};
  return {.kind = "spdx3", .text = json_text({{"@graph", Json::array({element})}}, random)};
}

inline Input pipfile_of(const Planted& one, Random& random) {
  const std::string verb = one_of(random, {"==", "== ", "==="});
  Json row = {{"version", verb + (verb == "===" ? one.bad : version_of(one.bad, random))},
              {"hashes", Json::array()}};
  Json groups = {{"_meta", Json::object()}};
  groups["default"]["numpy"]["version"] = "==1";
  groups[one_of(random, {"default", "develop", "gpu"})][name_of(one.name, random)] = row;
  return {.kind = "pipfile", .text = json_text(groups, random)};
}

}  // namespace patchbench::spellings
