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
      kept_(num_rows, vector_size + 6 * compare.of_input().packed.out) {}

Alignment::Workspace Alignment::workspace() const {
  const PackedLayer& packed = compare.of_input().packed;
  Workspace work;
  work.seen = Buffer<float>(width());
  work.inputs = Buffer<float>(2 * vector_size);
  work.units = Buffer<uint32_t>(BLOCK * packed.units);
  work.scales = Buffer<float>(BLOCK * packed.num_groups);
  work.compared = Buffer<float>(BLOCK * packed.out);
  work.biases = Buffer<float>(BLOCK * packed.out);
  return work;
}

// Of each row: the token's vector, and what the layer makes of it, which is part of its own contextual vector and of its
// neighbours', as that of a text's own and of another one's.
void Alignment::make(const Kernels& arithmetic, const RowTable& table, const int32_t* rows, int64_t count,
                     float* out) const {
  const int64_t width = compare.of_input().packed.out, kept = vector_size + 6 * width;
  std::vector<float> parts(static_cast<size_t>(count * vector_size)), scratch(static_cast<size_t>(2 * table.width));
  std::vector<float> made(static_cast<size_t>(LayerPart::room(count) * width));
  for (int64_t n = 0; n < count; ++n) {
    float* const vector = out + n * kept;
    arithmetic.encode(table, rows + n, 1, vector, scratch.data());  // the sum of one row: its numbers as floats
    const float offset = offsets ? offsets[rows[n]] : 0;
    for (int64_t i = 0; i < vector_size; ++i) vector[i] = (vector[i] + offset) * norm[i] + norm[vector_size + i];
  }
  for (int64_t place = 0; place < 6; ++place) {
    const float* const factors = place < 2 ? nullptr : neighbours + (place / 2 - 1) * vector_size;
    for (int64_t n = 0; n < count; ++n)
      for (int64_t i = 0; i < vector_size; ++i)
        parts[n * vector_size + i] = out[n * kept + i] * (factors ? factors[i] : 1);
    compare.of_token(place % 2 ? OTHERS : OWN).multiply(arithmetic, parts.data(), vector_size, count, made.data());
    for (int64_t n = 0; n < count; ++n)
      std::copy_n(made.data() + n * width, width, out + n * kept + vector_size + place * width);
  }
}

void Alignment::read_tokens(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                            Workspace& work, int side) const {
  const auto count = static_cast<int64_t>(rows.size()), out = compare.of_input().packed.out;
  auto& kept = work.kept;
  kept.clear();
  work.spares.resize(std::max(work.spares.size(), rows.size()));
  for (int64_t t = 0; t < count; ++t)
    kept.push_back(kept_.of(rows[t], work.spares[t], [&](auto... made) { make(arithmetic, table, made...); }));
  work.vectors[side].resize(static_cast<size_t>(count * vector_size));
  work.own[side].resize(static_cast<size_t>(count * out));
  work.rows[side].assign(static_cast<size_t>(count * width()), 0);
  for (int64_t t = 0; t < count; ++t) {
    float* const own = work.own[side].data() + t * out;
    float* const contextual = work.rows[side].data() + t * width();
    std::copy_n(kept[t], vector_size, work.vectors[side].data() + t * vector_size);
    std::copy_n(kept[t], vector_size, contextual);
    std::copy_n(compare.bias, compare.size, own);
    const float *of_own[3], *of_others[3];
    int64_t there = 0;
    for (int64_t beside = std::max(t - 1, int64_t{0}); beside <= std::min(t + 1, count - 1); ++beside) {
      const int64_t place = beside == t ? 0 : beside < t ? 1 : 2;
      of_own[there] = kept[beside] + vector_size + 2 * place * out;
      of_others[there++] = kept[beside] + vector_size + (2 * place + 1) * out;
      const float* const factors = neighbours + (place - 1) * vector_size;
      for (int64_t i = 0; place && i < vector_size; ++i) contextual[i] += factors[i] * kept[beside][i];
    }
    arithmetic.add_rows(of_own, there, out, own);
    arithmetic.add_rows(of_others, there, out, contextual + vector_size);
  }
}

void Alignment::keep(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows) const {
  kept_.keep(rows, [&](auto... made) { make(arithmetic, table, made...); });
}

// The products of all vectors of the first text with all of the second one, and the other way round.
void Alignment::multiply_vectors(const Kernels& arithmetic, Workspace& work) const {
  const int64_t first = count(work, 0), second = count(work, 1);
  for (auto& shares : work.shares) shares.resize(static_cast<size_t>(first * second));
  const std::vector<float> none(static_cast<size_t>(second), 0.0f);
  for (int64_t t = 0; t < first; ++t) {
    float* const products = work.shares[0].data() + t * second;
    arithmetic.linear(work.vectors[0].data() + t * vector_size, vector_size, work.vectors[1].data(), none.data(), second,
                      products);
    for (int64_t k = 0; k < second; ++k) work.shares[1][k * first + t] = products[k];
  }
}

// What is multiplied of a token, and what is added to the product, as token `n` of a block.
void Alignment::prepare(const Kernels& arithmetic, Workspace& work, int side, int64_t token, int64_t n) const {
  const PackedLayer& layer = compare.of_input().packed;
  const TokenRows others{work.rows[1 - side].data(), count(work, 1 - side), width()};
  const float* const contextual = work.rows[side].data() + token * width();
  float *const seen = work.seen.data(), *const inputs = work.inputs.data();
  // Products of normalised vectors have this deviation.
  const float scale = 1 / std::sqrt(static_cast<float>(vector_size));
  arithmetic.attend(others, scale, work.shares[side].data() + token * others.count, seen);
  for (int64_t i = 0; i < vector_size; ++i) {
    inputs[i] = contextual[i] * seen[i];
    inputs[vector_size + i] = std::fabs(contextual[i] - seen[i]);
  }
  arithmetic.prepare(layer, inputs, work.units.data() + n * layer.units, work.scales.data() + n * layer.num_groups);
  const float *of_own = work.own[side].data() + token * layer.out, *of_seen = seen + vector_size;
  float* const biases = work.biases.data() + n * layer.out;
  for (int64_t i = 0; i < compare.size; ++i) biases[i] = of_own[i] + of_seen[i];
}

void Alignment::represent(const Kernels& arithmetic, Workspace& work, float* features) const {
  const PackedLayer& layer = compare.of_input().packed;
  const int64_t first = count(work, 0), total = first + count(work, 1);
  multiply_vectors(arithmetic, work);
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
