// Products of rows of floats, as matrices of a few rows need them.
#pragma once
#include "numbers.h"

// The sum of sixteen numbers, always in the same order.
INLINE float total(const Floats& floats) {
  float sum = 0;
  for (int64_t i = 0; i < SIXTEEN; i++) sum += floats[i];
  return sum;
}

template <int COUNT>
INLINE void few_dots(const float* row, const float* others, int64_t stride, int64_t size, float* out) {
  Floats sums[COUNT] = {};
  in_sixteens(row, size, [&](const Floats& floats, int64_t i, int64_t count) __attribute__((always_inline)) {
    UNROLL for (int k = 0; k < COUNT; k++) {
      Floats other = {};
      std::memcpy(&other, others + k * stride + i, sizeof(float) * count);
      sums[k] += floats * other;
    }
  });
  UNROLL for (int k = 0; k < COUNT; k++) out[k] = total(sums[k]);
}

// The dot products of a row with each of `count` others, which are `stride` numbers apart. Four at a time hide each
// other's latency.
inline void dots(const float* row, const float* others, int64_t stride, int64_t count, int64_t size, float* out) {
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) few_dots<4>(row, others + k * stride, stride, size, out + k);
  for (; k < count; k++) few_dots<1>(row, others + k * stride, stride, size, out + k);
}

// sum += the rows, each times its weight. The weights are `between` numbers apart, the rows `stride`.
inline void add_weighted(float* sum, const float* weights, int64_t between, const float* rows, int64_t stride,
                         int64_t count, int64_t size) {
  int64_t k = 0;
  // A sum is read and written once for four rows.
  for (; k + 4 <= count; k += 4, weights += 4 * between, rows += 4 * stride) {
    const float a = weights[0], b = weights[between], c = weights[2 * between], d = weights[3 * between];
    for (int64_t i = 0; i < size; i++)
      sum[i] += a * rows[i] + b * rows[stride + i] + c * rows[2 * stride + i] + d * rows[3 * stride + i];
  }
  for (; k < count; k++, weights += between, rows += stride)
    for (int64_t i = 0; i < size; i++) sum[i] += weights[0] * rows[i];
}
