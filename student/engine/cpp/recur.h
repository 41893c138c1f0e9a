// Element-wise recurrences. Included by kernels.cpp, once per level.

// WIDTH vectors of the states from number `i` on, of which `left` are there. They stay in registers while tokens pass by.
template <int WIDTH>
INLINE void recur_columns(const float* const* steps, int64_t count, int64_t by, int64_t begin, int64_t apart,
                          int64_t left, float* last_out, float* max_out, float* min_out) {
  Lanes last[WIDTH] = {}, max[WIDTH] = {}, min[WIDTH] = {};
  for (int64_t t = 0; t < count; t++) {
    const float* gates = steps[t * by] + begin;
    UNROLL for (int k = 0; k < WIDTH; k++) {
      const int64_t there = left - k * LANES;
      const Lanes state = lanes_of(gates + k * LANES, there) * last[k] + lanes_of(gates + apart + k * LANES, there);
      last[k] = state;
      max[k] = t == 0 ? state : state > max[k] ? state : max[k];
      min[k] = t == 0 ? state : state < min[k] ? state : min[k];
    }
  }
  UNROLL for (int k = 0; k < WIDTH; k++) {
    store_lanes(last[k], last_out + k * LANES, left - k * LANES);
    store_lanes(max[k], max_out + k * LANES, left - k * LANES);
    store_lanes(min[k], min_out + k * LANES, left - k * LANES);
  }
}

// The last state, the maxima and the minima of one way, in which each token scales the state before and adds to it. The
// next token's steps are `by` places further: its gates from `begin` on, and its values `apart` numbers behind them.
void recur(const float* const* steps, int64_t count, int64_t by, int64_t begin, int64_t apart, int64_t size,
           float* pooled) {
  constexpr int WIDTH = 4;
  float *last = pooled, *max = pooled + size, *min = pooled + 2 * size;
  int64_t i = 0;
  for (; i + WIDTH * LANES <= size; i += WIDTH * LANES)
    recur_columns<WIDTH>(steps, count, by, begin + i, apart, WIDTH * LANES, last + i, max + i, min + i);
  for (; i < size; i += LANES) {
    if (i + LANES > size && size >= LANES) i = size - LANES;  // some numbers again, rather than parts of vectors
    recur_columns<1>(steps, count, by, begin + i, apart, size - i, last + i, max + i, min + i);
  }
}
