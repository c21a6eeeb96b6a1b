#include "harness/tensor_file.h"

#include <array>
#include <cstring>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/safetensors.h"

namespace patchbench::harness {
namespace {

constexpr std::array<std::pair<at::ScalarType, const char*>, 10> kNames = {{{at::kBool, "BOOL"},
                                                                            {at::kByte, "U8"},
                                                                            {at::kChar, "I8"},
                                                                            {at::kShort, "I16"},
                                                                            {at::kInt, "I32"},
                                                                            {at::kLong, "I64"},
                                                                            {at::kHalf, "F16"},
                                                                            {at::kBFloat16, "BF16"},
                                                                            {at::kFloat, "F32"},
                                                                            {at::kDouble, "F64"}}};

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.data_ptr()), contiguous.nbytes()};
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  throw Error(ErrorCode::kUsage,
              std::string("safetensors files here hold no ") + at::toString(dtype));
}

at::ScalarType dtype_from(std::string_view name) {
  for (const auto& [type, known] : kNames) {
    if (name == known) return type;
  }
  throw Error(ErrorCode::kUsage, "no torch dtype for '" + std::string(name) + "'");
}

std::string tensors_to_bytes(const Tensors& tensors) {
  std::vector<at::Tensor> keep;
  std::vector<TensorBytes> parts;
  for (const auto& [name, tensor] : tensors) {
    keep.push_back(tensor.detach().to(at::kCPU).contiguous());
    parts.push_back(
        {name, dtype_name(tensor.scalar_type()), tensor.sizes().vec(), bytes_of(keep.back())});
  }
  return write_safetensors(parts);
}

Tensors tensors_from_bytes(std::string_view bytes, const std::string& where) {
  Tensors tensors;
  for (const auto& [name, span] : parse_safetensors(bytes, where)) {
    const at::ScalarType dtype = dtype_from(span.dtype);
    at::Tensor tensor = at::empty(span.shape, at::TensorOptions().dtype(dtype));
    const std::string_view data = bytes.substr(span.begin, span.end - span.begin);
    if (dtype == at::kBool) {
      // A bool that is neither 0 nor 1 is undefined behaviour wherever it is read.
      for (const char c : data) {
        if (c != 0 && c != 1)
          throw Error(ErrorCode::kUsage,
                      where + ": tensor '" + name + "' holds a bool that is not 0 or 1");
      }
    }
    if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

Json view_json(const at::Tensor& tensor, const std::string& storage) {
  return {{"storage", storage},
          {"sizes", tensor.sizes().vec()},
          {"strides", tensor.strides().vec()},
          {"offset", tensor.storage_offset()}};
}

at::Tensor storage_of(const at::Tensor& tensor) {
  const auto numel = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  return at::as_strided(tensor, {numel}, {1}, 0);
}

std::string digest_of(const Tensors& tensors) {
  Sha256 sha;
  for (const auto& [name, tensor] : tensors) {
    const Json head = {name, dtype_name(tensor.scalar_type()), view_json(tensor, name)};
    sha.update(canonical_json(head));
    sha.update(bytes_of(storage_of(tensor.detach().to(at::kCPU))));
  }
  return sha.hex();
}

}  // namespace patchbench::harness
