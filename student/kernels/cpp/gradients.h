// The gradient of a chain of products X_1 X_2 … X_n, going back from its end.
//
// With P the product before a matrix and H the transposed gradient of the product up to it, the gradient of the matrix
// is (H P)^T, and X H is the transposed gradient of what comes before. So only what is written has to be transposed.
#pragma once
#include <cstdlib>
#include <new>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "chain.h"

// A row per token, of what the tables have.
struct Gradients {
  float *vectors, *forward, *backward;  // null where there is no table
  bool streamed;                        // larger than the caches: written past them
};

// A streaming store skips reading the old line from memory, but it needs aligned addresses.
INLINE void put(float* to, const float* from, int64_t count, bool streamed) {
#ifdef __SSE2__
  if (streamed && count % 4 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    for (int64_t i = 0; i < count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
    return;
  }
#endif
  std::memcpy(to, from, sizeof(float) * count);
}

// Memory of a thread that is kept from call to call.
class Scratch {
 public:
  ~Scratch() { std::free(start_); }
  float* of(int64_t count) {
    if (count > count_) {
      std::free(start_);
      start_ = static_cast<float*>(std::aligned_alloc(64, (sizeof(float) * count + 63) / 64 * 64));
      if (!start_) throw std::bad_alloc();
      count_ = count;
    }
    return start_;
  }

 private:
  float* start_ = nullptr;
  int64_t count_ = 0;
};

template <class Size>
class Back {
 public:
  explicit Back(Size size) : size_(size) {}

  void clear() { clear_state(size_, gradient_); }

  // Adds the gradient of the product up to here, a matrix without gaps.
  INLINE void add(const float* matrix) {
    alignas(64) float copy[Size::CAPACITY];
    add_transposed(size_, gradient_, whole_rows(size_, matrix, copy));
  }

  // Writes the gradient of `matrix`, before which comes the product `before`, and steps over it.
  template <class Before>
  INLINE void step(const float* matrix, Before before, float* out, bool streamed) {
    multiply<false>(size_, result_, gradient_, before, matrix);
    alignas(64) float rows[Size::CAPACITY], state[Size::CAPACITY];
    transposed_to_rows(size_, rows_, result_);
    rows_to_state(size_, state, whole_rows(size_, matrix, rows));
    multiply<false>(size_, result_, state, State{gradient_, size_.blocks()}, matrix);
    // `multiply` must not write to its left operand, so two states take turns.
    std::swap(result_, gradient_);
    write(out, streamed);
  }

  // The gradient of the first matrix, before which there is nothing.
  INLINE void finish(float* out, bool streamed) {
    transposed_to_rows(size_, rows_, gradient_);
    write(out, streamed);
  }

 private:
  INLINE void write(float* out, bool streamed) {
    alignas(64) float matrix[Size::CAPACITY];
    const bool whole = size_.whole();
    if (!whole) write_rows(size_, matrix, rows_);
    put(out, whole ? rows_ : matrix, size_.side() * size_.side(), streamed);
  }

  Size size_;
  alignas(64) float states_[2][Size::CAPACITY];
  alignas(64) float rows_[Size::CAPACITY];
  float *gradient_ = states_[0], *result_ = states_[1];
};
