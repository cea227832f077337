// What operators use of torch's stable interface, for processors that have no torch here.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::headeronly {
enum class ScalarType { Float, BFloat16, Char, Byte };
}

namespace torch::stable {

using headeronly::ScalarType;

struct Tensor {
  ScalarType type;
  std::vector<int64_t> sizes;
  std::shared_ptr<std::vector<char>> bytes;

  Tensor(ScalarType type, std::vector<int64_t> sizes) : type(type), sizes(sizes) {
    int64_t n = type == ScalarType::Float ? 4 : type == ScalarType::BFloat16 ? 2 : 1;
    for (int64_t size : sizes) n *= size;
    bytes = std::make_shared<std::vector<char>>(n);
  }
  int64_t size(int64_t axis) const { return sizes[axis]; }
  void* data_ptr() const { return bytes->data(); }
  ScalarType scalar_type() const { return type; }
};

template <size_t N>
Tensor new_empty(const Tensor& like, const int64_t (&sizes)[N]) {
  return {like.type, {sizes, sizes + N}};
}

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

#define TORCH_BOX(function) function
#define STABLE_TORCH_LIBRARY_IMPL(space, key, library) \
  [[maybe_unused]] static void registered(torch::stable::Library& library)
