// A student's arithmetic in WebAssembly, called by student.js: the products of `student/kernels`, unpacking, and layers.
// Memory is handed out by the caller. Built by build.sh; the bytes are kernel.wasm.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../kernels/cpp/chain.h"
#include "../kernels/cpp/export.h"

namespace {

constexpr int32_t ZERO = 8;  // what 0 is as four bits

INLINE float total(Quad quad) { return (quad[0] + quad[1]) + (quad[2] + quad[3]); }

// Every product of HEIGHT inputs and WIDTH rows of weights.
template <int HEIGHT, int WIDTH>
INLINE void dot_products(const float* in, int32_t size, const float* weights, const float* bias, float* out,
                         int32_t out_size) {
  Quad sum[HEIGHT][WIDTH] = {};
  float rest[HEIGHT][WIDTH] = {};
  int32_t i = 0;
  for (; i + 4 <= size; i += 4) {
    Quad numbers[HEIGHT];
    UNROLL for (int n = 0; n < HEIGHT; n++) numbers[n] = load_quad(in + n * size + i);
    UNROLL for (int k = 0; k < WIDTH; k++) {
      const Quad weight = load_quad(weights + k * size + i);
      UNROLL for (int n = 0; n < HEIGHT; n++) sum[n][k] += numbers[n] * weight;
    }
  }
  for (; i < size; i++)
    for (int n = 0; n < HEIGHT; n++)
      for (int k = 0; k < WIDTH; k++) rest[n][k] += in[n * size + i] * weights[k * size + i];
  for (int n = 0; n < HEIGHT; n++)
    for (int k = 0; k < WIDTH; k++) out[n * out_size + k] = total(sum[n][k]) + rest[n][k] + bias[k];
}

template <int HEIGHT>
INLINE void linear_rows(const float* in, int32_t size, const float* weights, const float* bias, float* out,
                        int32_t out_size) {
  int32_t k = 0;
  for (; k + 2 <= out_size; k += 2)
    dot_products<HEIGHT, 2>(in, size, weights + k * size, bias + k, out + k, out_size);
  if (k < out_size) dot_products<HEIGHT, 1>(in, size, weights + k * size, bias + k, out + k, out_size);
}

template <class Size>
void product(Size size, const float* table, const int32_t* rows, int32_t count, int32_t direction, float* out) {
  const int32_t width = size.side() * size.side();
  Chain<Size> chain(size);
  chain.clear();
  for (int32_t t = 0; t < count; t++) {
    const float* matrix = table + rows[direction > 0 ? t : count - 1 - t] * width;
    chain.append(matrix, matrix);
  }
  chain.write(out);
}

}  // namespace

// A row of numbers of four bits, two to a byte: neutral + step * number.
EXPORT void unpack(const uint8_t* packed, float step, const float* neutral, int32_t width, float* out) {
  const auto value = [=](int32_t bits) { return step * static_cast<float>(bits - ZERO); };
  for (int32_t i = 0; i + 2 <= width; i += 2) {
    out[i] = neutral[i] + value(packed[i / 2] >> 4);
    out[i + 1] = neutral[i + 1] + value(packed[i / 2] & 15);
  }
  if (width % 2) out[width - 1] = neutral[width - 1] + value(packed[width / 2] >> 4);
}

// The sum of rows of a table; and the largest of each of their numbers, where `max` is not null.
EXPORT void pool(const float* table, int32_t width, const int32_t* rows, int32_t count, float* sum, float* max) {
  std::fill_n(sum, width, 0.0f);
  if (max) std::fill_n(max, width, count ? -std::numeric_limits<float>::infinity() : 0.0f);
  for (int32_t t = 0; t < count; t++) {
    const float* row = table + rows[t] * width;
    max ? add_row_and_max(sum, max, row, width, row) : add_row(sum, row, width, row);
  }
}

// The product of rows of a table, matrices of this side, from the first to the last or, of direction -1, back.
EXPORT void multiply_rows(const float* table, int32_t side, const int32_t* rows, int32_t count, int32_t direction,
                          float* out) {
  if (side == 20) return product(Fixed<5>{}, table, rows, count, direction, out);
  product(Any{side}, table, rows, count, direction, out);
}

// in [n, size] * weights [out_size, size] + bias.
EXPORT void linear(const float* in, int32_t n, int32_t size, const float* weights, const float* bias, float* out,
                   int32_t out_size) {
  int32_t row = 0;
  for (; row + 4 <= n; row += 4)
    linear_rows<4>(in + row * size, size, weights, bias, out + row * out_size, out_size);
  for (; row < n; row++) linear_rows<1>(in + row * size, size, weights, bias, out + row * out_size, out_size);
}

EXPORT void relu(float* numbers, int32_t count) {
  for (int32_t i = 0; i < count; i++) numbers[i] = numbers[i] > 0 ? numbers[i] : 0;
}

// LayerNorm of each of n rows, in place, as torch's.
EXPORT void layer_norm(float* numbers, int32_t n, int32_t size, const float* weight, const float* bias) {
  constexpr double EPSILON = 1e-5;
  for (; n > 0; n--, numbers += size) {
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < size; i++) sum += numbers[i];
    const double mean = sum / size;
    for (int32_t i = 0; i < size; i++) squares += (numbers[i] - mean) * (numbers[i] - mean);
    const auto scale = static_cast<float>(1 / std::sqrt(squares / size + EPSILON));
    const auto middle = static_cast<float>(mean);
    for (int32_t i = 0; i < size; i++) numbers[i] = (numbers[i] - middle) * scale * weight[i] + bias[i];
  }
}

// Behind two representations of this size, u and w: |u - w|, and before that u * w where `with_product`.
EXPORT void compare(float* u, int32_t size, int32_t with_product) {
  const float* w = u + size;
  float* out = u + 2 * size;
  if (with_product) {
    for (int32_t i = 0; i < size; i++) out[i] = u[i] * w[i];
    out += size;
  }
  for (int32_t i = 0; i < size; i++) out[i] = std::fabs(u[i] - w[i]);
}
