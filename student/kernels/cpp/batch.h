// What Python hands over (see student/kernels/native.py), and how it is shared out among threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "matrix.h"
#include "numbers.h"

struct Batch {
  const void *vectors, *forward, *backward;  // tables; null where there is none
  int64_t vectors_stride, forward_stride, backward_stride;
  int64_t height;                            // rows of a table
  int64_t vector_size;                       // 0 where there is no such table
  int64_t max_size;                          // the vector's size where maxima are wanted, or 0
  int64_t side;                              // 0 where there is no such table
  int64_t number;                            // 0 float, 1 Half, 2 Brain
  const int64_t *ids, *starts;
  int64_t tokens, sequences, threads;

  template <class Number>
  Table<Number> vector_table() const {
    return {vectors, vector_size, vectors_stride};
  }
  template <class Number>
  Table<Number> forward_table() const {
    return {forward, matrix_size(), forward_stride};
  }
  template <class Number>
  Table<Number> backward_table() const {
    return {backward, matrix_size(), backward_stride};
  }
  int64_t matrix_size() const { return side * side; }
  int64_t features() const { return vector_size + max_size + (!!forward + !!backward) * matrix_size(); }
  int64_t token_features() const { return features() + (backward ? vector_size : 0); }
};

// Neighbouring sequences, for one thread.
struct Part {
  int64_t first, last;
};

// The parts have about equally many tokens. A sequence is never cut: its result is the same for any number of threads.
inline Part part_of(const Batch& batch, int64_t number, int64_t parts) {
  const int64_t* end = batch.starts + batch.sequences;
  const auto sequence_at = [&](int64_t token) { return std::lower_bound(batch.starts, end, token) - batch.starts; };
  return {number == 0 ? 0 : sequence_at(batch.tokens * number / parts),
          number + 1 == parts ? batch.sequences : sequence_at(batch.tokens * (number + 1) / parts)};
}

// Calls `work` with the size of the matrices and the type of the tables' numbers, once per part.
template <class Work>
void in_parts(const Batch& batch, Work work) {
#pragma omp parallel for num_threads(batch.threads) schedule(static, 1)
  for (int64_t number = 0; number < batch.threads; number++) work(part_of(batch, number, batch.threads));
}

template <class Work>
void with_size(const Batch& batch, Work work) {
  // These are the sides of the paper's students (20 for Hybrid, 28 for CMOW). Other sides use slower loops.
  if (batch.side == 20) return work(Fixed<5>{});
  if (batch.side == 28) return work(Fixed<7>{});
  work(Any{static_cast<int>(batch.side)});
}

template <class Work>
void with_number(const Batch& batch, Work work) {
  if (batch.number == 0) return work(float{});
  if (batch.number == 1) return work(Half{});
  work(Brain{});
}
