// Attention of a token to the tokens of the other text. Included by kernels.cpp, once per level.

// WIDTH vectors, of which `left` numbers are there, of the sum of rows, each with its share.
template <int WIDTH>
INLINE void mix_columns(const float* rows, int64_t count, int64_t width, const float* shares, int64_t left, float* out) {
  Lanes sum[WIDTH] = {};
  for (int64_t t = 0; t < count; t++, rows += width)
    UNROLL for (int k = 0; k < WIDTH; k++) sum[k] += shares[t] * lanes_of(rows + k * LANES, left - k * LANES);
  UNROLL for (int k = 0; k < WIDTH; k++) store_lanes(sum[k], out + k * LANES, left - k * LANES);
}

void attend(const TokenRows& rows, float scale, float* products, float* seen) {
  const int64_t count = rows.count;
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t k = 0; k < count; k++) {
    products[k] *= scale;
    largest = products[k] > largest ? products[k] : largest;
  }
  for (int64_t k = 0; k < count; k++) sum += products[k] = std::exp(products[k] - largest);
  for (int64_t k = 0; k < count; k++) products[k] /= sum;
  int64_t i = 0;
  const auto mix = [&](auto columns) __attribute__((always_inline)) {
    constexpr int WIDTH = decltype(columns)::value;
    for (; i + WIDTH * LANES <= rows.width; i += WIDTH * LANES)
      mix_columns<WIDTH>(rows.data + i, count, rows.width, products, WIDTH * LANES, seen + i);
  };
  mix(std::integral_constant<int, 8>{});
  mix(std::integral_constant<int, 2>{});
  for (; i < rows.width; i += LANES) mix_columns<1>(rows.data + i, count, rows.width, products, rows.width - i, seen + i);
}
