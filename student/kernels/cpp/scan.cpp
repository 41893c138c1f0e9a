// Sums and products of the prefix that ends at each token, and of the suffix that begins at it.
#include "chain.h"
#include "export.h"
#include "order.h"

namespace {

// Sums and products along a sequence, from `token` in steps of `by`; they start at column `column` of the features.
template <class Order, class Size, class Number>
void scan_part(const Batch& batch, Size size, Part part, Table<Number> matrices, int64_t column, float* features) {
  constexpr bool BACK = std::is_same_v<Order, Backward>;
  const auto vectors = batch.vector_table<Number>();
  const int64_t width = batch.token_features(), by = BACK ? -1 : 1;
  auto order = ahead<Order>(batch, part);
  Chain<Size> chain(size);
  for (int64_t n = part.first; n < part.last; n++) {
    const int64_t start = batch.starts[n], stop = batch.starts[n + 1];
    const float* sum = nullptr;
    chain.clear();
    for (int64_t count = start, t = BACK ? stop - 1 : start; count < stop; count++, t += by) {
      const int64_t id = batch.ids[t], next = order.next();
      float* out = features + t * width + column;
      if (vectors) {
        if (sum)
          std::copy_n(sum, vectors.width, out);
        else
          std::fill_n(out, vectors.width, 0.0f);
        add_row(out, vectors.row(id), vectors.width, vectors.row(next));
        sum = out;
      }
      if (matrices) {
        chain.append(matrices.row(id), matrices.row(next));
        chain.write(out + vectors.width);
      }
    }
  }
}

}  // namespace

EXPORT void scan(const Batch* batch, float* features) {
  with_size(*batch, [=](auto size) {
    with_number(*batch, [=](auto number) {
      in_parts(*batch, [=](Part part) {
        using Number = decltype(number);
        scan_part<Forward>(*batch, size, part, batch->forward_table<Number>(), 0, features);
        if (!batch->backward) return;
        const int64_t column = batch->vector_size + (batch->forward ? batch->matrix_size() : 0);
        scan_part<Backward>(*batch, size, part, batch->backward_table<Number>(), column, features);
      });
    });
  });
}
