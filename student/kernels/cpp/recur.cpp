// Element-wise recurrences (student/encoders/recurrent.py): the states of sentences in both directions, and their pooling.
//
// Both ways lie side by side in a token's numbers: those of the way there, then those of the way back.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "export.h"

// What Python hands over, see student/kernels/native_sequences.py.
struct Steps {
  const float *gates, *values;  // of all tokens, 2 * size numbers each
  const int64_t* starts;        // of the sentences
  int64_t sentences;
  int64_t size;                 // of a state
  int64_t threads;
};

namespace {

// A sentence in the order in which one way reads it.
struct Way {
  int64_t first, by, length;
  int64_t token(int64_t place) const { return first + place * by; }
};

Way way_of(const Steps& steps, int64_t sentence, bool is_back) {
  const int64_t start = steps.starts[sentence], stop = steps.starts[sentence + 1];
  return is_back ? Way{stop - 1, -1, stop - start} : Way{start, 1, stop - start};
}

void read(const Steps& steps, Way way, int64_t begin, float* states, float* pooled) {
  const int64_t size = steps.size, width = 2 * size;
  float *__restrict last = pooled, *__restrict max = pooled + size, *__restrict min = pooled + 2 * size;
  for (float* part : {last, max, min}) std::fill_n(part, size, 0.0f);
  for (int64_t k = 0; k < way.length; k++) {
    const int64_t at = way.token(k) * width + begin;
    const float *gates = steps.gates + at, *values = steps.values + at;
    float* __restrict state = states + at;
    for (int64_t i = 0; i < size; i++) {
      // Before the first token, the state is 0, as is `last`.
      const float number = gates[i] * last[i] + values[i];
      state[i] = last[i] = number;
      max[i] = k == 0 || number > max[i] ? number : max[i];
      min[i] = k == 0 || number < min[i] ? number : min[i];
    }
  }
}

// From the last token to the first, because a state changes all states after it.
void read_backward(const Steps& steps, Way way, int64_t begin, const float* states, const float* pooled,
                   const float* gradient, std::vector<float>& work, float* of_gates, float* of_values) {
  const int64_t size = steps.size, width = 2 * size;
  const float *max = pooled + size, *min = pooled + 2 * size;
  work.assign(gradient, gradient + 3 * size);
  float *__restrict of_state = work.data(), *__restrict of_max = of_state + size, *__restrict of_min = of_max + size;
  for (int64_t k = way.length - 1; k >= 0; k--) {
    const int64_t at = way.token(k) * width + begin;
    const float *gates = steps.gates + at, *state = states + at;
    const float* before = k ? states + way.token(k - 1) * width + begin : nullptr;
    for (int64_t i = 0; i < size; i++) {
      // The last of equal states gets the gradient of the maximum, and nothing is left for the others.
      const bool is_max = state[i] == max[i], is_min = state[i] == min[i];
      const float slope = of_state[i] + (is_max ? of_max[i] : 0.0f) + (is_min ? of_min[i] : 0.0f);
      of_max[i] = is_max ? 0.0f : of_max[i];
      of_min[i] = is_min ? 0.0f : of_min[i];
      of_values[at + i] = slope;
      of_gates[at + i] = before ? slope * before[i] : 0.0f;
      of_state[i] = slope * gates[i];
    }
  }
}

// Makes a call for each sentence and each way. Each writes numbers of its own, so results do not depend on threads.
template <class Call>
void for_each_way(const Steps& steps, Call call) {
#pragma omp parallel num_threads(steps.threads)
  {
    std::vector<float> work;
#pragma omp for schedule(dynamic, 4)
    for (int64_t n = 0; n < 2 * steps.sentences; n++) {
      const bool is_back = n % 2;
      call(way_of(steps, n / 2, is_back), is_back * steps.size, n * 3 * steps.size, work);
    }
  }
}

}  // namespace

// Writes the state after each token, and for each sentence the last state, the maxima and the minima of each way. All are
// 0 for an empty one.
EXPORT void recur(const Steps* steps, float* states, float* pooled) {
  for_each_way(*steps, [=](Way way, int64_t begin, int64_t place, std::vector<float>&) {
    read(*steps, way, begin, states, pooled + place);
  });
}

// Writes the gradients of gates and values from that of `pooled`.
EXPORT void recur_backward(const Steps* steps, const float* states, const float* pooled, const float* gradient,
                           float* of_gates, float* of_values) {
  for_each_way(*steps, [=](Way way, int64_t begin, int64_t place, std::vector<float>& work) {
    read_backward(*steps, way, begin, states, pooled + place, gradient + place, work, of_gates, of_values);
  });
}
