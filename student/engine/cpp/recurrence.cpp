// Students with an element-wise recurrence: from the rows of a text's tokens to the last states, maxima and minima.
#include <cmath>

#include "student.h"

namespace {

constexpr double EPSILON = 1e-5;  // of torch's LayerNorm

}  // namespace

Recurrence::Recurrence(const File& file, int64_t num_rows, int64_t vector_size, int64_t size)
    : vector_size_(vector_size), size_(size), norm_(file.get("norm", FLOAT32, {2, vector_size}).floats()),
      weights_(file.get("steps", FLOAT32, {4 * size, vector_size}).floats()),
      bias_(file.get("steps.bias", FLOAT32, {4 * size}).floats()), steps_(num_rows, 4 * size, INT64_MAX) {}

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
  arithmetic.linear(vector.data(), vector_size_, weights_, bias_, 4 * size_, out);
  for (int64_t i = 0; i < 2 * size_; ++i) out[i] = std::tanh(out[i]);
}

void Recurrence::represent(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                           std::vector<const float*>& steps, float* scratch, float* features) const {
  steps.clear();
  std::vector<float> spare;
  for (const int32_t row : rows)
    steps.push_back(
        steps_.of(row, spare, [&](float* out) { make_steps(arithmetic, table, row, scratch, out); }));
  const auto count = static_cast<int64_t>(steps.size());
  arithmetic.recur(steps.data(), count, 1, 0, 2 * size_, size_, features);
  arithmetic.recur(steps.data() + (count ? count - 1 : 0), count, -1, size_, 2 * size_, size_, features + 3 * size_);
}
