// Attention of a token to the tokens of the other text. Included by kernels.cpp, once per level.

// The mean of the keys, weighted by the softmax of their products with the query; zeros where there are no keys.
void attend(const float* query, const float* keys, int64_t count, int64_t size, float* shares, float* seen) {
  for (int64_t i = 0; i < size; i++) seen[i] = 0;
  // Products of normalised vectors have this deviation.
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t k = 0; k < count; k++) {
    shares[k] = scale * product_of(query, keys + k * size, size);
    largest = shares[k] > largest ? shares[k] : largest;
  }
  for (int64_t k = 0; k < count; k++) sum += shares[k] = std::exp(shares[k] - largest);
  for (int64_t k = 0; k < count; k++) {
    const float share = shares[k] / sum;
    for (int64_t i = 0; i < size; i++) seen[i] += share * keys[k * size + i];
  }
}
