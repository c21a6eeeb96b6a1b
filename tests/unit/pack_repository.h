#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/error.h"
#include "ledger/ledger.h"
#include "unit/sample_run.h"

namespace patchbench::sample {

/// What a command left behind; `error` is the message it threw.
struct Ended {
  int exit_code = 0;
  std::string out, err, error;
  Json json() const { return parse_json(out, "out"); }
};

/// A repository of one pack, `some_pack` with every key that a manifest can have, and its evidence.
class PackRepository {
 public:
  PackRepository() {
    const std::filesystem::path source = PATCHBENCH_ROOT;
    put("packs/manifest.schema.json", read(source / "packs/manifest.schema.json"));
    put("env/pins.json", read(source / "env/pins.json"));
    put(kManifest, read(source / "tests/golden/manifest_complete.json"));
  }

  static constexpr const char* kManifest = "packs/some_pack/manifest.json";

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(path(name).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
  }
  /// Replaces one text of a file; throws if it is not there exactly once.
  void replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = read(path(name));
    const auto at = text.find(from);
    if (at == std::string::npos || text.find(from, at + 1) != std::string::npos)
      throw std::runtime_error(name + ": not once: " + from);
    put(name, text.replace(at, from.size(), to));
  }
  /// The pack becomes one of liger-kernel at 0.8.0, a real upstream of env/pins.json.
  void use_real_upstream() {
    std::string text = read(path(kManifest));
    const auto put_for = [&](const std::string& from, const std::string& to) {
      for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    };
    put_for("\"thing\"", "\"liger-kernel\"");
    put_for("\"1.0\"", "\"0.8.0\"");
    put(kManifest, text);
    const std::filesystem::path source = PATCHBENCH_ROOT;
    put("env/threads.schema.json", read(source / "env/threads.schema.json"));
    put("env/threads.json", "{\"threads\": []}");
  }
  void put_evidence(const std::string& slug, const std::vector<Record>& records) {
    std::string text;
    for (const Record& record : records) text += canonical_json(record.statement) + "\n";
    put("reports/evidence/" + slug + "/cpu.jsonl", text);
  }

  /// Runs the words of a command that `add` registers; a ledger of its own that nobody fills.
  Ended run(const std::function<void(CLI::App&, Context&)>& add, std::vector<std::string> words,
            bool json = false) {
    Context context;
    context.root = path("");
    context.ledger = path("ledger.db");
    context.json = json;
    CLI::App app;
    add(app, context);
    std::ostringstream out, err;
    context.output = {&out, &err};
    Ended ended;
    std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
    try {
      app.parse(words);
    } catch (const Error& e) {
      ended.error = e.what();
    } catch (const CLI::Error& e) {
      ended.error = std::string("usage: ") + e.what();
    }
    ended.exit_code = context.exit_code;
    ended.out = out.str();
    ended.err = err.str();
    return ended;
  }

 private:
  TempFolder folder_;
};

/// The records of a run of `slug`: as `run`, with another pack in them.
inline std::vector<Record> run_of(const std::string& slug, int number = 1) {
  RunContext where = context(number);
  where.slug = slug;
  std::vector<Observation> status = red_observations();
  std::vector<Record> records;
  std::vector<std::string> digests;
  for (Observation& o : status) {
    o.slug = slug;
    records.push_back(make_observation_record(where, o));
    digests.push_back(records.back().digest());
  }
  records.push_back(
      make_verdict_record(where, question(), sentinel_of(status, question()), digests));
  return records;
}

}  // namespace patchbench::sample
