// Aligned pairs (student/encoders/aligned.py) without padding: the inputs of each token's comparison, and pooling.
//
// A row is a token's vector, between which attention is, and its contextual vector beside it, which is compared.
#include <algorithm>
#include <cmath>
#include <vector>

#include "export.h"
#include "dots.h"

// What Python hands over, see student/kernels/native_sequences.py.
struct Pairs {
  const float* rows;      // of all tokens
  const int64_t* starts;  // of the sentences
  int64_t sentences, pairs;
  int64_t size;           // of a vector
  int64_t threads;
  float scale;            // of the scores
};

namespace {

struct Sentence {
  int64_t start, length;
};

// The second sentences follow the first ones. With as many pairs as sentences, each sentence is beside itself.
void sentences_of(const Pairs& pairs, int64_t pair, Sentence (&found)[2]) {
  for (int side = 0; side < 2; side++) {
    const int64_t n = pair + side * (pairs.sentences - pairs.pairs);
    found[side] = {pairs.starts[n], pairs.starts[n + 1] - pairs.starts[n]};
  }
}

// A sentence beside itself has one side.
int sides(const Pairs& pairs) { return pairs.sentences == pairs.pairs ? 1 : 2; }

struct Work {
  std::vector<float> scores, shares[2], slopes[2], of_seen;  // the last: gradients of what each token sees
};

// The shares of the other sentence's tokens for each token of this side: the softmax of its scores.
void find_shares(const Pairs& pairs, const Sentence (&both)[2], Work& work) {
  const int64_t width = 2 * pairs.size, L = both[0].length, K = both[1].length;
  work.scores.resize(L * K);
  const float *x = pairs.rows + both[0].start * width, *y = pairs.rows + both[1].start * width;
  for (int64_t l = 0; l < L; l++) dots(x + l * width, y, width, K, pairs.size, work.scores.data() + l * K);
  for (int side = 0; side < sides(pairs); side++) {
    const int64_t own = both[side].length, other = both[1 - side].length;
    work.shares[side].resize(own * other);
    for (int64_t l = 0; l < own && other; l++) {
      float* share = work.shares[side].data() + l * other;
      for (int64_t k = 0; k < other; k++) share[k] = pairs.scale * work.scores[side == 0 ? l * K + k : k * K + l];
      const float largest = *std::max_element(share, share + other);
      float sum = 0;
      for (int64_t k = 0; k < other; k++) sum += share[k] = std::exp(share[k] - largest);
      for (int64_t k = 0; k < other; k++) share[k] /= sum;
    }
  }
}

// The gradients of a token's contextual vector z, to be added, and of what it sees, c, from that of its inputs
// [z, c, z * c, |z - c|].
void inputs_backward(const float* inputs, const float* gradient, int64_t size, float* __restrict of_z,
                     float* __restrict of_c) {
  const float *z = inputs, *c = inputs + size;
  for (int64_t i = 0; i < size; i++) {
    const float apart = z[i] - c[i], distance = gradient[3 * size + i];
    // As in torch, a distance of 0 has no slope.
    const float slope = apart > 0 ? distance : apart < 0 ? -distance : 0.0f;
    of_z[i] += gradient[i] + gradient[2 * size + i] * c[i] + slope;
    of_c[i] = gradient[size + i] + gradient[2 * size + i] * z[i] - slope;
  }
}

void align_pair(const Pairs& pairs, int64_t pair, Work& work, float* inputs) {
  const int64_t size = pairs.size, width = 2 * size;
  Sentence both[2];
  sentences_of(pairs, pair, both);
  find_shares(pairs, both, work);
  for (int side = 0; side < sides(pairs); side++) {
    const Sentence own = both[side], other = both[1 - side];
    const float* contextual = pairs.rows + other.start * width + size;
    for (int64_t l = 0; l < own.length; l++) {
      const float* z = pairs.rows + (own.start + l) * width + size;
      float *const out = inputs + (own.start + l) * 2 * width, *const c = out + size;
      std::fill_n(c, size, 0.0f);
      add_weighted(c, work.shares[side].data() + l * other.length, 1, contextual, width, other.length, size);
      for (int64_t i = 0; i < size; i++) {
        out[i] = z[i];
        out[2 * size + i] = z[i] * c[i];
        out[3 * size + i] = std::fabs(z[i] - c[i]);
      }
    }
  }
}

// The slopes of a side's scores, and the gradients of both sentences' contextual vectors.
void side_backward(const Pairs& pairs, const Sentence (&both)[2], int side, Work& work, const float* inputs,
                   const float* gradient, float* out) {
  const int64_t size = pairs.size, width = 2 * size;
  const Sentence own = both[side], other = both[1 - side];
  work.of_seen.resize(own.length * size);
  work.slopes[side].resize(own.length * other.length);
  for (int64_t l = 0; l < own.length; l++) {
    const int64_t t = own.start + l;
    float* of_seen = work.of_seen.data() + l * size;
    inputs_backward(inputs + t * 2 * width, gradient + t * 2 * width, size, out + t * width + size, of_seen);
    const float* share = work.shares[side].data() + l * other.length;
    float* slope = work.slopes[side].data() + l * other.length;
    dots(of_seen, pairs.rows + other.start * width + size, width, other.length, size, slope);
    float mean = 0;
    for (int64_t k = 0; k < other.length; k++) mean += share[k] * slope[k];
    for (int64_t k = 0; k < other.length; k++) slope[k] = pairs.scale * share[k] * (slope[k] - mean);
  }
  for (int64_t k = 0; k < other.length; k++)
    add_weighted(out + (other.start + k) * width + size, work.shares[side].data() + k, other.length, work.of_seen.data(),
                 size, own.length, size);
}

void align_pair_backward(const Pairs& pairs, int64_t pair, Work& work, const float* inputs, const float* gradient,
                         float* out) {
  const int64_t size = pairs.size, width = 2 * size;
  Sentence both[2];
  sentences_of(pairs, pair, both);
  // Shares are computed again: keeping them would need memory for each pair of tokens.
  find_shares(pairs, both, work);
  for (int side = 0; side < sides(pairs); side++) side_backward(pairs, both, side, work, inputs, gradient, out);
  const int64_t L = both[0].length, K = both[1].length;
  float* slopes = work.slopes[0].data();
  if (sides(pairs) == 2)
    for (int64_t l = 0; l < L; l++)
      for (int64_t k = 0; k < K; k++) slopes[l * K + k] += work.slopes[1][k * L + l];
  const float *x = pairs.rows + both[0].start * width, *y = pairs.rows + both[1].start * width;
  float *of_x = out + both[0].start * width, *of_y = out + both[1].start * width;
  for (int64_t l = 0; l < L; l++) add_weighted(of_x + l * width, slopes + l * K, 1, y, width, K, size);
  for (int64_t k = 0; k < K; k++) add_weighted(of_y + k * width, slopes + k, K, x, width, L, size);
}

// Makes a call for each number below `count`, with buffers of the thread. Each writes rows of its own, so results do not
// depend on the number of threads.
template <class Call>
void in_threads(int64_t count, int64_t threads, Call call) {
#pragma omp parallel num_threads(threads)
  {
    Work work;
#pragma omp for schedule(dynamic)
    for (int64_t n = 0; n < count; n++) call(n, work);
  }
}

}  // namespace

