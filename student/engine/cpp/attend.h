// Attention of a token to the tokens of the other text. Included by kernels.cpp, once per level.

// The mean of what stands behind the rows' vectors, weighted by the softmax of the vectors' products with the query;
// zeros where there are no rows.
void attend(const float* query, const TokenRows& rows, float* shares, float* seen) {
  const int64_t size = rows.vector_size, count = rows.count, found = rows.width - size;
  for (int64_t i = 0; i < found; i++) seen[i] = 0;
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
    const float* row = rows.data + k * rows.width + size;
    for (int64_t i = 0; i < found; i++) seen[i] += share * row[i];
  }
}
