#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <sstream>

#include "cli/commands.h"
#include "cli/ledger_options.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "ledger/dsse.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// The statement or statements of a file: one document, or one a line.
std::vector<std::string> documents_of(const std::string& text, const fs::path& file) {
  try {
    parse_json(text, file.string());
    return {text};
  } catch (const Error&) {
    std::vector<std::string> documents;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) documents.push_back(line);
    }
    if (documents.size() < 2) throw;
    return documents;
  }
}

void sign(const Context& context, const fs::path& file, const fs::path& key_file,
          const fs::path& out) {
  const ledger::SigningKey key = ledger::SigningKey::load(key_file);
  std::string text;
  int count = 0;
  for (const std::string& document : documents_of(read_file(file), file)) {
    const std::string where = fmt::format("{}:{}", file.string(), ++count);
    const Json statement = parse_json(document, where);
    if (statement.is_object() && statement.contains("payload"))
      throw Error(ErrorCode::kUsage, where + ": is signed already; verify-signature looks at it");
    ledger::check_statement(statement, where);
    const std::string payload = canonical_json(statement);
    const ledger::Signature signature = key.sign(payload);
    text += ledger::envelope(payload, signature.key_id, signature.signature) + "\n";
  }
  if (out.empty()) {
    context.out() << text;
    return;
  }
  write_whole(out, text);
  if (context.json) {
    print_json(context, {{"file", out.string()}, {"signed", count}, {"key_id", key.key_id()}});
  } else {
    context.out() << fmt::format("{}: {} statement(s) signed by {}\n", out.string(), count,
                                 key.key_id());
  }
}

/// Whether an envelope is signed by a trusted key; what is wrong otherwise.
std::string trouble_of(const std::string& document, const std::string& where,
                       const ledger::TrustedKeys& trusted, std::string& key_id) {
  try {
    const ledger::Opened opened =
        ledger::open_envelope(parse_json(document, where), trusted, where);
    ledger::check_statement(parse_json(opened.text, where), where);
    if (!opened.signature) return where + ": signed by no trusted key";
    key_id = opened.signature->key_id;
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

void verify_signature(Context& context, const fs::path& file, const fs::path& trusted_file) {
  if (trusted_file.empty())
    throw Error(ErrorCode::kUsage,
                "verify-signature: whose signature counts? name a trusted_keys.json by --trusted");
  const ledger::TrustedKeys trusted = ledger::load_trusted_keys(trusted_file);
  Json rows = Json::array();
  int number = 0, num_bad = 0;
  for (const std::string& document : documents_of(read_file(file), file)) {
    std::string key_id;
    const std::string trouble =
        trouble_of(document, fmt::format("{}:{}", file.string(), ++number), trusted, key_id);
    num_bad += trouble.empty() ? 0 : 1;
    rows.push_back(
        {{"document", number}, {"ok", trouble.empty()}, {"key_id", key_id}, {"trouble", trouble}});
    if (!context.json && !trouble.empty()) context.out() << fmt::format("{}\n", trouble);
  }
  context.exit_code = num_bad == 0 ? kExitYes : kExitNo;
  if (context.json) {
    print_json(context, rows);
  } else if (num_bad == 0) {
    context.out() << fmt::format("{}: {} envelope(s), each signed by a trusted key\n",
                                 file.string(), number);
  }
}

}  // namespace

void add_ledger_sign(CLI::App& group, Context& context) {
  struct Options {
    fs::path file, key, out, trusted;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand("sign", "in-toto statements as signed DSSE envelopes");
  command->add_option("file", options->file, "a statement, or one a line")->required();
  command->add_option("--key", options->key, "an Ed25519 private key (ledger keygen)")->required();
  command->add_option("-o,--output", options->out, "file to write (default: stdout)");
  command->footer(
      "Signed is DSSE's pre-authentication encoding of the statement in its RFC 8785 form.\n"
      "To sign records, use ledger export --key.");
  command->callback(
      [options, &context] { sign(context, options->file, options->key, options->out); });

  CLI::App* verify = group.add_subcommand(
      "verify-signature", "whether each DSSE envelope of a file is signed by a trusted key");
  verify->add_option("file", options->file, "an envelope, or one a line")->required();
  verify->add_option("--trusted", options->trusted,
                     "trusted_keys.json (default: $XDG_CONFIG_HOME/patchbench/trusted_keys.json)");
  verify->footer("Exit: 0 all are, 1 one is not (named).");
  verify->callback([options, &context] {
    verify_signature(context, options->file, trusted_keys_file(options->trusted));
  });
}

}  // namespace patchbench::cli
