// Students whose texts see each other: from the rows of two texts' tokens to the features of the pair.
#include <algorithm>
#include <cmath>

#include "student.h"

Alignment::Alignment(const Kernels& arithmetic, const File& file, int64_t num_rows, int64_t vector_size, int64_t size)
    : vector_size(vector_size),
      offsets(file.has("rows.offset") ? file.get("rows.offset", FLOAT32, {num_rows}).floats() : nullptr),
      norm(file.get("norm", FLOAT32, {2, vector_size}).floats()),
      neighbours(file.get("neighbours", FLOAT32, {2, vector_size}).floats()),
      compare(arithmetic, file, "compare", size, 4 * vector_size, false,
              {vector_size, 2 * vector_size, 3 * vector_size, 4 * vector_size}) {}

Alignment::Workspace Alignment::workspace() const {
  Workspace work;
  work.seen = Buffer<float>(vector_size);
  work.inputs = Buffer<float>(4 * vector_size);
  work.units = Buffer<uint32_t>(BLOCK * compare.packed.units);
  work.scales = Buffer<float>(BLOCK * compare.packed.groups);
  work.compared = Buffer<float>(BLOCK * compare.packed.out);
  return work;
}

void Alignment::read_tokens(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                            float* scratch, std::vector<float>& found) const {
  const auto count = static_cast<int64_t>(rows.size()), width = 2 * vector_size;
  found.resize(static_cast<size_t>(count * width));
  for (int64_t t = 0; t < count; ++t) {
    float* const vector = found.data() + t * width;
    arithmetic.encode(table, &rows[t], 1, vector, scratch);  // the sum of one row: its numbers as floats
    const float *factors = norm, *shifts = norm + vector_size;
    const float offset = offsets ? offsets[rows[t]] : 0;
    for (int64_t i = 0; i < vector_size; ++i) vector[i] = (vector[i] + offset) * factors[i] + shifts[i];
  }
  const float *of_previous = neighbours, *of_next = neighbours + vector_size;
  for (int64_t t = 0; t < count; ++t) {
    const float* const vector = found.data() + t * width;
    float* const contextual = found.data() + t * width + vector_size;
    std::copy_n(vector, vector_size, contextual);
    if (t > 0)
      for (int64_t i = 0; i < vector_size; ++i) contextual[i] += of_previous[i] * vector[i - width];
    if (t + 1 < count)
      for (int64_t i = 0; i < vector_size; ++i) contextual[i] += of_next[i] * vector[i + width];
  }
}

void Alignment::represent(const Kernels& arithmetic, Workspace& work, float* features) const {
  for (int side = 0; side < 2; ++side) represent_side(arithmetic, work, side, features + side * 2 * compare.size);
}

void Alignment::represent_side(const Kernels& arithmetic, Workspace& work, int side, float* features) const {
  const int64_t width = 2 * vector_size;
  const auto tokens = [&](const std::vector<float>& rows) {
    return TokenRows{rows.data(), static_cast<int64_t>(rows.size()) / width, width, vector_size};
  };
  const TokenRows own = tokens(work.rows[side]), other = tokens(work.rows[1 - side]);
  const PackedLayer& layer = compare.packed;
  work.shares.resize(static_cast<size_t>(other.count));
  float* const sum = features;
  float* const max = features + compare.size;
  std::fill_n(features, 2 * compare.size, 0.0f);  // comparisons are not below 0
  for (int64_t begin = 0; begin < own.count; begin += BLOCK) {
    const int64_t count = std::min(BLOCK, own.count - begin);
    for (int64_t t = 0; t < count; ++t) {
      const float *vector = own.data + (begin + t) * width, *contextual = vector + vector_size;
      float *const seen = work.seen.data(), *const inputs = work.inputs.data();
      arithmetic.attend(vector, other, work.shares.data(), seen);
      for (int64_t i = 0; i < vector_size; ++i) {
        inputs[i] = contextual[i];
        inputs[vector_size + i] = seen[i];
        inputs[2 * vector_size + i] = contextual[i] * seen[i];
        inputs[3 * vector_size + i] = std::fabs(contextual[i] - seen[i]);
      }
      arithmetic.prepare(layer, inputs, work.units.data() + t * layer.units, work.scales.data() + t * layer.groups);
    }
    arithmetic.multiply(layer, work.units.data(), work.scales.data(), count, work.compared.data());
    for (int64_t t = 0; t < count; ++t) {
      float* const numbers = work.compared.data() + t * layer.out;
      compare.activate(arithmetic, numbers);
      for (int64_t i = 0; i < compare.size; ++i) {
        sum[i] += numbers[i];
        max[i] = std::max(max[i], numbers[i]);
      }
    }
  }
}
