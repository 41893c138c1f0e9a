// Element-wise recurrences. Included by kernels.cpp, once per level.

// The last state, the maxima and the minima of one way, in which each token scales the state before and adds to it. The
// next token's steps are `by` places further: its gates from `begin` on, and its values `apart` numbers behind them.
void recur(const float* const* steps, int64_t count, int64_t by, int64_t begin, int64_t apart, int64_t size,
           float* pooled) {
  float *__restrict last = pooled, *__restrict max = pooled + size, *__restrict min = pooled + 2 * size;
  for (int64_t i = 0; i < size; i++) last[i] = max[i] = min[i] = 0;
  for (int64_t t = 0; t < count; t++) {
    const float *gates = steps[t * by] + begin, *values = gates + apart;
    for (int64_t i = 0; i < size; i++) {
      const float state = gates[i] * last[i] + values[i];
      last[i] = state;
      max[i] = t == 0 || state > max[i] ? state : max[i];
      min[i] = t == 0 || state < min[i] ? state : min[i];
    }
  }
}
