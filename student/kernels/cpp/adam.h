// A step of AdamW on an array.
#pragma once
#include <cmath>
#include <cstdint>

struct Rates {
  double beta1, beta2;
  float keep1, keep2;    // of the moments
  float share1, share2;  // of the gradient and its square
  float kept;            // of a value, by weight decay
  float length, over_c, eps, scale;

  Rates(double beta1, double beta2, double eps, int64_t step, double rate, double weight_decay, double scale)
      : beta1(beta1),
        beta2(beta2),
        keep1(static_cast<float>(beta1)),
        keep2(static_cast<float>(beta2)),
        share1(static_cast<float>(1 - beta1)),
        share2(static_cast<float>(1 - beta2)),
        kept(static_cast<float>(1 - rate * weight_decay)),
        length(static_cast<float>(rate / (1 - std::pow(beta1, step)))),
        over_c(static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step)))),
        eps(static_cast<float>(eps)),
        scale(static_cast<float>(scale)) {}

  // For moments that are `gap` steps old, where 1 is usual.
  Rates after(double gap) const {
    Rates rates = *this;
    rates.keep1 = static_cast<float>(std::pow(beta1, gap));
    rates.keep2 = static_cast<float>(std::pow(beta2, gap));
    return rates;
  }
};

inline void adam(float* __restrict value, float* __restrict m, float* __restrict v, const float* __restrict gradient,
                 int64_t size, const Rates& rates) {
  // A local copy lets the compiler keep the numbers in registers: writes to value, m or v cannot alias it.
  const Rates r = rates;
#pragma omp simd
  for (int64_t i = 0; i < size; i++) {
    const float g = gradient[i] * r.scale;
    const float m_new = r.keep1 * m[i] + r.share1 * g, v_new = r.keep2 * v[i] + r.share2 * g * g;
    m[i] = m_new;
    v[i] = v_new;
    value[i] = r.kept * value[i] - r.length * m_new / (std::sqrt(v_new) * r.over_c + r.eps);
  }
}

inline float sum_of_squares(const float* numbers, int64_t count) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < count; i++) squares += numbers[i] * numbers[i];
  return squares;
}
