// Runs the operator of a source on tensors from standard input, and writes the bytes of its result.
//
// Each tensor is its type, its number of axes and their sizes, as int64, and its bytes.

#include SOURCE

#include <iostream>

using List = std::vector<Tensor>;

// The first tensor is x; each of the others is a list of one matrix's.
template <typename... Lists>
Tensor called(const List& tensors, const Lists&... lists) {
  if constexpr (std::is_invocable_v<decltype(OPERATOR), Tensor, Lists..., std::nullopt_t>)
    return OPERATOR(tensors[0], lists..., std::nullopt);
  else
    return called(tensors, lists..., List{tensors[1 + sizeof...(lists)]});
}

int main() {
  std::vector<Tensor> tensors;
  int64_t type, axes;
  auto read = [](void* to, size_t n) { return bool(std::cin.read(static_cast<char*>(to), n)); };
  while (read(&type, 8)) {
    read(&axes, 8);
    std::vector<int64_t> sizes(axes);
    read(sizes.data(), 8 * axes);
    tensors.emplace_back(ScalarType(type), sizes);
    read(tensors.back().data_ptr(), tensors.back().bytes->size());
  }
  const Tensor y = called(tensors);
  std::cout.write(y.bytes->data(), y.bytes->size());
}
