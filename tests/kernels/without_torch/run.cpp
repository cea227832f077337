// Runs the operator of a source on tensors from standard input and numbers of the command line.
//
// Each tensor, also of the result, is its type, its number of axes and their sizes, as int64, and
// its bytes.

#include SOURCE

#include <iostream>
#include <string>
#include <tuple>

using List = std::vector<Tensor>;
using Numbers = std::vector<double>;

// A product's first tensor is x; each of the others is a list of one matrix's, or the matrix itself.
// There is no other product of many rows. A number is that of digits.
template <typename Operator, typename... Lists>
Tensor product(Operator* of, const List& tensors, const Numbers& numbers, const Lists&... lists) {
  constexpr std::nullopt_t none = std::nullopt;
  if constexpr (std::is_invocable_v<Operator, Tensor, Tensor, int64_t>)
    return of(tensors[0], tensors[1], tensors[0].size(0));
  else if constexpr (std::is_invocable_v<Operator, Tensor, Lists..., std::nullopt_t,
                                         std::nullopt_t, int64_t>)
    return of(tensors[0], lists..., none, none, 0);
  else if constexpr (std::is_invocable_v<Operator, Tensor, Lists..., std::nullopt_t, int64_t>)
    return of(tensors[0], lists..., none, int64_t(numbers[0]));
  else if constexpr (std::is_invocable_v<Operator, Tensor, Lists..., std::nullopt_t>)
    return of(tensors[0], lists..., none);
  else
    return product(of, tensors, numbers, lists..., List{tensors[1 + sizeof...(lists)]});
}

template <typename Operator>
auto called(Operator* of, const List& x, const Numbers& numbers) {
  if constexpr (std::is_invocable_v<Operator, Tensor, Tensor, Tensor, Tensor, double>)
    return of(x[0], x[1], x[2], x[3], numbers[0]);  // gradients of attention
  else if constexpr (std::is_invocable_v<Operator, Tensor, Tensor, Tensor, double>)
    return of(x[0], x[1], x[2], numbers[0]);  // attention
  else if constexpr (std::is_invocable_v<Operator, Tensor, Tensor, double, int64_t>)
    return of(x[0], x[1], numbers[0], int64_t(numbers[1]));  // a loss
  else if constexpr (std::is_invocable_v<Operator, Tensor, List, List, bool>)
    return of(x[0], {x[1]}, List{x[2]}, numbers[0] != 0);  // a linear layer
  else if constexpr (std::is_invocable_v<Operator, Tensor, Tensor, List, bool, bool>)
    return of(x[0], x[1], {x[2]}, true, true);  // its gradients
  else
    return product(of, x, numbers);
}

void read(void* to, size_t n) { std::cin.read(static_cast<char*>(to), n); }

void write(const void* from, size_t n) { std::cout.write(static_cast<const char*>(from), n); }

void write_tensor(const Tensor& x) {
  const int64_t facts[] = {int64_t(x.type), x.dim()};
  write(facts, sizeof facts);
  write(x.sizes.data(), 8 * x.dim());
  write(x.bytes->data(), x.bytes->size());
}

template <typename... Tensors>
void write_all(const std::tuple<Tensors...>& results) {
  std::apply([](const auto&... each) { (write_tensor(each), ...); }, results);
}

void write_all(const Tensor& result) { write_tensor(result); }

int main(int, char** arguments) {
  List tensors;
  Numbers numbers;
  for (char** each = arguments + 1; *each; ++each) numbers.push_back(std::stod(*each));
  int64_t type, axes;
  while (std::cin.peek() != EOF) {
    read(&type, 8);
    read(&axes, 8);
    std::vector<int64_t> sizes(axes);
    read(sizes.data(), 8 * axes);
    tensors.emplace_back(ScalarType(type), sizes);
    read(tensors.back().data_ptr(), tensors.back().bytes->size());
  }
  write_all(called(&OPERATOR, tensors, numbers));
}
