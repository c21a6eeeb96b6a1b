#include "status/yaml_text.h"

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/json.h"

namespace patchbench {
namespace {

constexpr int kMaxDepth = 64, kMaxNodes = 1'000'000;

class Tree {
 public:
  Tree(yaml_document_t& document, std::string file) : document_(document), file_(std::move(file)) {}

  YamlNode node(yaml_node_item_t id, int depth) {
    const yaml_node_t& from = *yaml_document_get_node(&document_, id);
    YamlNode to{.line = static_cast<int>(from.start_mark.line) + 1};
    if (depth > kMaxDepth || ++num_nodes_ > kMaxNodes)
      fail(to.line, fmt::format("more than {} levels or {} values", kMaxDepth, kMaxNodes));
    if (from.type == YAML_SEQUENCE_NODE) {
      to.kind = YamlNode::Kind::kSequence;
      const auto& items = from.data.sequence.items;
      for (const yaml_node_item_t* item = items.start; item < items.top; ++item)
        to.items.push_back(node(*item, depth + 1));
    } else if (from.type == YAML_MAPPING_NODE) {
      to.kind = YamlNode::Kind::kMapping;
      const auto& pairs = from.data.mapping.pairs;
      std::set<std::string> known_keys;
      for (const yaml_node_pair_t* pair = pairs.start; pair < pairs.top; ++pair) {
        const YamlNode key = node(pair->key, depth + 1);
        if (key.kind != YamlNode::Kind::kScalar) fail(key.line, "a key is no text");
        if (!known_keys.insert(key.text).second) fail(key.line, shown(key.text) + " comes twice");
        to.keys.push_back(key.text);
        to.items.push_back(node(pair->value, depth + 1));
        to.items.back().line = key.line;
      }
    } else {
      const auto& scalar = from.data.scalar;
      to.text.assign(reinterpret_cast<const char*>(scalar.value), scalar.length);
      to.is_plain = scalar.style == YAML_PLAIN_SCALAR_STYLE;
    }
    return to;
  }

 private:
  [[noreturn]] void fail(int line, const std::string& reason) const {
    throw Error(ErrorCode::kUsage, fmt::format("{}:{}: {}", file_, line, reason));
  }

  yaml_document_t& document_;
  std::string file_;
  int num_nodes_ = 0;
};

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  const auto at = std::find(keys.begin(), keys.end(), key);
  return at == keys.end() ? nullptr : &items[static_cast<std::size_t>(at - keys.begin())];
}

YamlNode parse_yaml(std::string_view text, const std::string& file) {
  yaml_parser_t parser;
  if (yaml_parser_initialize(&parser) == 0) throw Error(ErrorCode::kInternal, "no memory for YAML");
  const std::unique_ptr<yaml_parser_t, void (*)(yaml_parser_t*)> free_parser(&parser,
                                                                             yaml_parser_delete);
  yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&parser, reinterpret_cast<const unsigned char*>(text.data()),
                               text.size());
  yaml_document_t document;
  if (yaml_parser_load(&parser, &document) == 0)
    throw Error(ErrorCode::kUsage,
                fmt::format("{}:{}: is not YAML: {}", file, parser.problem_mark.line + 1,
                            parser.problem == nullptr ? "unreadable" : parser.problem));
  const std::unique_ptr<yaml_document_t, void (*)(yaml_document_t*)> free_document(
      &document, yaml_document_delete);
  if (yaml_document_get_root_node(&document) == nullptr)
    throw Error(ErrorCode::kUsage, file + ": is empty");
  return Tree(document, file).node(1, 0);
}

}  // namespace patchbench
