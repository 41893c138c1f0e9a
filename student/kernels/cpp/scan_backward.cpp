// The gradient of every token's rows from the gradient of each token's features.
#include "batch.h"
#include "export.h"
#include "gradients.h"

namespace {

struct Walk {
  int64_t first, by, length, column;  // column: where its matrix starts in the features of a token
  int64_t token(int64_t place) const { return first + place * by; }
};

// A matrix is part of its own product and of all that follow; the product before it is found in the features.
template <class Size>
void chain_backward(Size size, const Batch& batch, Walk walk, Table<float> matrices, const float* features,
                    const float* gradient, float* out, bool streamed) {
  if (walk.length == 0) return;
  const auto place = [&](int64_t i) { return walk.token(i) * batch.token_features() + walk.column; };
  Back<Size> back(size);
  back.clear();
  for (int64_t i = walk.length - 1; i > 0; i--) {
    alignas(64) float copy[Size::CAPACITY];
    // Going back from the end collects the gradients of all later products in one state.
    back.add(gradient + place(i));
    const Rows before{whole_rows(size, features + place(i - 1), copy), size.blocks()};
    const float* matrix = matrices.row(batch.ids[walk.token(i)]);
    back.step(matrix, before, out + walk.token(i) * matrices.width, streamed);
  }
  back.add(gradient + place(0));
  back.finish(out + walk.token(0) * matrices.width, streamed);
}

// A vector is part of all sums after it in the order of the walk.
void sums_backward(const Batch& batch, Walk walk, const float* gradient, float* out, bool add) {
  const int64_t E = batch.vector_size;
  static thread_local Scratch scratch;
  float* sum = scratch.of(E);
  std::fill_n(sum, E, 0.0f);
  for (int64_t i = walk.length - 1; i >= 0; i--) {
    const float* from = gradient + walk.token(i) * batch.token_features() + walk.column;
    float* to = out + walk.token(i) * E;
    for (int64_t k = 0; k < E; k++) {
      sum[k] += from[k];
      to[k] = add ? to[k] + sum[k] : sum[k];
    }
  }
}

template <class Size>
void scan_backward_part(const Batch& batch, Size size, Part part, const float* features, const float* gradient,
                        const Gradients& out) {
  const int64_t E = batch.vector_size, half = E + (batch.forward ? batch.matrix_size() : 0);
  for (int64_t n = part.first; n < part.last; n++) {
    const int64_t start = batch.starts[n], stop = batch.starts[n + 1], length = stop - start;
    if (out.vectors) sums_backward(batch, {start, 1, length, 0}, gradient, out.vectors, false);
    if (out.vectors && out.backward) sums_backward(batch, {stop - 1, -1, length, half}, gradient, out.vectors, true);
    if (out.forward)
      chain_backward(size, batch, {start, 1, length, E}, batch.forward_table<float>(), features, gradient, out.forward, out.streamed);
    if (out.backward)
      chain_backward(size, batch, {stop - 1, -1, length, half + E}, batch.backward_table<float>(), features, gradient, out.backward,
                     out.streamed);
  }
}

}  // namespace

EXPORT void scan_backward(const Batch* batch, const float* features, const float* gradient, const Gradients* out) {
  with_size(*batch, [=](auto size) {
    in_parts(*batch, [=](Part part) { scan_backward_part(*batch, size, part, features, gradient, *out); });
  });
}
