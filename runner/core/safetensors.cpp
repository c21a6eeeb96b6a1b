#include "core/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace patchbench {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxRank = 16;
constexpr std::size_t kMaxName = 512;
constexpr std::array<std::pair<std::string_view, std::size_t>, 12> kDtypes = {{{"BOOL", 1},
                                                                               {"U8", 1},
                                                                               {"I8", 1},
                                                                               {"F8_E4M3", 1},
                                                                               {"F8_E5M2", 1},
                                                                               {"I16", 2},
                                                                               {"F16", 2},
                                                                               {"BF16", 2},
                                                                               {"I32", 4},
                                                                               {"F32", 4},
                                                                               {"I64", 8},
                                                                               {"F64", 8}}};

[[noreturn]] void refuse(const std::string& where, const std::string& reason) {
  throw Error(ErrorCode::kUsage, where + ": " + reason);
}

/// The bytes that a shape takes, zero extents counted as one where it could overflow; nullopt where
/// the product leaves int64, as strides must fit too.
std::optional<std::size_t> byte_count(const std::vector<int64_t>& shape, std::size_t itemsize) {
  std::size_t count = itemsize;
  bool is_empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      is_empty = true;
      continue;
    }
    const auto factor = static_cast<std::size_t>(extent);
    if (count > static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / factor)
      return std::nullopt;
    count *= factor;
  }
  return is_empty ? 0 : count;
}

/// A JSON value as a natural number; anything else is refused (1.0, -1, "1").
std::size_t natural(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) {
    refuse(where, "wants a natural number, got " +
                      value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40));
  }
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    refuse(where, "number too large");
  return static_cast<std::size_t>(number);
}

/// One header entry; ranges are still relative to the data.
TensorSpan parse_span(const Json& entry, const std::string& where) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    refuse(where, "wants exactly dtype, shape and data_offsets");
  }
  const Json& dtype = entry["dtype"];
  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  TensorSpan span;
  if (!dtype.is_string() || safetensors_itemsize(dtype.get_ref<const std::string&>()) == 0)
    refuse(where, "unknown dtype");
  span.dtype = dtype.get<std::string>();
  if (!shape.is_array() || shape.size() > kMaxRank)
    refuse(where, fmt::format("shape wants at most {} extents", kMaxRank));
  for (const Json& extent : shape)
    span.shape.push_back(static_cast<int64_t>(natural(extent, where + ": shape")));
  if (!offsets.is_array() || offsets.size() != 2) refuse(where, "data_offsets wants [begin, end]");
  span.begin = natural(offsets[0], where + ": data_offsets");
  span.end = natural(offsets[1], where + ": data_offsets");
  const std::optional<std::size_t> wanted =
      byte_count(span.shape, safetensors_itemsize(span.dtype));
  if (!wanted) refuse(where, "the shape's size overflows");
  if (span.end < span.begin || span.end - span.begin != *wanted) {
    refuse(where, fmt::format("data_offsets [{}, {}] do not hold the {} bytes of the shape",
                              span.begin, span.end, *wanted));
  }
  return span;
}

/// Ranges must tile [0, total): no gap, no overlap, nothing left over. Then they are moved to file
/// offsets.
void place(std::map<std::string, TensorSpan>& tensors, std::size_t data_begin, std::size_t total,
           const std::string& where) {
  std::vector<std::pair<std::string_view, TensorSpan*>> order;
  for (auto& [name, span] : tensors) order.emplace_back(name, &span);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::size_t at = 0;
  for (const auto& [name, span] : order) {
    if (span->begin != at) {
      refuse(where,
             fmt::format("tensor '{}' begins at {}, wanted {}: ranges overlap or leave a gap", name,
                         span->begin, at));
    }
    at = span->end;
  }
  if (at != total) refuse(where, fmt::format("the ranges cover {} of {} data bytes", at, total));
  for (const auto& [name, span] : order) {
    span->begin += data_begin;
    span->end += data_begin;
  }
}

}  // namespace

std::size_t safetensors_itemsize(std::string_view dtype) {
  for (const auto& [name, itemsize] : kDtypes) {
    if (name == dtype) return itemsize;
  }
  return 0;
}

std::map<std::string, TensorSpan> parse_safetensors(std::string_view bytes,
                                                    const std::string& where) {
  if (bytes.size() < kLengthBytes)
    refuse(where, fmt::format("{} bytes are too few for a header length", bytes.size()));
  uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  if (length > kMaxSafetensorsHeader) {
    refuse(where, fmt::format("a header of {} bytes is over the limit of {}", length,
                              kMaxSafetensorsHeader));
  }
  if (length > bytes.size() - kLengthBytes)
    refuse(where, fmt::format("the header of {} bytes is cut off", length));
  const std::string_view text = bytes.substr(kLengthBytes, static_cast<std::size_t>(length));
  if (!text.starts_with('{')) refuse(where, "the header does not start with '{'");
  const Json header = parse_json(text, where);
  if (!header.is_object()) refuse(where, "the header is no object");
  std::map<std::string, TensorSpan> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      const bool is_text =
          entry.is_object() &&
          std::all_of(entry.begin(), entry.end(), [](const Json& v) { return v.is_string(); });
      if (!is_text) refuse(where, "__metadata__ wants strings");
      continue;
    }
    if (name.empty() || name.size() > kMaxName)
      refuse(where, fmt::format("a tensor's name wants 1 to {} bytes", kMaxName));
    tensors.emplace(name, parse_span(entry, where + ": tensor '" + name + "'"));
  }
  const std::size_t data_begin = kLengthBytes + static_cast<std::size_t>(length);
  place(tensors, data_begin, bytes.size() - data_begin, where);
  return tensors;
}

std::string write_safetensors(const std::vector<TensorBytes>& tensors) {
  Json header = Json::object();
  std::size_t at = 0;
  for (const TensorBytes& tensor : tensors) {
    const std::size_t itemsize = safetensors_itemsize(tensor.dtype);
    if (itemsize == 0 || byte_count(tensor.shape, itemsize) != tensor.bytes.size()) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("tensor '{}': dtype {}, shape and {} bytes do not fit together",
                              tensor.name, tensor.dtype, tensor.bytes.size()));
    }
    if (tensor.name.empty() || tensor.name == "__metadata__" || header.contains(tensor.name)) {
      throw Error(ErrorCode::kInternal,
                  "tensor name '" + tensor.name + "' is empty, reserved or there twice");
    }
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  std::string file;
  file.reserve(kLengthBytes + text.size() + at);
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    file.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  file += text;
  for (const TensorBytes& tensor : tensors) file += tensor.bytes;
  return file;
}

}  // namespace patchbench
