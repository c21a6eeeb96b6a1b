#include "core/schema.h"

// GCC 12 warns wrongly inside valijson: of an overlap in `"literal" + string`
// (https://gcc.gnu.org/PR105651) and, under ASan, of an uninitialised member in std::regex
// (https://gcc.gnu.org/PR105562). Remove with GCC 12.
#if defined(__GNUC__) && __GNUC__ == 12
#pragma GCC diagnostic ignored "-Wrestrict"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <fmt/format.h>

// Without it valijson ends the process on a schema that is none.
#define VALIJSON_USE_EXCEPTIONS 1

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>
#include <vector>

#include "core/error.h"
#include "core/slug.h"

namespace patchbench {
namespace {

using valijson::adapters::NlohmannJsonAdapter;

struct CompiledSchema {
  Json document;
  valijson::Schema schema;
};

std::shared_ptr<const CompiledSchema> compile(std::string_view text) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const CompiledSchema>, std::less<>> compiled;
  const std::lock_guard lock(mutex);
  if (const auto found = compiled.find(text); found != compiled.end()) return found->second;
  auto fresh = std::make_shared<CompiledSchema>();
  try {
    fresh->document = parse_json(text, "schema");
    valijson::SchemaParser(valijson::SchemaParser::kDraft7)
        .populateSchema(NlohmannJsonAdapter(fresh->document), fresh->schema);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kInternal, std::string("not a draft-07 schema: ") + e.what());
  }
  return compiled.emplace(std::string(text), std::move(fresh)).first->second;
}

/// `schema` itself, or what its `$ref` ("#/definitions/…") names.
const Json& followed(const Json& root, const Json& schema) {
  if (!schema.is_object() || !schema.contains("$ref")) return schema;
  return root.at(Json::json_pointer(schema.at("$ref").get<std::string>().substr(1)));
}

/// The subschema of a member or an element, nullptr where anything goes.
const Json* subschema(const Json& root, const Json& schema, const std::string* key) {
  if (key == nullptr)
    return schema.contains("items") ? &followed(root, schema.at("items")) : nullptr;
  if (schema.contains("properties") && schema.at("properties").contains(*key)) {
    return &followed(root, schema.at("properties").at(*key));
  }
  const bool has_others =
      schema.contains("additionalProperties") && schema.at("additionalProperties").is_object();
  return has_others ? &followed(root, schema.at("additionalProperties")) : nullptr;
}

struct Violation {
  std::string pointer, reason;
};

std::vector<std::string> names_of(const Json& object) {
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

std::vector<std::string> strings_of(const Json& array) {
  std::vector<std::string> out;
  for (const Json& value : array)
    out.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  return out;
}

/// Walks document and schema together and reports what valijson names badly: unknown keys and
/// values outside an enum.
void find_unknown(const Json& root, const Json& schema, const Json& value,
                  const std::string& pointer, std::vector<Violation>& out) {
  if (schema.contains("enum") &&
      schema.at("enum").end() ==
          std::find(schema.at("enum").begin(), schema.at("enum").end(), value)) {
    const std::string got = value.is_string() ? value.get<std::string>() : value.dump();
    out.push_back({pointer, fmt::format("\"{}\" is not allowed here{}", shown(got),
                                        did_you_mean(shown(got), strings_of(schema.at("enum"))))});
  }
  const bool is_closed =
      schema.contains("additionalProperties") && schema.at("additionalProperties") == false;
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const std::string below = pointer + "/" + pointer_segment(key);
      if (const Json* sub = subschema(root, schema, &key)) {
        find_unknown(root, *sub, member, below, out);
      } else if (is_closed) {
        const std::vector<std::string> known = schema.contains("properties")
                                                   ? names_of(schema.at("properties"))
                                                   : std::vector<std::string>();
        out.push_back({below, fmt::format("unknown key{}", did_you_mean(shown(key), known))});
      }
    }
  } else if (value.is_array()) {
    const Json* sub = subschema(root, schema, nullptr);
    for (size_t i = 0; sub != nullptr && i < value.size(); ++i) {
      find_unknown(root, *sub, value[i], pointer + "/" + std::to_string(i), out);
    }
  }
}

std::string pointer_of(const std::vector<std::string>& context) {
  std::string out;
  for (size_t i = 1; i < context.size();
       ++i) {  // element 0 is the root; the others are "[segment]"
    const std::string_view segment = std::string_view(context[i]).substr(1, context[i].size() - 2);
    out.append("/").append(pointer_segment(segment));
  }
  return out;
}

/// Every violation valijson sees, without its remarks that an enclosing value failed too and
/// without enums.
std::vector<Violation> find_invalid(const CompiledSchema& schema, const Json& document) {
  valijson::Validator validator;
  valijson::ValidationResults results;
  std::vector<Violation> out;
  if (validator.validate(schema.schema, NlohmannJsonAdapter(document), &results)) return out;
  valijson::ValidationResults::Error error;
  std::optional<Violation> remark;
  while (results.popError(error)) {
    std::string reason = error.description;
    if (reason.ends_with('.')) reason.pop_back();
    Violation violation{pointer_of(error.context), reason};
    if (reason.starts_with("Failed to")) {
      if (!remark) remark = std::move(violation);
    } else {
      out.push_back(std::move(violation));
    }
  }
  if (out.empty() && remark) out.push_back(*remark);
  return out;
}

int line_at(const JsonLines& lines, const std::string& pointer) {
  const auto found = lines.find(pointer);
  return found == lines.end() ? 0 : found->second;
}

}  // namespace

void fail_at(const std::string& path, const JsonLines& lines, const std::string& pointer,
             const std::string& reason) {
  throw Error(ErrorCode::kUsage, path + ":" + std::to_string(line_at(lines, pointer)) + ": " +
                                     (pointer.empty() ? "/" : shown(pointer)) + ": " + reason);
}

Json check_schema(std::string_view text, const std::string& path, std::string_view schema,
                  JsonLines* lines) {
  const std::shared_ptr<const CompiledSchema> compiled = compile(schema);
  JsonLines own;
  JsonLines& where = lines != nullptr ? *lines : own;
  Json document = parse_json(text, path, &where);
  std::vector<Violation> violations;
  find_unknown(compiled->document, compiled->document, document, "", violations);
  if (violations.empty()) violations = find_invalid(*compiled, document);
  const Violation* first = nullptr;
  for (const Violation& violation : violations) {
    const auto order = [&](const Violation& v) {
      return std::tuple(line_at(where, v.pointer), v.pointer);
    };
    if (first == nullptr || order(violation) < order(*first)) first = &violation;
  }
  if (first != nullptr) fail_at(path, where, first->pointer, first->reason);
  return document;
}

int line_of_pointer(std::string_view text, std::string_view pointer) {
  JsonLines lines;
  try {
    parse_json(text, "", &lines);
  } catch (const Error&) {
    return 0;
  }
  return line_at(lines, std::string(pointer));
}

}  // namespace patchbench