// Writes the inputs of comparisons, 4 * size numbers a token.
EXPORT void align(const Pairs* pairs, float* inputs) {
  in_threads(pairs->pairs, pairs->threads, [=](int64_t n, Work& work) { align_pair(*pairs, n, work, inputs); });
}

// Adds the gradient of the rows to `out`, from what `align` wrote and its gradient.
EXPORT void align_backward(const Pairs* pairs, const float* inputs, const float* gradient, float* out) {
  in_threads(pairs->pairs, pairs->threads,
             [=](int64_t n, Work& work) { align_pair_backward(*pairs, n, work, inputs, gradient, out); });
}

// Writes the sum and the maxima of each sentence's comparisons, of which those below 0 count as 0. This takes a hundredth
// of a step, so it does not wake other threads.
EXPORT void pool(const float* compared, const int64_t* starts, int64_t sentences, int64_t size, float* out) {
  std::fill_n(out, 2 * sentences * size, 0.0f);
  for (int64_t n = 0; n < sentences; n++, out += 2 * size)
    for (int64_t t = starts[n]; t < starts[n + 1]; t++) {
      const float* numbers = compared + t * size;
      for (int64_t i = 0; i < size; i++) {
        const float positive = std::max(numbers[i], 0.0f);
        out[i] += positive;
        out[size + i] = std::max(out[size + i], positive);
      }
    }
}

// Writes the gradient of the comparisons. Tokens that share a maximum share its gradient, as in torch's `amax`.
EXPORT void pool_backward(const float* compared, const int64_t* starts, int64_t sentences, int64_t size,
                          const float* pooled, const float* gradient, float* out) {
  std::vector<float> of_max(size);
  for (int64_t n = 0; n < sentences; n++, pooled += 2 * size, gradient += 2 * size) {
    const float* max = pooled + size;
    std::fill(of_max.begin(), of_max.end(), 0.0f);
    for (int64_t t = starts[n]; t < starts[n + 1]; t++)
      for (int64_t i = 0; i < size; i++) of_max[i] += compared[t * size + i] == max[i];
    for (int64_t i = 0; i < size; i++) of_max[i] = gradient[size + i] / std::max(of_max[i], 1.0f);
    for (int64_t t = starts[n]; t < starts[n + 1]; t++)
      for (int64_t i = 0; i < size; i++) {
        const float number = compared[t * size + i];
        out[t * size + i] = number > 0 ? gradient[i] + (number == max[i] ? of_max[i] : 0.0f) : 0.0f;
      }
  }
}
