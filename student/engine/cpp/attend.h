// Attention of a token to the tokens of the other text. Included by kernels.cpp, once per level.

// The mean of what rows begin with, weighted by the softmax of the products of their first numbers with the query; zeros
// where there are no rows.
void attend(const float* query, const TokenRows& rows, float* shares, float* seen) {
  const int64_t size = rows.vector_size, count = rows.count;
  for (int64_t i = 0; i < rows.found; i++) seen[i] = 0;
  // Products of normalised vectors have this deviation.
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t k = 0; k < count; k++) {
    shares[k] = scale * product_of(query, rows.data + k * rows.width, size);
    largest = shares[k] > largest ? shares[k] : largest;
  }
  for (int64_t k = 0; k < count; k++) sum += shares[k] = std::exp(shares[k] - largest);
  for (int64_t k = 0; k < count; k++) {
    const float share = shares[k] / sum;
    const float* row = rows.data + k * rows.width;
    for (int64_t i = 0; i < rows.found; i++) seen[i] += share * row[i];
  }
}
