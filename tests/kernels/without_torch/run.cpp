// Runs the operator of a source on tensors from standard input, and writes the bytes of its result.
//
// Each tensor is its type, its number of axes and their sizes, as int64, and its bytes.

#include SOURCE

#include <iostream>

using List = std::vector<Tensor>;

// The first tensor is x; each of the others is a list of one matrix's, or the matrix itself. There is
// no other product of many rows.
template <typename Operator, typename... Lists>
Tensor called(Operator* of, const List& tensors, const Lists&... lists) {
  constexpr std::nullopt_t none = std::nullopt;
  if constexpr (std::is_invocable_v<Operator, Tensor, Tensor, int64_t>)
    return of(tensors[0], tensors[1], tensors[0].size(0));
  else if constexpr (std::is_invocable_v<Operator, Tensor, Lists..., std::nullopt_t,
                                         std::nullopt_t, int64_t>)
    return of(tensors[0], lists..., none, none, 0);
  else if constexpr (std::is_invocable_v<Operator, Tensor, Lists..., std::nullopt_t>)
    return of(tensors[0], lists..., none);
  else
    return called(of, tensors, lists..., List{tensors[1 + sizeof...(lists)]});
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
  const Tensor y = called(&OPERATOR, tensors);
  std::cout.write(y.bytes->data(), y.bytes->size());
}
