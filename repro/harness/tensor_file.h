#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "harness/inputs.h"

namespace patchbench::harness {

/// A torch dtype's name in safetensors ("F32"), and back. Both throw Error(kUsage) for one that has
/// no counterpart.
std::string dtype_name(at::ScalarType dtype);
at::ScalarType dtype_from(std::string_view name);

/// The tensors as a safetensors file, contiguous, in name order, on the CPU.
std::string tensors_to_bytes(const Tensors& tensors);
/// The tensors of an untrusted safetensors file. Throws Error(kUsage) `<where>: <reason>`. The
/// result owns its memory.
Tensors tensors_from_bytes(std::string_view bytes, const std::string& where);

/// One input as cases.json names it: its storage and the view on it.
/// {"storage": <name>, "sizes", "strides", "offset"}.
Json view_json(const at::Tensor& tensor, const std::string& storage);
/// The whole storage of a CPU tensor as a 1-D tensor.
at::Tensor storage_of(const at::Tensor& tensor);

/// SHA-256 over names, dtypes, views and bytes.
std::string digest_of(const Tensors& tensors);

}  // namespace patchbench::harness
