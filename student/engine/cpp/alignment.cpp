// Students whose texts see each other: from the rows of two texts' tokens to the features of the pair.
#include <algorithm>
#include <cmath>

#include "student.h"

namespace {

enum { OWN, OTHERS };  // the inputs of the layer that come from tokens: their contextual vectors, and those of the other text

}  // namespace

Alignment::Alignment(const Kernels& arithmetic, const File& file, int64_t num_rows, int64_t vector_size, int64_t size)
    : vector_size(vector_size),
      offsets(file.has("rows.offset") ? file.get("rows.offset", FLOAT32, {num_rows}).floats() : nullptr),
      norm(file.get("norm", FLOAT32, {2, vector_size}).floats()),
      neighbours(file.get("neighbours", FLOAT32, {2, vector_size}).floats()),
      compare(arithmetic, file, "compare", size, 0, false,
              {{vector_size, OWN}, {vector_size, OTHERS}, {vector_size}, {vector_size}}),
      products_(num_rows, 6 * compare.of_input().packed.out) {}

Alignment::Workspace Alignment::workspace() const {
  const PackedLayer& packed = compare.of_input().packed;
  Workspace work;
  work.seen = Buffer<float>(width() - vector_size);
  work.inputs = Buffer<float>(2 * vector_size);
  work.units = Buffer<uint32_t>(BLOCK * packed.units);
  work.scales = Buffer<float>(BLOCK * packed.num_groups);
  work.compared = Buffer<float>(BLOCK * packed.out);
  work.biases = Buffer<float>(BLOCK * packed.out);
  return work;
}

// What the layer makes of a token's vector, which is part of its own contextual vector, and of its neighbours'.
void Alignment::make_products(const Kernels& arithmetic, const float* vector, float* out) const {
  std::vector<float> part(vector, vector + vector_size);
  for (int place = 0; place < 3; ++place, out += 2 * compare.of_input().packed.out) {
    if (place)
      for (int64_t i = 0; i < vector_size; ++i) part[i] = neighbours[(place - 1) * vector_size + i] * vector[i];
    compare.of_token(OWN).multiply(arithmetic, part.data(), vector_size, 1, out);
    compare.of_token(OTHERS).multiply(arithmetic, part.data(), vector_size, 1, out + compare.of_input().packed.out);
  }
}

void Alignment::read_tokens(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                            float* scratch, Workspace& work, int side) const {
  const auto count = static_cast<int64_t>(rows.size()), out = compare.of_input().packed.out;
  auto &found = work.rows[side], &own = work.own[side];
  found.assign(static_cast<size_t>(count * width()), 0);
  own.assign(static_cast<size_t>(count * out), 0);
  const auto place = [&](int64_t t) { return found.data() + t * width(); };
  for (int64_t t = 0; t < count; ++t) {
    float* const vector = place(t);
    arithmetic.encode(table, &rows[t], 1, vector, scratch);  // the sum of one row: its numbers as floats
    const float *factors = norm, *shifts = norm + vector_size;
    const float offset = offsets ? offsets[rows[t]] : 0;
    for (int64_t i = 0; i < vector_size; ++i) vector[i] = (vector[i] + offset) * factors[i] + shifts[i];
    const float* products = products_.of(rows[t], work.spare, [&](const int32_t*, int64_t, float* to) {
      make_products(arithmetic, vector, to);
    });
    // Of itself, of the next token, whose previous one it is, and of the previous one.
    for (const int64_t to : {t, t + 1, t - 1}) {
      if (to >= 0 && to < count) {
        arithmetic.add_row(products, FLOAT32, 1, out, own.data() + to * out);
        arithmetic.add_row(products + out, FLOAT32, 1, out, place(to) + 2 * vector_size);
      }
      products += 2 * out;
    }
  }
  const float *of_previous = neighbours, *of_next = neighbours + vector_size;
  for (int64_t t = 0; t < count; ++t) {
    const float* const vector = place(t);
    float* const contextual = place(t) + vector_size;
    std::copy_n(vector, vector_size, contextual);
    if (t > 0)
      for (int64_t i = 0; i < vector_size; ++i) contextual[i] += of_previous[i] * vector[i - width()];
    if (t + 1 < count)
      for (int64_t i = 0; i < vector_size; ++i) contextual[i] += of_next[i] * vector[i + width()];
  }
}

// What is multiplied of a token, and what is added to the product, as token `n` of a block.
void Alignment::prepare(const Kernels& arithmetic, Workspace& work, int side, int64_t token, int64_t n) const {
  const PackedLayer& layer = compare.of_input().packed;
  const auto& other = work.rows[1 - side];
  const TokenRows rows{other.data(), static_cast<int64_t>(other.size()) / width(), width(), vector_size};
  const float *vector = work.rows[side].data() + token * width(), *contextual = vector + vector_size;
  float *const seen = work.seen.data(), *const inputs = work.inputs.data();
  work.shares.resize(static_cast<size_t>(rows.count));
  arithmetic.attend(vector, rows, work.shares.data(), seen);
  for (int64_t i = 0; i < vector_size; ++i) {
    inputs[i] = contextual[i] * seen[i];
    inputs[vector_size + i] = std::fabs(contextual[i] - seen[i]);
  }
  arithmetic.prepare(layer, inputs, work.units.data() + n * layer.units, work.scales.data() + n * layer.num_groups);
  const float *of_own = work.own[side].data() + token * layer.out, *of_seen = seen + vector_size;
  float* const biases = work.biases.data() + n * layer.out;
  for (int64_t i = 0; i < compare.size; ++i) biases[i] = compare.bias[i] + of_own[i] + of_seen[i];
}

void Alignment::represent(const Kernels& arithmetic, Workspace& work, float* features) const {
  const PackedLayer& layer = compare.of_input().packed;
  const auto first = static_cast<int64_t>(work.rows[0].size()) / width();
  const int64_t total = first + static_cast<int64_t>(work.rows[1].size()) / width();
  std::fill_n(features, this->features(), 0.0f);  // comparisons are not below 0
  for (int64_t begin = 0; begin < total; begin += BLOCK) {
    const int64_t end = std::min(begin + BLOCK, total);
    for (int64_t t = begin; t < end; ++t) prepare(arithmetic, work, t >= first, t < first ? t : t - first, t - begin);
    arithmetic.multiply(layer, work.units.data(), work.scales.data(), end - begin, work.compared.data());
    for (int64_t t = begin; t < end; ++t) {
      float* const numbers = work.compared.data() + (t - begin) * layer.out;
      arithmetic.activate(numbers, compare.size, work.biases.data() + (t - begin) * layer.out, false);
      float* const sum = features + (t < first ? 0 : 2 * compare.size);
      float* const max = sum + compare.size;
      for (int64_t i = 0; i < compare.size; ++i) {
        sum[i] += numbers[i];
        max[i] = std::max(max[i], numbers[i]);
      }
    }
  }
}
