#pragma once
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tensor.h"

/// The checks of an op's arguments, in one order for all ops: rank, sizes, device, dtype, shape,
/// layout. A message names op, argument, what is wanted and what came:
///   sparse_mla: kv must have dtype bfloat16, got float32
namespace patchbench::ops {

inline std::string text_of(const Ints& lengths) {
  std::ostringstream text;
  text << '[';
  for (std::size_t i = 0; i < lengths.size(); ++i) text << (i == 0 ? "" : ", ") << lengths[i];
  text << ']';
  return text.str();
}

/// The dtype's name in Python.
inline const char* text_of(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case kByte:
      return "uint8";
    case kInt:
      return "int32";
    case kLong:
      return "int64";
    case kHalf:
      return "float16";
    case kBFloat16:
      return "bfloat16";
    case kFloat:
      return "float32";
    case kDouble:
      return "float64";
    case kFloat8:
      return "float8_e4m3fn";
    case ScalarType::Float8_e5m2:
      return "float8_e5m2";
    default:
      return torch::headeronly::toString(type);
  }
}

/// "cpu", "cuda:0".
inline std::string device_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return "another device";
}

inline bool is_on_one_device(const Tensor& a, const Tensor& b) { return a.device() == b.device(); }

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream text;
  ((text << parts), ...);
  return text.str();
}

/// Throws std::runtime_error, in Python RuntimeError, unless the condition holds. The parts of the
/// message are only then evaluated.
#define PB_CHECK(holds, ...) \
  if (!(holds)) throw std::runtime_error(::patchbench::ops::join(__VA_ARGS__))
/// The same for an index that lies outside of its target: IndexError in Python.
#define PB_CHECK_INDEX(holds, ...) \
  if (!(holds)) throw std::out_of_range(::patchbench::ops::join(__VA_ARGS__))

inline void check_axes(const char* op, const char* name, const Tensor& tensor, int64_t count,
                       const char* axes) {
  PB_CHECK(tensor.dim() == count, op, ": ", name, " must have ", count, " axes ", axes, ", got ",
           tensor.dim());
}

inline void check_device(const char* op, const char* name, const Tensor& tensor,
                         const Tensor& like) {
  PB_CHECK(is_on_one_device(tensor, like), op, ": ", name, " must be on ", device_of(like),
           ", got ", device_of(tensor));
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType wanted) {
  PB_CHECK(tensor.scalar_type() == wanted, op, ": ", name, " must have dtype ", text_of(wanted),
           ", got ", text_of(tensor.scalar_type()));
}

inline void check_shape(const char* op, const char* name, const Tensor& tensor,
                        const Ints& wanted) {
  PB_CHECK(tensor.shape() == wanted, op, ": ", name, " must have shape ", text_of(wanted), ", got ",
           text_of(tensor.shape()));
}

/// Device of `like`, dtype and shape.
inline void check_tensor(const char* op, const char* name, const Tensor& tensor, const Ints& shape,
                         ScalarType type, const Tensor& like) {
  check_device(op, name, tensor, like);
  check_dtype(op, name, tensor, type);
  check_shape(op, name, tensor, shape);
}

/// Where a tensor's first element lies, behind the last multiple of 16 bytes.
inline int64_t bytes_behind_word(const Tensor& tensor) {
  return static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data()) % 16);
}

/// Kernels load 16 bytes at a time.
inline void check_alignment(const char* op, const char* name, const Tensor& tensor) {
  PB_CHECK(bytes_behind_word(tensor) == 0, op, ": ", name,
           " must start at a multiple of 16 bytes, got one at ", bytes_behind_word(tensor),
           " bytes behind; pass ", name, ".clone()");
}

/// `tensor` contiguous and at a multiple of 16 bytes, copied where it is not: a view may start
/// anywhere.
inline Tensor in_words(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  return bytes_behind_word(packed) == 0 ? packed : packed.clone();
}
inline std::optional<Tensor> in_words(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(in_words(*tensor)) : std::nullopt;
}

}  // namespace patchbench::ops
