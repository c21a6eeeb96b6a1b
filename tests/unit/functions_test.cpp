#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

#include "core/digest.h"
#include "core/edit.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/python_tokens.h"
#include "exec/process.h"
#include "git/series.h"
#include "status/same_code.h"
#include "status/verdict_records.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

Context repository() {
  Context context;
  context.root = PATCHBENCH_ROOT;
  context.ledger = "/nowhere/ledger.db";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  context.cache =
      (cache != nullptr && *cache != '\0' ? fs::path(cache)
                                          : fs::path(home == nullptr ? "/" : home) / ".cache") /
      "patchbench";
  return context;
}

std::vector<Manifest> packs(const Context& context) {
  std::vector<Manifest> all;
  for (const std::string& slug : context.slugs()) all.push_back(context.manifest(slug));
  return all;
}

FunctionTable committed() {
  const fs::path path = fs::path(PATCHBENCH_ROOT) / "env/functions.json";
  return FunctionTable::parse(read_file(path), path.string());
}

/// The files of `files` that a locked release has; none where its archive is not in the cache.
std::map<std::string, std::string> released(const Context& context, const Pin& pin,
                                            const std::set<std::string>& files) {
  const fs::path archive = context.cache / "files" / pin.sha256 / pin.filename;
  if (pin.kind != PinKind::kFile || files.empty() || !fs::exists(archive)) return {};
  exec::Command read{
      .argv = {"python3", (context.root / "env/fetch.py").string(), "read", archive.string()}};
  for (const std::string& file : files) read.argv.push_back(pin.prefix + file);
  const Json found = parse_json(exec::run(read).out, archive.string());
  std::map<std::string, std::string> texts;
  for (const std::string& file : files) {
    const Json& text = found.at(pin.prefix + file);
    if (text.is_string()) texts[file] = text.get<std::string>();
  }
  return texts;
}

TEST(Functions, EveryUpstreamNamesItsFunctionsOrSaysWhyItCannot) {
  for (const Manifest& pack : packs(repository())) {
    for (const UpstreamUse& use : pack.upstreams)
      EXPECT_NE(use.functions.empty() && !use.from_environment, use.not_python.empty())
          << pack.slug.str() << " " << use.name;
  }
}

/// The functions of the release whose tokens the edits of one base change, in any of its files.
TEST(Functions, EveryFunctionThatAnEditChangesIsNamed) {
  const Context context = repository();
  const Pins pins = context.pins();
  int num_read = 0;
  for (const Manifest& pack : packs(context)) {
    std::map<std::pair<std::string, std::string>, std::pair<std::string, std::string>> texts;
    std::map<std::pair<std::string, std::string>, std::set<std::string>> named;
    for (const UpstreamUse& use : pack.upstreams) {
      for (const auto& [file, names] : use.functions)
        named[{use.name, file}].insert(names.begin(), names.end());
    }
    for (const Edit& edit : git::load_series(context.root / "patches" / pack.slug.str()).edits) {
      const std::string upstream = edit.field("Upstream"), base = edit.field("Base");
      for (const FileEdit& one : edit.files) {
        const std::pair key{base, one.path};
        if (!texts.contains(key)) {
          const auto text = released(context, pins.resolve(upstream, base), {one.path});
          if (text.empty()) continue;
          texts[key] = {text.at(one.path), text.at(one.path)};
        }
        ++num_read;
        auto& [before, after] = texts[key];
        after = apply_file_edit(one, after);
        const PythonCode old_code = python_code(before, one.path),
                         code = python_code(after, one.path);
        for (const auto& [name, digest] : old_code.functions) {
          const auto now = code.functions.find(name);
          const bool is_changed = now == code.functions.end() || now->second != digest;
          const bool is_nested = name.rfind('.') != std::string::npos &&
                                 old_code.functions.contains(name.substr(0, name.rfind('.')));
          const bool is_named = named[{upstream, one.path}].contains(name);
          EXPECT_TRUE(!is_changed || is_nested || is_named)
              << pack.slug.str() << ": " << edit.name << " changes " << name << " of " << one.path;
        }
      }
    }
  }
  if (num_read == 0) GTEST_SKIP() << "no archive is in the cache";
}

