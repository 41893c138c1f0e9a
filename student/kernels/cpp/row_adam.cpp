// Adam on the rows that a batch uses; what the moves are is explained in student/kernels/lazy_adam.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "adam.h"
#include "export.h"

namespace {

// A table with its moments, and a gradient row per token of the batch. All tables are used with the same ids.
struct Table {
  float* values;
  float* ms;
  float* vs;
  float* gradients;
  int64_t width, stride, moments_stride;  // the strides: from row to row

  float* value(int64_t row) const { return values + row * stride; }
  float* m(int64_t row) const { return ms + row * moments_stride; }
  float* v(int64_t row) const { return vs + row * moments_stride; }
  float* gradient(int64_t token) const { return gradients + token * width; }
};

// What the rows have missed: the arrays of LazyAdamTerms.
struct Missed {
  int64_t* row;            // by row: the step its values are up to date with
  int64_t* moments;        // by row: the step its moments are up to date with
  double* large;           // by step, from `first`
  double* small;           // by step, from `first`
  double* kept;            // by step, from `first`: what weight decay has left of a value since the first step
  const double* large_powers;
  const double* small_powers;
  int64_t powers;  // how many; the last is that of the step just taken
  int64_t first, step;
  double beta1, beta2;

  // Records a step, for which there has to be room; see LazyAdamTerms.record_step.
  void take_step(double rate, double weight_decay) {
    step++;
    const int64_t now = step - first, some = std::min(now, powers);
    kept[now] = kept[now - 1] * (1 - rate * weight_decay);
    const double by_eps = rate / (1 - std::pow(beta1, step)) / kept[now];
    const double by_root = by_eps * std::sqrt(1 - std::pow(beta2, step));
    for (int64_t i = 1; i <= some; i++) {
      small[now - i] += by_eps * small_powers[powers - i];
      large[now - i] += by_root * large_powers[powers - i];
    }
  }
};

constexpr int LINE = 64;
constexpr double TINY = 1.17549435e-38;  // no move at all, as with a learning rate of 0, must divide nothing by 0

void prefetch(const float* row, int64_t width) {
  for (int64_t i = 0; i < width; i += LINE / sizeof(float)) __builtin_prefetch(row + i, 1);
}

void prefetch_row(const Table* tables, int count, int64_t row) {
  for (int k = 0; k < count; k++) {
    prefetch(tables[k].value(row), tables[k].width);
    prefetch(tables[k].m(row), tables[k].width);
    prefetch(tables[k].v(row), tables[k].width);
  }
}

void move(float* __restrict value, const float* __restrict m, const float* __restrict v, int64_t width, float kept,
          float over_large, float eps_over_small) {
#pragma omp simd
  for (int64_t i = 0; i < width; i++) value[i] = kept * value[i] - m[i] / (std::sqrt(v[i]) * over_large + eps_over_small);
}

}  // namespace

// Groups the tokens of a batch by row, those of the padding left out. Writes the distinct rows in the order of their
// first tokens, where each one's tokens start, and the tokens by row. Returns how many rows there are, or -1 - t if the
// id of token t is not a row.
EXPORT int64_t group_rows(const int64_t* ids, int64_t count, int64_t num_rows, int64_t padding, int64_t* rows,
                          int64_t* starts, int64_t* tokens) {
  // The slots stay allocated and zero between calls: clearing a whole vocabulary would cost more than the batch.
  static thread_local std::vector<int32_t> slots;  // of each row: 0, or one more than its place among the distinct ones
  if (static_cast<int64_t>(slots.size()) < num_rows) slots.resize(num_rows);
  // All ids are checked before the first slot is written, so an error leaves the slots zero.
  for (int64_t t = 0; t < count; t++)
    if (ids[t] < 0 || ids[t] >= num_rows) return -1 - t;
  int64_t distinct = 0;
  for (int64_t t = 0; t < count; t++) {
    if (ids[t] == padding) continue;
    int32_t& slot = slots[ids[t]];
    if (slot == 0) {
      rows[distinct] = ids[t];
      starts[distinct] = 0;
      slot = static_cast<int32_t>(++distinct);
    }
    starts[slot - 1]++;
  }
  int64_t next = 0;
  for (int64_t u = 0; u < distinct; u++) {
    const int64_t size = starts[u];
    starts[u] = next;
    next += size;
  }
  for (int64_t t = 0; t < count; t++)
    if (ids[t] != padding) tokens[starts[slots[ids[t]] - 1]++] = t;
  // Filling `tokens` has moved each start to the end of its group, which is the start of the next one.
  for (int64_t u = distinct; u > 0; u--) starts[u] = starts[u - 1];
  starts[0] = 0;
  for (int64_t u = 0; u < distinct; u++) slots[rows[u]] = 0;
  return distinct;
}

