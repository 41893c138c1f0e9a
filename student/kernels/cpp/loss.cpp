// The distillation loss of a batch with its gradient: as student/losses/logit_losses.py computes it in torch.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "export.h"

namespace {

// Probabilities at a temperature, and their logarithms.
void softmax(const float* logits, int64_t classes, double temperature, double* p, double* log_p) {
  // Subtracting the largest logit keeps `exp` from overflowing. Doubles cost nothing for so few numbers.
  const double largest = *std::max_element(logits, logits + classes) / temperature;
  double sum = 0;
  for (int64_t c = 0; c < classes; c++) sum += std::exp(logits[c] / temperature - largest);
  const double log_z = largest + std::log(sum);
  for (int64_t c = 0; c < classes; c++) {
    log_p[c] = logits[c] / temperature - log_z;
    p[c] = std::exp(log_p[c]);
  }
}

}  // namespace

// Mean over rows of weight * (alpha * CE(gold) + (1 - alpha) * soft); rows with gold < 0 take the soft loss alone. `soft`
// is T² KL(teacher_T || student_T), or with `squared` the mean squared error of the logits. `gradient` is that of the
// logits.
EXPORT double distillation_loss(const float* logits, const float* teacher, const int64_t* gold, const float* weights,
                                int64_t rows, int64_t classes, double alpha, double temperature, int squared,
                                float* gradient) {
  std::vector<double> numbers(4 * classes);
  double *p = numbers.data(), *log_p = p + classes, *q = log_p + classes, *log_q = q + classes;
  double total = 0;
  for (int64_t b = 0; b < rows; b++, logits += classes, teacher += classes, gradient += classes) {
    const double hard_share = gold[b] < 0 ? 0 : alpha, soft_share = 1 - hard_share;
    const double weight = (weights ? weights[b] : 1.0) / static_cast<double>(rows);
    double loss = 0;
    if (squared) {
      for (int64_t c = 0; c < classes; c++) {
        const double error = static_cast<double>(logits[c]) - teacher[c];
        loss += soft_share * error * error / static_cast<double>(classes);
        gradient[c] = static_cast<float>(weight * soft_share * 2 * error / static_cast<double>(classes));
      }
    } else {
      softmax(teacher, classes, temperature, p, log_p);
      softmax(logits, classes, temperature, q, log_q);
      for (int64_t c = 0; c < classes; c++) {
        loss += soft_share * temperature * temperature * p[c] * (log_p[c] - log_q[c]);
        // The derivative of T² KL divides by T once, so one factor T remains.
        gradient[c] = static_cast<float>(weight * soft_share * temperature * (q[c] - p[c]));
      }
    }
    if (hard_share > 0) {
      softmax(logits, classes, 1, q, log_q);
      loss -= hard_share * log_q[gold[b]];
      for (int64_t c = 0; c < classes; c++)
        gradient[c] += static_cast<float>(weight * hard_share * (q[c] - (c == gold[b])));
    }
    total += weight * loss;
  }
  return total;
}