/// What `scan` needs of the lists: red and right releases differ in them, so that the same
/// functions never mean both.
TEST(Functions, NoRedAndRightReleaseShareThem) {
  const Context context = repository();
  const VerdictTable table = table_from_records(context);
  int num_compared = 0;
  for (const Manifest& pack : packs(context)) {
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.functions.empty()) continue;
      std::map<FunctionDigests, std::string> red;
      const TableUpstream& upstream = *table.packs.at(pack.slug.str()).find(use.name);
      for (const TableRelease& one : upstream.releases) {
        const std::string where = pack.slug.str() + " " + use.name + " " + one.version;
        EXPECT_EQ(one.code.functions.empty(), one.code.whole.empty()) << where;
        if (one.state.is_open()) continue;
        EXPECT_FALSE(one.code.functions.empty()) << where << ": pins functions --write reads it";
        if (one.state != BugStatus::kPresent) continue;
        EXPECT_TRUE(one.code.has_functions()) << where << ": it has the bug and no function of it";
        red.emplace(one.code.functions, one.version);
      }
      for (const TableRelease& one : upstream.releases) {
        if (one.state.is_open() || one.state == BugStatus::kPresent) continue;
        ++num_compared;
        const auto same = red.find(one.code.functions);
        EXPECT_EQ(same, red.end()) << pack.slug.str() << " " << use.name << ": " << one.version
                                   << " is right and has the functions of " << same->second;
      }
    }
  }
  EXPECT_GT(num_compared, 50);
}

TEST(Functions, EachIsInSomeRelease) {
  const Context context = repository();
  const FunctionTable table = committed();
  const VerdictTable verdicts = table_from_records(context);
  for (const Manifest& pack : packs(context)) {
    for (const UpstreamUse& use : pack.upstreams) {
      for (const auto& [file, names] : use.functions) {
        for (const std::string& name : names) {
          bool is_there = false;
          for (const TableRelease& one :
               verdicts.packs.at(pack.slug.str()).find(use.name)->releases)
            is_there |= is_hex(table.find(use.name, one.version, file, name), 64);
          EXPECT_TRUE(is_there) << pack.slug.str() << " " << file << " " << name;
        }
      }
    }
  }
}

/// Prints "<file> <SHA-256 of its tokens>" of each file of a folder, by Python's own reader.
constexpr const char* kTokenize = R"(
import hashlib, pathlib, sys, tokenize
if sys.version_info >= (3, 12): sys.exit(4)  # there an f-string is several tokens
left_out = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
layout = {tokenize.NEWLINE: "N", tokenize.INDENT: "I", tokenize.DEDENT: "D"}
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    with open(path, "rb") as file:
        found = [one for one in tokenize.tokenize(file.readline) if one.type not in left_out]
    words = [layout.get(one.type) or one.string.replace("\r\n", "\n") for one in found]
    print(path.name, hashlib.sha256("\0".join(words).encode()).hexdigest())
)";

/// The same by ours, an f-string as one token.
std::string digest_of_tokens(const std::string& text) {
  const PythonTokens read = python_tokens(text, "a.py");
  std::string words;
  int num_open = 0;
  std::size_t begin = 0;
  for (const PythonToken& one : read.tokens) {
    if (one.kind == PythonTokenKind::kFormatBegin && num_open++ == 0) begin = one.begin;
    if (one.kind == PythonTokenKind::kFormatEnd && --num_open == 0) {
      words += read.text.substr(begin, one.end - begin) + '\0';
    } else if (num_open == 0) {
      words += one.kind == PythonTokenKind::kNewline  ? "N"
               : one.kind == PythonTokenKind::kIndent ? "I"
               : one.kind == PythonTokenKind::kDedent ? "D"
                                                      : std::string(read.of(one));
      words += '\0';
    }
  }
  if (!words.empty()) words.pop_back();
  return sha256_hex(words);
}