// Adds up the gradients of each row's tokens, in the gradient row of its first token; returns the sum of all squares,
// the same for any number of threads.
EXPORT double sum_gradients(const Table* tables, int count, const int64_t* starts, const int64_t* tokens,
                            int64_t distinct, int threads) {
  std::vector<double> squares(distinct);
// Threads share rows and never tokens of one row, so sums have the same order for any number of threads.
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t u = 0; u < distinct; u++) {
    for (int k = 0; k < count; k++) {
      const int64_t width = tables[k].width;
      float* __restrict sum = tables[k].gradient(tokens[starts[u]]);
      for (int64_t i = starts[u] + 1; i < starts[u + 1]; i++) {
        const float* __restrict other = tables[k].gradient(tokens[i]);
#pragma omp simd
        for (int64_t j = 0; j < width; j++) sum[j] += other[j];
      }
      squares[u] += sum_of_squares(sum, width);
    }
  }
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

// Brings the values of rows (all different) to where dense Adam would have them after the last step.
EXPORT void catch_up(const Table* tables, int count, const int64_t* rows, int64_t num_rows, const Missed* missed,
                     double eps, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t u = 0; u < num_rows; u++) {
    const int64_t row = rows[u], since = missed->row[row];
    // Rows lie far apart, so the next one is fetched from memory while this one is computed.
    if (u + 1 < num_rows) prefetch_row(tables, count, rows[u + 1]);
    if (since == missed->step) continue;
    const int64_t s = since - missed->first;
    const double gap = static_cast<double>(since - missed->moments[row]);
    const double kept = missed->kept[missed->step - missed->first];
    const double decay1 = gap == 0 ? 1 : std::pow(missed->beta1, gap);
    const double decay2 = gap == 0 ? 1 : std::pow(missed->beta2, gap / 2);
    const double large = kept * missed->large[s] * decay1 / decay2, small = kept * missed->small[s] * decay1;
    for (int k = 0; k < count; k++) {
      const Table& table = tables[k];
      move(table.value(row), table.m(row), table.v(row), table.width,
           static_cast<float>(kept / missed->kept[s]), static_cast<float>(1 / std::fmax(large, TINY)),
           static_cast<float>(eps / std::fmax(small, TINY)));
    }
    missed->row[row] = missed->step;
  }
}

// One step of AdamW on rows (all different, up to date); the gradient of rows[u] is that of token tokens[starts[u]].
// `missed` is as it was after the step before, and is told of this one.
EXPORT void adam_step(const Table* tables, int count, const int64_t* rows, int64_t num_rows, const int64_t* starts,
                      const int64_t* tokens, Missed* missed, double rate, double weight_decay, double eps, double scale,
                      int threads) {
  const int64_t step = missed->step + 1;
  const Rates rates(missed->beta1, missed->beta2, eps, step, rate, weight_decay, scale);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t u = 0; u < num_rows; u++) {
    const int64_t row = rows[u];
    if (u + 1 < num_rows) prefetch_row(tables, count, rows[u + 1]);
    const double gap = static_cast<double>(step - missed->moments[row]);
    const Rates now = rates.after(gap);
    for (int k = 0; k < count; k++) {
      const Table& table = tables[k];
      adam(table.value(row), table.m(row), table.v(row), table.gradient(tokens[starts[u]]), table.width, now);
    }
    missed->row[row] = missed->moments[row] = step;
  }
  // The step is recorded after the loop, because `after` counts only the steps before it.
  missed->take_step(rate, weight_decay);
}
