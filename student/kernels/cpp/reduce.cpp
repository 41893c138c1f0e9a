// The representation of each sequence: sum and maxima of its vectors and both products, in one pass over its rows.
#include <limits>

#include "chain.h"
#include "export.h"
#include "order.h"

namespace {

template <class Number, class Size>
void reduce_part(const Batch& batch, Size size, Part part, float* features) {
  const auto vectors = batch.vector_table<Number>();
  const auto forward = batch.forward_table<Number>(), backward = batch.backward_table<Number>();
  auto ahead_forward = ahead<Forward>(batch, part);
  auto ahead_backward = ahead<Backward>(batch, part);
  Chain<Size> there(size), back(size);
  for (int64_t n = part.first; n < part.last; n++) {
    const int64_t start = batch.starts[n], stop = batch.starts[n + 1];
    float* out = features + n * batch.features();
    float* max = out + batch.vector_size;
    std::fill_n(out, batch.vector_size, 0.0f);
    std::fill_n(max, batch.max_size, start == stop ? 0.0f : -std::numeric_limits<float>::infinity());
    there.clear();
    back.clear();
    for (int64_t t = start; t < stop; t++) {
      const int64_t id = batch.ids[t], next = ahead_forward.next();
      if (forward) there.append(forward.row(id), forward.row(next));
      // Both products advance in one loop, since two independent chains hide each other's latency.
      if (backward) back.append(backward.row(batch.ids[stop - 1 - (t - start)]), backward.row(ahead_backward.next()));
      if (batch.max_size)
        add_row_and_max(out, max, vectors.row(id), vectors.width, vectors.row(next));
      else if (vectors)
        add_row(out, vectors.row(id), vectors.width, vectors.row(next));
    }
    out += batch.vector_size + batch.max_size;
    if (forward) {
      there.write(out);
      out += forward.width;
    }
    if (backward) back.write(out);
  }
}

}  // namespace

EXPORT void reduce(const Batch* batch, float* features) {
  with_size(*batch, [=](auto size) {
    with_number(*batch, [=](auto number) {
      in_parts(*batch, [=](Part part) { reduce_part<decltype(number)>(*batch, size, part, features); });
    });
  });
}
