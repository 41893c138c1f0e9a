// Matrices of any side up to 64: between rows, as tables and features hold them, and states of 4 x 4 blocks.
#pragma once
#include <cstdint>

#include "blocks.h"

constexpr int LARGEST_SIDE = 64;

// How many blocks a side has: known when compiled, for the sides that are to be fast, or only when run. What is missing
// in the last block is 0.
template <int BLOCKS>
struct Fixed {
  static constexpr int CAPACITY = 16 * BLOCKS * BLOCKS;
  static constexpr int side() { return 4 * BLOCKS; }
  static constexpr int blocks() { return BLOCKS; }
  // With sizes known at compile time, all loops over blocks unroll and the copies below disappear.
  static constexpr bool whole() { return true; }
};

struct Any {
  static constexpr int CAPACITY = LARGEST_SIDE * LARGEST_SIDE;
  int side_;
  int side() const { return side_; }
  int blocks() const { return (side_ + 3) / 4; }
  bool whole() const { return side_ % 4 == 0; }
};

// Where the 4 numbers from column 4 * J of a row lie: in rows of whole blocks, or in a state.
struct Rows {
  const float* start;
  int blocks;
  INLINE const float* at(int row, int J) const { return start + (row * blocks + J) * 4; }
};

struct State {
  const float* start;
  int blocks;
  INLINE const float* at(int row, int J) const { return start + ((row / 4 * blocks + J) * 4 + row % 4) * 4; }
};

// The matrix with rows of whole blocks: itself, or a copy.
template <class Size>
INLINE const float* whole_rows(Size size, const float* matrix, float* copy) {
  if (size.whole()) return matrix;
  const int side = size.side(), stride = 4 * size.blocks();
  std::memset(copy, 0, sizeof(float) * stride * stride);
  for (int row = 0; row < side; row++) std::memcpy(copy + row * stride, matrix + row * side, sizeof(float) * side);
  return copy;
}

// The opposite, in place for all but the last step: writes rows of whole blocks as a matrix without gaps.
template <class Size>
INLINE void write_rows(Size size, float* matrix, const float* rows) {
  const int side = size.side(), stride = 4 * size.blocks();
  if (size.whole()) {
    std::memcpy(matrix, rows, sizeof(float) * side * side);
  } else {
    for (int row = 0; row < side; row++) std::memcpy(matrix + row * side, rows + row * stride, sizeof(float) * side);
  }
}

template <class Size>
INLINE void rows_to_state(Size size, float* state, const float* rows) {
  const int n = size.blocks();
  for (int I = 0; I < n; I++)
    for (int J = 0; J < n; J++) store_block(state + (I * n + J) * 16, load_rows(rows + (I * n * 4 + J) * 4, 4 * n));
}

template <class Size>
INLINE void state_to_rows(Size size, float* rows, const float* state) {
  const int n = size.blocks();
  for (int I = 0; I < n; I++)
    for (int J = 0; J < n; J++) store_rows(rows + (I * n * 4 + J) * 4, 4 * n, load_block(state + (I * n + J) * 16));
}

template <class Size>
INLINE void transposed_to_rows(Size size, float* rows, const float* state) {
  const int n = size.blocks();
  for (int I = 0; I < n; I++)
    for (int J = 0; J < n; J++)
      store_rows(rows + (I * n * 4 + J) * 4, 4 * n, transposed(load_block(state + (J * n + I) * 16)));
}

template <class Size>
INLINE void add_transposed(Size size, float* state, const float* rows) {
  const int n = size.blocks();
  for (int I = 0; I < n; I++)
    for (int J = 0; J < n; J++) {
      float* block = state + (I * n + J) * 16;
      store_block(block, load_block(block) + transposed(load_rows(rows + (J * n * 4 + I) * 4, 4 * n)));
    }
}

template <class Size>
INLINE void add_identity(Size size, float* state) {
  for (int i = 0; i < size.side(); i++) state[(i / 4 * (size.blocks() + 1)) * 16 + i % 4 * 5] += 1;
}

template <class Size>
INLINE void clear_state(Size size, float* state) {
  std::memset(state, 0, sizeof(float) * 16 * size.blocks() * size.blocks());
}
