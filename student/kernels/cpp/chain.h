// A product that grows by a matrix at a time.
#pragma once
#include "numbers.h"
#include "product.h"

// out = before * matrix of a table's row, or the matrix itself where nothing is before.
template <class Size, class Number>
INLINE void append_matrix(Size size, float* out, const float* before, const Number* matrix, const Number* ahead) {
  alignas(64) float numbers[Size::CAPACITY], copy[Size::CAPACITY];
  const float* rows = whole_rows(size, as_floats(matrix, size.side() * size.side(), numbers), copy);
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
    append_matrix(size_, next, current_, matrix, ahead);
    current_ = next;
  }

  // The product so far, as a matrix without gaps; the identity if there is nothing yet.
  INLINE void write(float* matrix) {
    if (!current_) {
      current_ = states_[0];
      clear_state(size_, current_);
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
