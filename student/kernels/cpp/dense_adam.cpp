// Adam on whole arrays, several at once: for a small head the calls cost more than the work.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "adam.h"
#include "export.h"

namespace {

struct Parameter {
  float* value;
  float* m;
  float* v;
  const float* gradient;
  int64_t size;
};

struct Piece {
  int parameter;
  int64_t start, size;
};

// Pieces of 16 KB let threads share one large parameter, and several arrays of them fit a first-level cache.
constexpr int64_t PIECE = 4096;
// Fewer pieces than this take less time than waking a second thread.
constexpr int FEW = 16;

std::vector<Piece> pieces(const Parameter* parameters, int count) {
  std::vector<Piece> result;
  for (int k = 0; k < count; k++)
    for (int64_t start = 0; start < parameters[k].size; start += PIECE)
      result.push_back({k, start, std::min(PIECE, parameters[k].size - start)});
  return result;
}

}  // namespace

// The sum of the squares of all gradients, the same for any number of threads.
EXPORT double dense_squares(const Parameter* parameters, int count, int threads) {
  const auto all = pieces(parameters, count);
  const auto number = static_cast<int64_t>(all.size());
  std::vector<double> squares(number);
#pragma omp parallel for num_threads(threads) schedule(static) if (number > FEW)
  for (int64_t i = 0; i < number; i++)
    squares[i] = sum_of_squares(parameters[all[i].parameter].gradient + all[i].start, all[i].size);
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

// Step number `step` of AdamW, with the gradients times `scale`.
EXPORT void dense_adam(const Parameter* parameters, int count, int64_t step, double beta1, double beta2,
                       double rate, double weight_decay, double eps, double scale, int threads) {
  const auto all = pieces(parameters, count);
  const auto number = static_cast<int64_t>(all.size());
  const Rates rates(beta1, beta2, eps, step, rate, weight_decay, scale);
#pragma omp parallel for num_threads(threads) schedule(static) if (number > FEW)
  for (int64_t i = 0; i < number; i++) {
    const Parameter& p = parameters[all[i].parameter];
    const int64_t start = all[i].start;
    adam(p.value + start, p.m + start, p.v + start, p.gradient + start, all[i].size, rates);
  }
}
