// The gradient of every token's rows from the gradient of the sequences' representations.
#include "batch.h"
#include "export.h"
#include "gradients.h"

namespace {

// A sequence in the order of its product.
struct Walk {
  int64_t first, by, length;
  int64_t token(int64_t place) const { return first + place * by; }
};

// The products before each matrix are computed again: keeping them would cost more memory than the rows themselves.
template <class Size>
void chain_backward(Size size, const Batch& batch, Walk walk, Table<float> matrices, const float* gradient, float* out,
                    bool streamed, Scratch& scratch) {
  if (walk.length == 0) return;
  const auto row = [&](int64_t place) { return matrices.row(batch.ids[walk.token(place)]); };
  float* products = scratch.of(walk.length * Size::CAPACITY);
  // The last product is the feature itself, and no matrix needs it as what comes before.
  for (int64_t i = 0; i + 1 < walk.length; i++) {
    const float* before = i ? products + (i - 1) * Size::CAPACITY : nullptr;
    append_matrix(size, products + i * Size::CAPACITY, before, row(i), row(std::min(i + 2, walk.length - 1)));
  }
  Back<Size> back(size);
  back.clear();
  back.add(gradient);
  for (int64_t i = walk.length - 1; i > 0; i--) {
    const State before{products + (i - 1) * Size::CAPACITY, size.blocks()};
    back.step(row(i), before, out + walk.token(i) * matrices.width, streamed);
  }
  back.finish(out + walk.token(0) * matrices.width, streamed);
}

// The largest numbers of rows `from` to `to`, of which there is one at least.
void find_max(const Batch& batch, int64_t from, int64_t to, float* max) {
  const auto vectors = batch.vector_table<float>();
  std::copy_n(vectors.row(batch.ids[from]), vectors.width, max);
  for (int64_t t = from + 1; t < to; t++) {
    const float* row = vectors.row(batch.ids[t]);
    for (int64_t k = 0; k < vectors.width; k++) max[k] = row[k] > max[k] ? row[k] : max[k];
  }
}

// The gradient of a maximum goes to the first token that holds it, that of the sum to all.
void vectors_backward(const Batch& batch, int64_t start, int64_t stop, const float* gradient, float* out, bool streamed,
                      Scratch& scratch) {
  const int64_t E = batch.vector_size;
  if (!batch.max_size || start == stop) {
    for (int64_t t = start; t < stop; t++) put(out + t * E, gradient, E, streamed);
    return;
  }
  float *__restrict max = scratch.of(3 * E), *__restrict left = max + E, *__restrict whole = left + E;
  find_max(batch, start, stop, max);
  std::copy_n(gradient + E, E, left);
  for (int64_t t = start; t < stop; t++) {
    const float* row = batch.vector_table<float>().row(batch.ids[t]);
    // After the first token that holds the maximum, nothing is left for later ones, as in torch's `max`.
    for (int64_t k = 0; k < E; k++) {
      const bool holds = row[k] == max[k];
      whole[k] = gradient[k] + (holds ? left[k] : 0.0f);
      left[k] = holds ? 0.0f : left[k];
    }
    put(out + t * E, whole, E, streamed);
  }
}

template <class Size>
void reduce_backward_part(const Batch& batch, Size size, Part part, const float* features, const Gradients& out) {
  static thread_local Scratch scratch;
  for (int64_t n = part.first; n < part.last; n++) {
    const int64_t start = batch.starts[n], stop = batch.starts[n + 1];
    const float* gradient = features + n * batch.features();
    if (out.vectors) vectors_backward(batch, start, stop, gradient, out.vectors, out.streamed, scratch);
    gradient += batch.vector_size + batch.max_size;
    if (out.forward) {
      chain_backward(size, batch, {start, 1, stop - start}, batch.forward_table<float>(), gradient, out.forward, out.streamed, scratch);
      gradient += batch.matrix_size();
    }
    if (out.backward)
      chain_backward(size, batch, {stop - 1, -1, stop - start}, batch.backward_table<float>(), gradient, out.backward, out.streamed,
                     scratch);
  }
}

}  // namespace

EXPORT void reduce_backward(const Batch* batch, const float* features, const Gradients* out) {
  with_size(*batch, [=](auto size) {
    in_parts(*batch, [=](Part part) { reduce_backward_part(*batch, size, part, features, *out); });
  });
}
