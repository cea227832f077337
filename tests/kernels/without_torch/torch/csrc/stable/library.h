// What operators use of torch's stable interface, for processors that have no torch here.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace torch::headeronly {
enum class ScalarType { Float, BFloat16, Char, Byte, Int, Long };

constexpr int64_t SIZES[] = {4, 2, 1, 1, 4, 8};  // of a number of each type
}

using AtenTensorHandle = void*;
using AOTITorchError = int;
using StableIValue = int;

namespace torch::stable {

using headeronly::ScalarType;

struct Tensor {
  ScalarType type;
  std::vector<int64_t> sizes;
  std::shared_ptr<std::vector<char>> bytes;

  Tensor(ScalarType type, std::vector<int64_t> sizes) : type(type), sizes(sizes) {
    int64_t n = headeronly::SIZES[int(type)];
    for (int64_t size : sizes) n *= size;
    bytes = std::make_shared<std::vector<char>>(n);
  }
  explicit Tensor(AtenTensorHandle) {}
  AtenTensorHandle get() const { return nullptr; }
  int64_t dim() const { return sizes.size(); }
  int64_t size(int64_t axis) const { return sizes[axis < 0 ? axis + dim() : axis]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return n;
  }
  bool is_contiguous() const { return true; }
  int64_t stride(int64_t axis) const {
    int64_t n = 1;
    while (++axis < dim()) n *= sizes[axis];
    return n;
  }
  void* data_ptr() const { return bytes->data(); }
  void* mutable_data_ptr() const { return bytes->data(); }
  ScalarType scalar_type() const { return type; }
};

template <size_t N>
Tensor new_empty(const Tensor& like, const int64_t (&sizes)[N],
                 std::optional<ScalarType> type = {}) {
  return {type.value_or(like.type), {sizes, sizes + N}};
}

inline Tensor new_empty(const Tensor& like, const std::vector<int64_t>& sizes,
                        std::optional<ScalarType> type) {
  return {type.value_or(like.type), sizes};
}

inline Tensor empty_like(const Tensor& x) { return {x.type, x.sizes}; }

inline Tensor contiguous(const Tensor& x) { return x; }
inline Tensor transpose(const Tensor& x, int64_t, int64_t) { return x; }

namespace detail {
inline StableIValue from(const Tensor&) { return 0; }
template <typename T>
T to(StableIValue) {
  return T(nullptr);
}
}  // namespace detail

template <typename Work>
void parallel_for(int64_t begin, int64_t end, int64_t, const Work& work) {
  if (begin < end) work(begin, end);
}

inline uint32_t get_num_threads() { return 1; }

struct Library {
  template <typename Function>
  void impl(const char*, Function*) {}
};

}  // namespace torch::stable

#define TORCH_ABI_VERSION 0
#define STABLE_TORCH_ERROR_CODE_CHECK(call) (void)(call)
inline AOTITorchError torch_call_dispatcher(const char*, const char*, StableIValue*, int) { return 1; }

#define TORCH_BOX(function) function
#define STABLE_TORCH_LIBRARY_IMPL(space, key, library) \
  [[maybe_unused]] static void registered_for_##key(torch::stable::Library& library)