TEST(Functions, TheTokensOfEveryFileInTheCacheAreThoseOfPythonsOwnReader) {
  const Context context = repository();
  const Pins pins = context.pins();
  const fs::path folder = fs::temp_directory_path() / ("tokens." + std::to_string(getpid()));
  std::map<std::string, std::string> digests;  // file of the folder -> ours
  for (const auto& [name, upstream] : pins.all()) {
    std::set<std::string> files;
    for (const Manifest& pack : packs(context)) {
      for (const UpstreamUse& use : pack.upstreams) {
        if (use.name != name || use.functions.empty()) continue;
        for (const std::string& file : use.code_files()) files.insert(file);
      }
    }
    for (const Pin& pin : upstream.releases) {
      for (const auto& [file, text] : released(context, pin, files)) {
        const std::string stored = git_blob_id(text);
        if (digests.contains(stored)) continue;
        write_whole(folder / stored, text);
        digests[stored] = digest_of_tokens(text);
      }
    }
  }
  if (digests.empty()) GTEST_SKIP() << "no archive is in the cache";
  const exec::Exit done = exec::run({.argv = {"python3", "-c", kTokenize, folder.string()}});
  fs::remove_all(folder);
  if (done.exit_code == 4) GTEST_SKIP() << "this Python reads an f-string as several tokens";
  ASSERT_TRUE(done.ok()) << done.err;
  std::istringstream lines(done.out);
  std::size_t num_compared = 0;
  for (std::string file, digest; lines >> file >> digest; ++num_compared)
    EXPECT_EQ(digests.at(file), digest) << "the file with the blob id " << file;
  EXPECT_EQ(num_compared, digests.size());
}

TEST(FunctionTable, IsItsOwnTextAndSmall) {
  const std::string text = read_file(fs::path(PATCHBENCH_ROOT) / "env/functions.json");
  EXPECT_EQ(committed().text(), text);
  EXPECT_LT(text.size(), 1u << 20);
}

TEST(FunctionTable, SaysWhatDiffersAndTakesWhatWasRead) {
  const PythonCode one = python_code("def f(): return 1", "a.py"),
                   two = python_code("def f(): return 2", "a.py");
  FunctionTable table, read;
  table.take("up", "1.0", "a.py", &one, {"f", "g"});
  table.take("up", "1.1", "a.py", nullptr, {"f", "g"});
  EXPECT_EQ(table.find("up", "1.0", "a.py", "f"), one.functions.at("f"));
  EXPECT_EQ(table.find("up", "1.0", "a.py", "g"), "absent");
  EXPECT_EQ(table.find("up", "1.1", "a.py", FunctionTable::kWhole), "absent");
  EXPECT_EQ(table.find("up", "1.2", "a.py", "f"), "");
  EXPECT_EQ(table.find("other", "1.0", "a.py", "f"), "");
  read.take("up", "1.0", "a.py", &two, {"f", "g"});
  EXPECT_EQ(table.differences(read),
            (std::vector<std::string>{"a.py (whole): 1.0", "a.py f: 1.0"}));
  table.replace("up", read);
  EXPECT_TRUE(table.differences(read).empty());
  EXPECT_EQ(FunctionTable::parse(table.text(), "t.json").text(), table.text());
  for (const char* wrong : {"[]", R"({"a":1})", R"({"a":{"b":{"c":{"d":"1.0"}}}})",
                            R"({"a":{"b":{"c":{"absent":1}}}})"})
    EXPECT_THROW(FunctionTable::parse(wrong, "t.json"), Error) << wrong;
}

/// Releases of one upstream, each with the digests of its functions and of its files.
TableUpstream upstream_with(const std::vector<TableRelease>& releases) {
  return {.name = "up",
          .package = "up",
          .releases = releases,
          .patches = {},
          .left_out = {},
          .older = {}};
}

std::string twin(const TableUpstream& upstream, const CodeDigests& code) {
  const TableRelease* found = same_code_as(upstream, code);
  return found == nullptr ? "" : found->version;
}

/// The code of one file with the functions f and g.
CodeDigests code(const std::string& f, const std::string& g, const std::string& whole) {
  return {.functions = {{"a.py", {{"f", f}, {"g", g}}}}, .whole = whole};
}

TEST(SameCode, AHitNeedsTheFunctionsARightReleaseAllTheCode) {
  const TableUpstream upstream = upstream_with(
      {{.version = "1.0", .state = "unsupported", .code = code("absent", "absent", "a")},
       {.version = "1.1", .state = "wrong", .code = code("red", "absent", "b")},
       {.version = "1.2", .state = "wrong", .code = code("red", "absent", "c")},
       {.version = "1.3", .state = BugStatus::kAbsent, .code = code("right", "g", "d")},
       {.version = "1.4", .state = "unresolved", .code = code("open", "g", "e")},
       {.version = "1.5", .state = "wrong", .code = {}},
       {.version = "git:0", .state = "wrong", .code = code("red", "absent", "f")}});
  EXPECT_EQ(twin(upstream, code("red", "absent", "other")), "1.2") << "a release before a commit";
  EXPECT_EQ(twin(upstream, code("red", "more", "c")), "") << "another function is there";
  EXPECT_EQ(twin(upstream, code("right", "g", "d")), "1.3");
  EXPECT_EQ(twin(upstream, code("right", "g", "other")), "") << "other code of the files differs";
  EXPECT_EQ(twin(upstream, code("absent", "absent", "a")), "") << "the code may be elsewhere";
  EXPECT_EQ(twin(upstream, code("open", "g", "e")), "");
  EXPECT_EQ(twin(upstream, {}), "") << "nothing is known";
}

