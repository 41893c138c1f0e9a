// Attention of a token to the tokens of the other text. Included by kernels.cpp, once per level.

// WIDTH vectors, of which `left` numbers are there, of the sum of rows, each with its share.
template <int WIDTH>
INLINE void mix_columns(const float* rows, int64_t count, int64_t width, const float* shares, int64_t left, float* out) {
  Lanes sum[WIDTH] = {};
  for (int64_t t = 0; t < count; t++, rows += width)
    UNROLL for (int k = 0; k < WIDTH; k++) sum[k] += shares[t] * lanes_of(rows + k * LANES, left - k * LANES);
  UNROLL for (int k = 0; k < WIDTH; k++) store_lanes(sum[k], out + k * LANES, left - k * LANES);
}

// The mean of what stands behind the rows' vectors, weighted by the softmax of the vectors' products with the query;
// zeros where there are no rows.
void attend(const float* query, const TokenRows& rows, float* shares, float* seen) {
  const int64_t size = rows.vector_size, count = rows.count, found = rows.width - size;
  // Products of normalised vectors have this deviation.
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t k = 0; k < count; k++) {
    shares[k] = scale * product_of(query, rows.data + k * rows.width, size);
    largest = shares[k] > largest ? shares[k] : largest;
  }
  for (int64_t k = 0; k < count; k++) sum += shares[k] = std::exp(shares[k] - largest);
  for (int64_t k = 0; k < count; k++) shares[k] /= sum;
  constexpr int WIDTH = 8;
  const float* behind = rows.data + size;
  int64_t i = 0;
  for (; i + WIDTH * LANES <= found; i += WIDTH * LANES)
    mix_columns<WIDTH>(behind + i, count, rows.width, shares, WIDTH * LANES, seen + i);
  for (; i < found; i += LANES) mix_columns<1>(behind + i, count, rows.width, shares, found - i, seen + i);
}
