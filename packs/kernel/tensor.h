#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

/// A tensor of torch's stable ABI with the methods that the ops use. Every method calls the
/// operator of the same name by torch's dispatcher and has its meaning.
///
/// The ABI of torch 2.11 passes no Scalar to the dispatcher. So a number goes as a tensor without
/// axes on the CPU, and a sum goes as a difference with factor -1.
///
/// A failed call throws std::runtime_error without the operator's own message, which torch logs.
namespace patchbench::ops {

using torch::headeronly::ScalarType;
inline constexpr ScalarType kByte = ScalarType::Byte, kInt = ScalarType::Int,
                            kLong = ScalarType::Long, kHalf = ScalarType::Half,
                            kBFloat16 = ScalarType::BFloat16, kFloat = ScalarType::Float,
                            kDouble = ScalarType::Double, kFloat8 = ScalarType::Float8_e4m3fn;

using Ints = std::vector<int64_t>;

/// Calls an operator with all arguments of its schema, in order, defaults included. `Result` is
/// what it returns, a std::tuple where that is more than one thing.
template <typename Result, typename... Arguments>
Result call(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, sizeof...(Arguments) + 1> stack = {
      torch::stable::detail::from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Result>(stack[0]);
}

class Tensor : public torch::stable::Tensor {
 public:
  using Base = torch::stable::Tensor;
  Tensor() = default;
  Tensor(const Base& base) : Base(base) {}  // NOLINT: the same handle

  // ---- facts ----

  bool is_floating_point() const {
    const ScalarType type = scalar_type();
    return type == kFloat || type == kDouble || type == kHalf || type == kBFloat16;
  }
  /// Of one axis, which counts from the end where it is negative.
  int64_t size(int64_t axis) const { return Base::size(axis < 0 ? axis + dim() : axis); }
  int64_t stride(int64_t axis) const { return Base::stride(axis < 0 ? axis + dim() : axis); }
  Ints shape() const { return {sizes().begin(), sizes().end()}; }
  int64_t nbytes() const { return numel() * static_cast<int64_t>(element_size()); }
  /// Where the first element lies; null for a tensor without elements.
  const void* data() const { return Base::const_data_ptr(); }
  void* mutable_data() const { return Base::mutable_data_ptr(); }
  template <typename T>
  const T* data() const {
    return static_cast<const T*>(data());
  }
  template <typename T>
  T* mutable_data() const {
    return static_cast<T*>(mutable_data());
  }

  // ---- views ----

  Tensor narrow(int64_t axis, int64_t first, int64_t count) const {
    Base self = *this;
    return torch::stable::narrow(self, axis, first, count);
  }
  Tensor select(int64_t axis, int64_t index) const {
    return torch::stable::select(*this, axis, index);
  }
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor slice(int64_t axis, std::optional<int64_t> first,
               std::optional<int64_t> end = std::nullopt) const {
    return call<Base>("aten::slice", "Tensor", base(), axis, first, end, int64_t{1});
  }
  Tensor transpose(int64_t a, int64_t b) const { return torch::stable::transpose(*this, a, b); }
  Tensor t() const { return transpose(0, 1); }
  Tensor mT() const { return transpose(-2, -1); }
  Tensor permute(const Ints& axes) const { return call<Base>("aten::permute", "", base(), axes); }
  Tensor squeeze(int64_t axis) const { return torch::stable::squeeze(*this, axis); }
  Tensor unsqueeze(int64_t axis) const { return torch::stable::unsqueeze(*this, axis); }
  Tensor flatten(int64_t first, int64_t last = -1) const {
    return torch::stable::flatten(*this, first, last);
  }
  Tensor unflatten(int64_t axis, const Ints& lengths) const {
    return call<Base>("aten::unflatten", "int", base(), axis, lengths);
  }
  Tensor view(const Ints& lengths) const { return torch::stable::view(*this, lengths); }
  Tensor view(ScalarType type) const { return call<Base>("aten::view", "dtype", base(), type); }
  Tensor reshape(const Ints& lengths) const { return torch::stable::reshape(*this, lengths); }
  Tensor expand(const Ints& lengths) const {
    return call<Base>("aten::expand", "", base(), lengths, false);
  }
  Tensor diagonal(int64_t offset, int64_t a, int64_t b) const {
    return call<Base>("aten::diagonal", "", base(), offset, a, b);
  }
  std::vector<Tensor> unbind(int64_t axis) const {
    std::vector<Tensor> parts;
    for (int64_t i = 0; i < size(axis); ++i) parts.push_back(select(axis, i));
    return parts;
  }

  // ---- copies ----

  Tensor contiguous() const { return torch::stable::contiguous(*this); }
  Tensor clone() const { return torch::stable::clone(*this); }
  Tensor to(ScalarType type) const {
    return call<Base>("aten::to", "dtype", base(), type, false, false,
                      std::optional<torch::headeronly::MemoryFormat>());
  }
  Tensor cpu() const {
    return torch::stable::to(*this, torch::stable::Device(torch::headeronly::DeviceType::CPU));
  }
  Tensor repeat_interleave(int64_t times, int64_t axis) const {
    return call<Base>("aten::repeat_interleave", "self_int", base(), times,
                      std::optional<int64_t>(axis), std::optional<int64_t>());
  }
  Tensor index_select(int64_t axis, const Tensor& index) const {
    return call<Base>("aten::index_select", "", base(), axis, index.base());
  }
  Tensor flip(const Ints& axes) const { return call<Base>("aten::flip", "", base(), axes); }
  Tensor tril(int64_t diagonal) const { return call<Base>("aten::tril", "", base(), diagonal); }
  Tensor diag_embed() const {
    return call<Base>("aten::diag_embed", "", base(), int64_t{0}, int64_t{-2}, int64_t{-1});
  }

  // ---- element by element ----

  Tensor abs() const { return unary("aten::abs"); }
  Tensor ceil() const { return unary("aten::ceil"); }
  Tensor exp() const { return unary("aten::exp"); }
  Tensor exp2() const { return unary("aten::exp2"); }
  Tensor expm1() const { return unary("aten::expm1"); }
  Tensor log1p() const { return unary("aten::log1p"); }
  Tensor log2() const { return unary("aten::log2"); }
  Tensor neg() const { return unary("aten::neg"); }
  Tensor sigmoid() const { return unary("aten::sigmoid"); }
  Tensor silu() const { return unary("aten::silu"); }
  Tensor sin() const { return unary("aten::sin"); }
  Tensor cos() const { return unary("aten::cos"); }
  Tensor square() const { return unary("aten::square"); }
  Tensor tanh() const { return unary("aten::tanh"); }
  Tensor logical_not() const { return unary("aten::logical_not"); }
  Tensor logical_and(const Tensor& other) const { return binary("aten::logical_and", "", other); }
  template <typename Other>
  Tensor eq(const Other& other) const {
    return binary("aten::eq", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor ne(const Other& other) const {
    return binary("aten::ne", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor ge(const Other& other) const {
    return binary("aten::ge", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor gt(const Other& other) const {
    return binary("aten::gt", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor lt(const Other& other) const {
    return binary("aten::lt", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor maximum(const Other& other) const {
    return binary("aten::maximum", "", operand(other));
  }
  template <typename Other>
  Tensor minimum(const Other& other) const {
    return binary("aten::minimum", "", operand(other));
  }
  template <typename Number>
  Tensor clamp(Number least, Number most) const {
    return maximum(least).minimum(most);
  }
  template <typename Other>
  Tensor mul(const Other& other) const {
    return binary("aten::mul", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor div(const Other& other) const {
    return binary("aten::div", "Tensor", operand(other));
  }
  template <typename Other>
  Tensor sub(const Other& other) const {
    return torch::stable::subtract(*this, operand(other), 1.0);
  }
  template <typename Other>
  Tensor add(const Other& other) const {
    return torch::stable::subtract(*this, operand(other), -1.0);
  }
  Tensor masked_fill(const Tensor& mask, double value) const {
    return call<Base>("aten::masked_fill", "Tensor", base(), mask.base(), number(value).base());
  }

  // ---- sums ----

  Tensor sum(std::optional<ScalarType> type = std::nullopt) const {
    return call<Base>("aten::sum", "", base(), type);
  }
  Tensor sum(const Ints& axes, bool keeps_axes = false,
             std::optional<ScalarType> type = std::nullopt) const {
    return call<Base>("aten::sum", "dim_IntList", base(), std::optional<Ints>(axes), keeps_axes,
                      type);
  }
  Tensor amax(const Ints& axes, bool keeps_axes = false) const {
    return call<Base>("aten::amax", "", base(), axes, keeps_axes);
  }
  Tensor argmax(int64_t axis, bool keeps_axis = false) const {
    return call<Base>("aten::argmax", "", base(), std::optional<int64_t>(axis), keeps_axis);
  }
  Tensor any() const { return unary("aten::any"); }
  Tensor cumsum(int64_t axis) const {
    return call<Base>("aten::cumsum", "", base(), axis, std::optional<ScalarType>());
  }
  /// Of the last two axes; the axes before them are equal. It is the variant that is given its
  /// result, for autocast would round the operands of the other one to its own dtype.
  Tensor matmul(const Tensor& other) const {
    Ints lengths = shape();
    const int64_t columns = lengths.back(), rows = lengths[lengths.size() - 2];
    int64_t batch = 1;
    for (std::size_t i = 0; i + 2 < lengths.size(); ++i) batch *= lengths[i];
    lengths.back() = other.size(-1);
    const Tensor product = torch::stable::new_empty(*this, Ints{batch, rows, lengths.back()});
    call<Base>("aten::bmm", "out", reshape({batch, rows, columns}).base(),
               other.reshape({batch, columns, lengths.back()}).base(), product.base());
    return product.view(lengths);
  }

  // ---- in place ----

  const Tensor& zero_() const {
    Base self = *this;
    torch::stable::zero_(self);
    return *this;
  }
  const Tensor& fill_(double value) const {
    torch::stable::fill_(*this, value);
    return *this;
  }
  const Tensor& copy_(const Tensor& from) const {
    Base self = *this;
    torch::stable::copy_(self, from);
    return *this;
  }
  const Tensor& exp2_() const {
    call<Base>("aten::exp2_", "", base());
    return *this;
  }
  template <typename Other>
  const Tensor& mul_(const Other& other) const {
    call<Base>("aten::mul_", "Tensor", base(), operand(other).base());
    return *this;
  }
  template <typename Other>
  const Tensor& div_(const Other& other) const {
    call<Base>("aten::div_", "Tensor", base(), operand(other).base());
    return *this;
  }
  /// Holds memory for the sum in addition to this tensor's own while it runs.
  const Tensor& add_(const Tensor& other) const { return copy_(add(other)); }
  const Tensor& sub_(const Tensor& other) const { return copy_(sub(other)); }
  const Tensor& masked_fill_(const Tensor& mask, double value) const {
    call<Base>("aten::masked_fill_", "Tensor", base(), mask.base(), number(value).base());
    return *this;
  }
  /// self[index[i], :] += source[i, :], for two axes.
  const Tensor& add_rows_(const Tensor& index, const Tensor& source) const {
    const Tensor rows = index.unsqueeze(1).expand(source.shape());
    call<Base>("aten::scatter_add_", "", base(), int64_t{0}, rows.base(), source.base());
    return *this;
  }

  /// self[.., index, ..] = the larger of itself and source, along one axis.
  const Tensor& max_at_(int64_t axis, const Tensor& index, const Tensor& source) const {
    call<Base>("aten::scatter_reduce_", "two", base(), axis, index.base(), source.base(),
               std::string("amax"), true);
    return *this;
  }

  const Base& base() const { return *this; }
  /// A number as an operand with this tensor: it does not change the dtype of the result.
  Tensor number(double value) const {
    return torch::stable::full({}, value, is_floating_point() ? kDouble : kLong, std::nullopt,
                               torch::stable::Device(torch::headeronly::DeviceType::CPU));
  }

 private:
  const Tensor& operand(const Tensor& other) const { return other; }
  Tensor operand(double value) const { return number(value); }
  Tensor operand(int64_t value) const { return number(static_cast<double>(value)); }
  Tensor operand(int value) const { return number(value); }
  Tensor unary(const char* name) const { return call<Base>(name, "", base()); }
  Tensor binary(const char* name, const char* overload, const Tensor& other) const {
    return call<Base>(name, overload, base(), other.base());
  }
};

inline Tensor operator+(const Tensor& a, const Tensor& b) { return a.add(b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return a.sub(b); }
inline Tensor operator-(const Tensor& a) { return a.neg(); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return a.mul(b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return a.div(b); }
inline Tensor operator*(const Tensor& a, double b) { return a.mul(b); }
inline Tensor operator/(const Tensor& a, double b) { return a.div(b); }
inline Tensor operator+(double a, const Tensor& b) { return b.add(a); }
inline Tensor operator-(double a, const Tensor& b) { return b.number(a).sub(b); }

/// Uninitialised, on the device of `like`, of `type` or its dtype.
inline Tensor empty(const Ints& lengths, const Tensor& like,
                    std::optional<ScalarType> type = std::nullopt) {
  return torch::stable::new_empty(like, lengths, type);
}
inline Tensor zeros(const Ints& lengths, const Tensor& like,
                    std::optional<ScalarType> type = std::nullopt) {
  return torch::stable::new_zeros(like, lengths, type);
}
inline Tensor empty_like(const Tensor& like) { return empty(like.shape(), like); }
inline Tensor zeros_like(const Tensor& like) { return zeros(like.shape(), like); }
inline Tensor full(const Ints& lengths, double value, const Tensor& like,
                   std::optional<ScalarType> type = std::nullopt) {
  return empty(lengths, like, type).fill_(value);
}
/// first, first + 1, .., int64 on the device of `like`; [count].
inline Tensor arange(int64_t first, int64_t count, const Tensor& like) {
  const Tensor steps = full({count}, 1, like, kLong);
  steps.slice(0, 0, 1).fill_(static_cast<double>(first));
  return steps.cumsum(0);
}

inline std::vector<torch::stable::Tensor> bases_of(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}
inline Tensor cat(const std::vector<Tensor>& tensors, int64_t axis) {
  return call<Tensor::Base>("aten::cat", "", bases_of(tensors), axis);
}
inline Tensor stack(const std::vector<Tensor>& tensors, int64_t axis) {
  return call<Tensor::Base>("aten::stack", "", bases_of(tensors), axis);
}
inline Tensor where(const Tensor& condition, const Tensor& yes, const Tensor& no) {
  return call<Tensor::Base>("aten::where", "self", condition.base(), yes.base(), no.base());
}
inline Tensor where(const Tensor& condition, const Tensor& yes, double no) {
  return where(condition, yes, yes.number(no));
}

}  // namespace patchbench::ops

HIDDEN_NAMESPACE_BEGIN(torch, stable, detail)

template <>
struct FromImpl<patchbench::ops::Tensor> {
  static StableIValue call(const patchbench::ops::Tensor& value, uint64_t version, bool internal) {
    return FromImpl<torch::stable::Tensor>::call(value, version, internal);
  }
};
template <>
struct ToImpl<patchbench::ops::Tensor> {
  static patchbench::ops::Tensor call(StableIValue value, uint64_t version, bool internal) {
    return ToImpl<torch::stable::Tensor>::call(value, version, internal);
  }
};
/// A list of a fixed length, as `bool[2]`.
template <std::size_t kLength>
struct ToImpl<std::array<bool, kLength>> {
  static std::array<bool, kLength> call(StableIValue value, uint64_t version, bool internal) {
    const auto list = ToImpl<std::vector<bool>>::call(value, version, internal);
    STD_TORCH_CHECK(list.size() == kLength, "output_mask must have ", kLength, " entries, got ",
                    list.size());
    std::array<bool, kLength> mask = {};
    for (std::size_t i = 0; i < kLength; ++i) mask[i] = list[i];
    return mask;
  }
};

HIDDEN_NAMESPACE_END(torch, stable, detail)
