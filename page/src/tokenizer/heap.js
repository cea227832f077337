// A heap of numbers: the smallest first.

export class Heap {
  numbers = [];

  push(number) {
    const { numbers } = this;
    let place = numbers.push(number) - 1;
    while (place > 0) {
      const above = (place - 1) >> 1;
      if (numbers[above] <= number) break;
      numbers[place] = numbers[above];
      place = above;
    }
    numbers[place] = number;
  }

  pop() {
    const { numbers } = this;
    const smallest = numbers[0];
    const number = numbers.pop();
    const n = numbers.length;
    if (!n) return smallest;
    let place = 0;
    for (let below = 1; below < n; below = 2 * place + 1) {
      if (below + 1 < n && numbers[below + 1] < numbers[below]) below++;
      if (numbers[below] >= number) break;
      numbers[place] = numbers[below];
      place = below;
    }
    numbers[place] = number;
    return smallest;
  }
}