TEST(SameCode, FunctionsOfARedAndOfARightReleaseSayNothing) {
  const TableUpstream upstream = upstream_with(
      {{.version = "1.0", .state = "wrong", .code = code("same", "g", "a")},
       {.version = "1.1", .state = BugStatus::kAbsent, .code = code("same", "g", "b")}});
  EXPECT_EQ(twin(upstream, code("same", "g", "a")), "");
  EXPECT_EQ(twin(upstream, code("same", "g", "b")), "");
}

TEST(SameCode, TheNearestReleaseNamesTheFunctionsThatDiffer) {
  const TableUpstream upstream =
      upstream_with({{.version = "1.0", .state = "wrong", .code = code("f0", "g0", "a")},
                     {.version = "1.1", .state = "wrong", .code = code("f1", "g0", "b")},
                     {.version = "git:0", .state = "wrong", .code = code("f2", "g0", "c")},
                     {.version = "1.2", .state = "unresolved", .code = code("f9", "g9", "d")}});
  EXPECT_EQ(nearest_code(upstream, code("other", "g0", "x")),
            "1 of its functions is that of 1.1; these differ: f");
  EXPECT_EQ(nearest_code(upstream, code("f0", "g0", "x")),
            "its functions are those of 1.0, and other code is around them");
  EXPECT_EQ(nearest_code(upstream, code("f9", "g9", "d")), "") << "no answer is known of 1.2";
  EXPECT_EQ(nearest_code(upstream, code("absent", "absent", "x")), "");
  EXPECT_EQ(nearest_code(upstream, {}), "");
}

/// A copy of two files in a folder of its own.
class Copy {
 public:
  Copy() { fs::create_directories(folder_); }
  ~Copy() { fs::remove_all(folder_); }
  CodeDigests digests(const std::string& a, const std::optional<std::string>& b) {
    SourceCopy copy{.root = folder_, .files = {}};
    put(copy, "a.py", a);
    if (b) put(copy, "b.py", *b);
    return code_digests(use_, copy);
  }
  CodeDigests stale() {
    SourceCopy copy{.root = folder_, .files = {{"a.py", sha256_hex("something else")}}};
    return code_digests(use_, copy);
  }

 private:
  void put(SourceCopy& copy, const std::string& name, const std::string& text) {
    write_whole(folder_ / name, text);
    copy.files[name] = sha256_hex(text);
  }
  UpstreamUse use_{
      .name = "up", .red_pin = "1", .files = {"a.py", "b.py"}, .functions = {{"a.py", {"f"}}}};
  fs::path folder_ = fs::temp_directory_path() / ("same_code." + std::to_string(getpid()));
};

TEST(SameCode, ACopyIsKnownByItsCode) {
  Copy copy;
  const CodeDigests code = copy.digests("def f(): return 1\n", "x = 1\n");
  const CodeDigests formatted = copy.digests("# ours\ndef f():  return 1\n", "x  = 1 # one\n");
  EXPECT_EQ(formatted.functions, code.functions);
  EXPECT_EQ(formatted.whole, code.whole);
  const CodeDigests other = copy.digests("def f(): return 1\n", "x = 2\n");
  EXPECT_EQ(other.functions, code.functions);
  EXPECT_NE(other.whole, code.whole);
  EXPECT_NE(copy.digests("def f(): return 2\n", "x = 1\n").functions, code.functions);
  EXPECT_FALSE(copy.digests("def g(): return 1\n", "x = 1\n").has_functions());
  EXPECT_NE(copy.digests("def f(): return 1\n", std::nullopt).whole, code.whole);
  EXPECT_EQ(copy.digests("def f(: return 1\n", "x = 1\n").functions, FunctionDigests())
      << "not Python";
  EXPECT_EQ(copy.stale().functions, FunctionDigests()) << "the file changed while it was read";
}

}  // namespace
}  // namespace patchbench
