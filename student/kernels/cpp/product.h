// The product of a state and a matrix. While it is computed, a row that is needed later is fetched from memory.
#pragma once
#include "matrix.h"

template <class Number>
INLINE void prefetch(const Number* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / sizeof(Number)) __builtin_prefetch(from + i);
}

template <int K, int HEIGHT, int WIDTH, class Right>
INLINE void step(Vector (&sum)[HEIGHT][WIDTH], const Vector (&left)[HEIGHT], Right right, int row, int J) {
  Vector factor[HEIGHT];
  UNROLL for (int i = 0; i < HEIGHT; i++) factor[i] = spread<K>(left[i]);
  UNROLL for (int j = 0; j < WIDTH; j++) {
    const Vector numbers = repeat(right.at(row + K, J + j));
    UNROLL for (int i = 0; i < HEIGHT; i++) sum[i][j] += factor[i] * numbers;
  }
}

// HEIGHT vectors from row `top` down, WIDTH blocks from block column J on, of left * right; KEEP: of left + left * right.
// Fetches as many numbers of `ahead` as there are in these rows, a little in each step.
template <int HEIGHT, int WIDTH, bool KEEP, class Right, class Number>
INLINE void tile(float* out, const float* left, Right right, int n, int top, int J, const Number* ahead) {
  const auto place = [n](int row, int block) { return ((row / 4 * n + block) * 4 + row % 4) * 4; };
  Vector sum[HEIGHT][WIDTH];
  UNROLL for (int i = 0; i < HEIGHT; i++)
    UNROLL for (int j = 0; j < WIDTH; j++)
      sum[i][j] = KEEP ? load_vector(left + place(top + i * LANE_ROWS, J + j)) : Vector{};
#pragma GCC unroll 1
  for (int K = 0; K < n; K++) {
    Vector numbers[HEIGHT];
    UNROLL for (int i = 0; i < HEIGHT; i++) numbers[i] = load_vector(left + place(top + i * LANE_ROWS, K));
    if (J == 0)
      UNROLL for (int i = 0; i < HEIGHT; i++)
        prefetch(ahead + ((top + i * LANE_ROWS) * n + K * LANE_ROWS) * 4, LANE_ROWS * 4);
    step<0>(sum, numbers, right, 4 * K, J);
    step<1>(sum, numbers, right, 4 * K, J);
    step<2>(sum, numbers, right, 4 * K, J);
    step<3>(sum, numbers, right, 4 * K, J);
  }
  UNROLL for (int i = 0; i < HEIGHT; i++)
    UNROLL for (int j = 0; j < WIDTH; j++) store_vector(out + place(top + i * LANE_ROWS, J + j), sum[i][j]);
}

// Where there are tiles of several widths, they are not compiled anew in every place that multiplies.
template <int HEIGHT, int WIDTH, bool KEEP, class Right, class Number>
__attribute__((noinline)) void called_tile(float* out, const float* left, Right right, int n, int top, int J,
                                           const Number* ahead) {
  tile<HEIGHT, WIDTH, KEEP>(out, left, right, n, top, J, ahead);
}

template <int HEIGHT, bool KEEP, class Size, class Right, class Number>
INLINE void row_of_tiles(Size size, float* out, const float* left, Right right, int top, const Number* ahead) {
  const int n = size.blocks();
  if constexpr (Size::CAPACITY <= 16 * WIDE * WIDE) {
    tile<HEIGHT, Size::blocks(), KEEP>(out, left, right, n, top, 0, ahead);
  } else {
    int J = 0;
    for (; J + 4 <= n; J += 4) called_tile<HEIGHT, 4, KEEP>(out, left, right, n, top, J, ahead);
    if (n - J == 3) called_tile<HEIGHT, 3, KEEP>(out, left, right, n, top, J, ahead);
    if (n - J == 2) called_tile<HEIGHT, 2, KEEP>(out, left, right, n, top, J, ahead);
    if (n - J == 1) called_tile<HEIGHT, 1, KEEP>(out, left, right, n, top, J, ahead);
  }
}

// out = left * right, or left + left * right. `out` and `left` are states and not the same.
template <bool KEEP, class Size, class Right, class Number>
INLINE void multiply(Size size, float* out, const float* left, Right right, const Number* ahead) {
  const int rows = 4 * size.blocks();
  int top = 0;
  for (; top + TALL * LANE_ROWS <= rows; top += TALL * LANE_ROWS)
    row_of_tiles<TALL, KEEP>(size, out, left, right, top, ahead);
  if constexpr (TALL == 3) {
    if (rows - top == 2 * LANE_ROWS) row_of_tiles<2, KEEP>(size, out, left, right, top, ahead);
    if (rows - top == LANE_ROWS) row_of_tiles<1, KEEP>(size, out, left, right, top, ahead);
  }
}
