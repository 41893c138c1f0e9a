// Students whose texts see each other: from the vectors of two texts' tokens to the features of the pair.
#include <algorithm>
#include <cmath>

#include "student.h"

Alignment::Alignment(const Kernels& arithmetic, const File& file, int64_t vector_size, int64_t size)
    : vector_size(vector_size),
      group_ends{vector_size, 2 * vector_size, 3 * vector_size, 4 * vector_size},
      compare(arithmetic, file, "compare", size, 4 * vector_size, false, group_ends) {}

Alignment::Workspace Alignment::workspace() const {
  Workspace work;
  work.inputs = Aligned<float>(4 * vector_size);
  work.units = Aligned<uint32_t>(BLOCK * compare.packed.units);
  work.scales = Aligned<float>(BLOCK * compare.packed.groups);
  work.compared = Aligned<float>(BLOCK * compare.packed.out);
  return work;
}

void Alignment::represent(const Kernels& arithmetic, Workspace& work, float* features) const {
  for (int side = 0; side < 2; ++side) represent_side(arithmetic, work, side, features + side * 2 * compare.size);
}

void Alignment::represent_side(const Kernels& arithmetic, Workspace& work, int side, float* features) const {
  const auto &own = work.vectors[side], &other = work.vectors[1 - side];
  const auto count_of = [&](const auto& vectors) { return static_cast<int64_t>(vectors.size()) / vector_size; };
  const int64_t count = count_of(own);
  work.shares.resize(static_cast<size_t>(count_of(other)));
  float* const sum = features;
  float* const max = features + compare.size;
  std::fill_n(features, 2 * compare.size, 0.0f);  // comparisons are not below 0
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    const int64_t size = std::min(BLOCK, count - begin);
    for (int64_t t = 0; t < size; ++t) {
      const float* const x = own.data() + (begin + t) * vector_size;
      float* const seen = work.inputs.data() + vector_size;
      arithmetic.attend(x, other.data(), count_of(other), vector_size, work.shares.data(), seen);
      for (int64_t i = 0; i < vector_size; ++i) {
        work.inputs.data()[i] = x[i];
        seen[vector_size + i] = x[i] * seen[i];
        seen[2 * vector_size + i] = std::fabs(x[i] - seen[i]);
      }
      arithmetic.prepare(compare.packed, work.inputs.data(), work.units.data() + t * compare.packed.units,
                         work.scales.data() + t * compare.packed.groups);
    }
    arithmetic.multiply(compare.packed, work.units.data(), work.scales.data(), size, work.compared.data());
    for (int64_t t = 0; t < size; ++t) {
      float* const numbers = work.compared.data() + t * compare.packed.out;
      compare.activate(arithmetic, numbers);
      for (int64_t i = 0; i < compare.size; ++i) {
        sum[i] += numbers[i];
        max[i] = std::max(max[i], numbers[i]);
      }
    }
  }
}
