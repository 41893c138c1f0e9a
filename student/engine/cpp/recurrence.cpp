// Students with an element-wise recurrence: from the rows of a text's tokens to the last states, maxima and minima.
#include <algorithm>
#include <cmath>
#include <limits>

#include "student.h"

namespace {

constexpr double EPSILON = 1e-5;  // of torch's LayerNorm
constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t LONGEST = 16;  // numbers of a vector, on any level
enum : int64_t { GATES, VALUES };

const float* weights_of(const File& file, int64_t vector_size, int64_t size) {
  return file.get("steps", FLOAT32, {4 * size, vector_size}).floats();
}

}  // namespace

Recurrence::Recurrence(const Kernels& arithmetic, const File& file, int64_t num_rows, int64_t vector_size, int64_t size,
                       bool is_rounded)
    : vector_size_(vector_size), size_(size), padded_((size + LONGEST - 1) / LONGEST * LONGEST),
      norm_(file.get("norm", FLOAT32, {2, vector_size}).floats()),
      bias_(file.get("steps.bias", FLOAT32, {4 * size}).floats()),
      layer_(arithmetic, {weights_of(file, vector_size, size), FLOAT32, nullptr, 4 * size, vector_size, nullptr, 0},
             {{0, vector_size, 0}}),
      number_(is_rounded ? FLOAT16 : FLOAT32),
      steps_(num_rows, 4 * padded_, INT64_MAX, number_) {}

// LayerNorm.
void Recurrence::normalise(float* vector) const {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < vector_size_; ++i) mean += vector[i];
  mean /= static_cast<double>(vector_size_);
  for (int64_t i = 0; i < vector_size_; ++i) variance += (vector[i] - mean) * (vector[i] - mean);
  const double factor = 1 / std::sqrt(variance / static_cast<double>(vector_size_) + EPSILON);
  for (int64_t i = 0; i < vector_size_; ++i)
    vector[i] = static_cast<float>((vector[i] - mean) * factor) * norm_[i] + norm_[vector_size_ + i];
}

// The gates and values of both ways, which tokens of these rows have wherever they stand.
void Recurrence::make(const Kernels& arithmetic, const RowTable& table, const int32_t* rows, int64_t count,
                      float* out) const {
  const int64_t features = table.features(), width = layer_.packed.out;
  std::vector<float> vectors(static_cast<size_t>(count * features)), scratch(static_cast<size_t>(2 * table.width));
  std::vector<float> made(static_cast<size_t>(LayerPart::room(count) * width));
  for (int64_t n = 0; n < count; ++n) {
    float* const vector = vectors.data() + n * features;
    arithmetic.encode(table, rows + n, 1, vector, scratch.data());  // the sum of one row: its numbers as floats
    normalise(vector);
  }
  layer_.multiply(arithmetic, vectors.data(), features, count, made.data());
  std::fill_n(out, count * 4 * padded_, 0.0f);
  for (int64_t n = 0; n < count; ++n, out += 4 * padded_)
    for (const int64_t part : {GATES, VALUES})
      for (const int64_t way : {0, 1}) {
        float* const place = out + (2 * way + part) * padded_;
        const int64_t first = (2 * part + way) * size_;
        const float* const numbers = made.data() + n * width + first;
        for (int64_t i = 0; i < size_; ++i) place[i] = numbers[i] + bias_[first + i];
        for (int64_t i = 0; part == GATES && i < size_; ++i) place[i] = std::tanh(place[i]);
      }
}

void Recurrence::keep(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows) const {
  steps_.keep(rows, [&](auto... made) { make(arithmetic, table, made...); });
}

// The states after one way, and their maxima and minima. A token's gates and values of a way lie beside each other.
void Recurrence::pass(const Kernels& arithmetic, const std::vector<const void*>& steps, bool is_back,
                      float* states) const {
  const auto count = static_cast<int64_t>(steps.size());
  const int64_t by = is_back ? -1 : 1, begin = is_back ? 2 * padded_ : 0;
  const void* const* const first = steps.data() + (is_back ? count - 1 : 0);
  std::fill_n(states, padded_, 0.0f);
  std::fill_n(states + padded_, padded_, -INFINITE);
  std::fill_n(states + 2 * padded_, padded_, INFINITE);
  for (int64_t t = 0; t < count; t += PIECE) {
    const int64_t now = std::min(PIECE, count - t), ahead = std::min(PIECE, count - t - now);
    arithmetic.recur(first + t * by, number_, now, ahead, by, begin, padded_, states);
  }
}

void Recurrence::represent(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                           std::vector<const void*>& steps, float* features) const {
  keep(arithmetic, table, rows);
  steps.clear();
  for (const int32_t row : rows) steps.push_back(steps_.find(row));
  if (steps.empty()) return std::fill_n(features, this->features(), 0.0f), void();
  std::vector<float> states(static_cast<size_t>(3 * padded_));
  for (const bool is_back : {false, true}) {
    pass(arithmetic, steps, is_back, states.data());
    for (int64_t part = 0; part < 3; ++part) features = std::copy_n(states.data() + part * padded_, size_, features);
  }
}
