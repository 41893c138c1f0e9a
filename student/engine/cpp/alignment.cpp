// Students whose texts see each other: from the rows of two texts' tokens to the features of the pair.
#include <algorithm>
#include <cmath>

#include "student.h"

namespace {

constexpr int64_t MOST_NUMBERS = 1 << 28;  // a gigabyte: a small file could ask for all memory otherwise

int64_t checked(int64_t rows, int64_t size) {
  require(rows <= MOST_NUMBERS / size, "there are too many rows, or comparisons are too wide");
  return rows * size;
}

}  // namespace

Alignment::Alignment(const Kernels& arithmetic, const File& file, const RowTable& table, int64_t num_rows,
                     int64_t size)
    : vector_size(table.vector_size),
      project(arithmetic, file, "project", 2 * size, vector_size, false, {vector_size}, false),
      compare(arithmetic, file, "compare", size, 2 * vector_size, false, {vector_size, 2 * vector_size}),
      projected_(checked(num_rows, 2 * size)) {
  project_rows(arithmetic, table, num_rows);
}

void Alignment::project_rows(const Kernels& arithmetic, const RowTable& table, int64_t num_rows) {
  const PackedLayer& layer = project.packed;
  Buffer<float> vector(vector_size), scratch(2 * table.width), scales(BLOCK * layer.groups), out(BLOCK * layer.out);
  Buffer<uint32_t> units(BLOCK * layer.units);
  for (int64_t begin = 0; begin < num_rows; begin += BLOCK) {
    const int64_t count = std::min(BLOCK, num_rows - begin);
    for (int64_t k = 0; k < count; ++k) {
      const auto row = static_cast<int32_t>(begin + k);
      arithmetic.encode(table, &row, 1, vector.data(), scratch.data());
      arithmetic.prepare(layer, vector.data(), units.data() + k * layer.units, scales.data() + k * layer.groups);
    }
    arithmetic.multiply(layer, units.data(), scales.data(), count, out.data());
    for (int64_t k = 0; k < count; ++k)
      std::copy_n(out.data() + k * layer.out, project.size, projected_.data() + (begin + k) * project.size);
  }
}

Alignment::Workspace Alignment::workspace() const {
  Workspace work;
  work.seen = Buffer<float>(vector_size + compare.size);
  work.inputs = Buffer<float>(2 * vector_size);
  work.linear = Buffer<float>(BLOCK * compare.size);
  work.units = Buffer<uint32_t>(BLOCK * compare.packed.units);
  work.scales = Buffer<float>(BLOCK * compare.packed.groups);
  work.compared = Buffer<float>(BLOCK * compare.packed.out);
  return work;
}

TokenRows Alignment::tokens(const std::vector<float>& rows) const {
  const int64_t width = vector_size + project.size;
  return {rows.data(), static_cast<int64_t>(rows.size()) / width, width, vector_size, vector_size + compare.size};
}

void Alignment::read_tokens(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                            float* scratch, std::vector<float>& found) const {
  found.resize(rows.size() * static_cast<size_t>(vector_size + project.size));
  float* place = found.data();
  for (const int32_t row : rows) {
    arithmetic.encode(table, &row, 1, place, scratch);  // the sum of one row: its numbers as floats
    place = std::copy_n(projected_.data() + row * project.size, project.size, place + vector_size);
  }
}

void Alignment::represent(const Kernels& arithmetic, Workspace& work, float* features) const {
  for (int side = 0; side < 2; ++side) represent_side(arithmetic, work, side, features + side * 2 * compare.size);
}

void Alignment::represent_side(const Kernels& arithmetic, Workspace& work, int side, float* features) const {
  const TokenRows own = tokens(work.rows[side]), other = tokens(work.rows[1 - side]);
  const PackedLayer& layer = compare.packed;
  work.shares.resize(static_cast<size_t>(other.count));
  float* const sum = features;
  float* const max = features + compare.size;
  std::fill_n(features, 2 * compare.size, 0.0f);  // comparisons are not below 0
  for (int64_t begin = 0; begin < own.count; begin += BLOCK) {
    const int64_t count = std::min(BLOCK, own.count - begin);
    float* const compared = work.compared.data();
    for (int64_t t = 0; t < count; ++t) {
      const float *x = own.data + (begin + t) * own.width, *seen = work.seen.data();
      const float *own_part = x + vector_size + compare.size, *seen_part = seen + vector_size;
      float *inputs = work.inputs.data(), *linear = work.linear.data() + t * compare.size;
      arithmetic.attend(x, other, work.shares.data(), work.seen.data());
      for (int64_t i = 0; i < vector_size; ++i) {
        inputs[i] = x[i] * seen[i];
        inputs[vector_size + i] = std::fabs(x[i] - seen[i]);
      }
      for (int64_t i = 0; i < compare.size; ++i) linear[i] = own_part[i] + seen_part[i];
      arithmetic.prepare(layer, inputs, work.units.data() + t * layer.units, work.scales.data() + t * layer.groups);
    }
    arithmetic.multiply(layer, work.units.data(), work.scales.data(), count, compared);
    for (int64_t t = 0; t < count; ++t) {
      float* const numbers = compared + t * layer.out;
      for (int64_t i = 0; i < compare.size; ++i) numbers[i] += work.linear.data()[t * compare.size + i];
      compare.activate(arithmetic, numbers);
      for (int64_t i = 0; i < compare.size; ++i) {
        sum[i] += numbers[i];
        max[i] = std::max(max[i], numbers[i]);
      }
    }
  }
}
