// A product that grows by a matrix at a time.
#pragma once
#include "numbers.h"
#include "product.h"

// The matrix in a table's row, as rows of whole blocks: where it is, or a copy.
template <class Size, class Number>
INLINE const float* table_rows(Size size, const Number* matrix, float* copy) {
  if constexpr (!IS_RESIDUAL<Number>) {
    return whole_rows(size, matrix, copy);
  } else {
    const int side = size.side(), stride = 4 * size.blocks();
    if (!size.whole()) std::memset(copy, 0, sizeof(float) * stride * stride);
    for (int row = 0; row < side; row++)
      for (int column = 0; column < side; column++)
        copy[row * stride + column] = to_float(matrix[row * side + column]);
    return copy;
  }
}

// out = before * matrix of a table's row, or the matrix itself where nothing is before.
template <class Size, class Number>
INLINE void append(Size size, float* out, const float* before, const Number* matrix, const Number* ahead) {
  alignas(64) float copy[Size::CAPACITY];
  const float* rows = table_rows(size, matrix, copy);
  if (before) return multiply<IS_RESIDUAL<Number>>(size, out, before, Rows{rows, size.blocks()}, ahead);
  prefetch(ahead, size.side() * size.side());
  rows_to_state(size, out, rows);
  if (IS_RESIDUAL<Number>) add_identity(size, out);
}

template <class Size>
class Chain {
 public:
  explicit Chain(Size size) : size_(size) {}

  void clear() { current_ = nullptr; }

  template <class Number>
  INLINE void append(const Number* matrix, const Number* ahead) {
    float* next = current_ == states_[0] ? states_[1] : states_[0];
    ::append(size_, next, current_, matrix, ahead);
    current_ = next;
  }

  // The product so far, as a matrix without gaps; the identity if there is nothing yet.
  INLINE void write(float* matrix) {
    if (!current_) {
      current_ = states_[0];
      ::clear(size_, current_);
      add_identity(size_, current_);
    }
    if (size_.whole()) return state_to_rows(size_, matrix, current_);
    alignas(64) float rows[Size::CAPACITY];
    state_to_rows(size_, rows, current_);
    write_rows(size_, matrix, rows);
  }

 private:
  Size size_;
  alignas(64) float states_[2][Size::CAPACITY];
  float* current_ = nullptr;
};
