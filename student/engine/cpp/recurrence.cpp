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

}  // namespace

Recurrence::Recurrence(const File& file, int64_t num_rows, int64_t vector_size, int64_t size)
    : vector_size_(vector_size), size_(size), padded_((size + LONGEST - 1) / LONGEST * LONGEST),
      norm_(file.get("norm", FLOAT32, {2, vector_size}).floats()),
      weights_(file.get("steps", FLOAT32, {4 * size, vector_size}).floats()),
      bias_(file.get("steps.bias", FLOAT32, {4 * size}).floats()), steps_(num_rows, 4 * padded_, INT64_MAX) {}

// The gates of both ways and the values of both ways, which a token of this row has wherever it stands.
void Recurrence::make_steps(const Kernels& arithmetic, const RowTable& table, int32_t row, float* scratch,
                            float* out) const {
  std::vector<float> vector(static_cast<size_t>(table.features()));
  arithmetic.encode(table, &row, 1, vector.data(), scratch);  // the sum of one row: its numbers as floats
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < vector_size_; ++i) mean += vector[static_cast<size_t>(i)];
  mean /= static_cast<double>(vector_size_);
  for (int64_t i = 0; i < vector_size_; ++i) {
    const double apart = vector[static_cast<size_t>(i)] - mean;
    variance += apart * apart;
  }
  const double factor = 1 / std::sqrt(variance / static_cast<double>(vector_size_) + EPSILON);
  for (int64_t i = 0; i < vector_size_; ++i) {
    float& number = vector[static_cast<size_t>(i)];
    number = static_cast<float>((number - mean) * factor) * norm_[i] + norm_[vector_size_ + i];
  }
  std::fill_n(out, 4 * padded_, 0.0f);
  for (const int64_t part : {GATES, VALUES})
    for (const int64_t way : {0, 1}) {
      float* const place = out + (2 * way + part) * padded_;
      const int64_t first = (2 * part + way) * size_;
      arithmetic.linear(vector.data(), vector_size_, weights_ + first * vector_size_, bias_ + first, size_, place);
      for (int64_t i = 0; part == GATES && i < size_; ++i) place[i] = std::tanh(place[i]);
    }
}

// The states after one way, and their maxima and minima. A token's gates and values of a way lie beside each other.
void Recurrence::pass(const Kernels& arithmetic, const std::vector<const float*>& steps, bool is_back,
                      float* states) const {
  const auto count = static_cast<int64_t>(steps.size());
  const int64_t by = is_back ? -1 : 1, begin = is_back ? 2 * padded_ : 0;
  const float* const* const first = steps.data() + (is_back ? count - 1 : 0);
  std::fill_n(states, padded_, 0.0f);
  std::fill_n(states + padded_, padded_, -INFINITE);
  std::fill_n(states + 2 * padded_, padded_, INFINITE);
  for (int64_t t = 0; t < count; t += PIECE) {
    for (int64_t ahead = t + PIECE; ahead < std::min(t + 2 * PIECE, count); ++ahead)
      fetch(first[ahead * by] + begin, 2 * padded_ * static_cast<int64_t>(sizeof(float)));
    arithmetic.recur(first + t * by, std::min(PIECE, count - t), by, begin, padded_, states);
  }
}

void Recurrence::represent(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                           std::vector<const float*>& steps, float* scratch, float* features) const {
  steps.clear();
  std::vector<float> spare;
  for (const int32_t row : rows)
    steps.push_back(
        steps_.of(row, spare, [&](float* out) { make_steps(arithmetic, table, row, scratch, out); }));
  if (steps.empty()) return std::fill_n(features, this->features(), 0.0f), void();
  std::vector<float> states(static_cast<size_t>(3 * padded_));
  for (const bool is_back : {false, true}) {
    pass(arithmetic, steps, is_back, states.data());
    for (int64_t part = 0; part < 3; ++part) features = std::copy_n(states.data() + part * padded_, size_, features);
  }
}
