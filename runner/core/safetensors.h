#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// One tensor of a safetensors file: what its bytes are and where they stand.
struct TensorSpan {
  std::string dtype;           ///< "F32", "BF16", "I64", …
  std::vector<int64_t> shape;  ///< row-major; empty: one element
  std::size_t begin = 0;       ///< offset of the first byte in the whole file
  std::size_t end = 0;         ///< one past the last
};

/// One tensor to write. `bytes` is borrowed and must be row-major, little-endian and of the shape's
/// size.
struct TensorBytes {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string_view bytes;
};

/// The largest header that is read, in bytes.
inline constexpr std::size_t kMaxSafetensorsHeader = std::size_t{16} << 20;

/// Bytes of one element of a safetensors dtype, or 0 for an unknown dtype.
std::size_t safetensors_itemsize(std::string_view dtype);

/// The tensors of a safetensors file, by name. Strict, for the bytes come from an untrusted
/// process: an 8-byte little-endian header length of at most 16 MiB, one JSON object without
/// duplicate keys, known dtypes, shapes of rank
/// <= 16 whose byte count does not overflow and equals the range, and ranges that tile the data
/// without gap or overlap to the last byte. Throws Error(kUsage) `<where>: <reason>` otherwise.
std::map<std::string, TensorSpan> parse_safetensors(std::string_view bytes,
                                                    const std::string& where);

/// The file that holds the tensors, in the given order, header padded to 8 bytes; parse_safetensors
/// reads it back. Throws Error(kInternal) on a duplicate name, an unknown dtype, or bytes that do
/// not fit the shape.
std::string write_safetensors(const std::vector<TensorBytes>& tensors);

}  // namespace patchbench
