// What the functions in SQL answer, for SQLite and DuckDB alike.
//
// distill_predict(file, text) gives the label, of a multi-label student its labels as a JSON array, or the score.
// distill_predict_or_abstain gives 'abstain' where the student is less sure than its certificate demands.
// distill_scores(file, text) gives the probability of each label as a JSON object, or the score. All take a second
// text for a student of pairs. Where a text is null the answer is null. Of a file with several tasks all give a JSON
// object with the answer of each task that takes such inputs; every text is read once.
#pragma once
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../distill_student.h"

enum class Function { PREDICT, PREDICT_OR_ABSTAIN, SCORES };

inline void check(distill_status status) {
  if (status != DISTILL_OK) throw std::runtime_error(distill_last_error());
}

inline std::string quoted(const char* text) {
  std::string out = "\"";
  for (; *text; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    if (c == '"' || c == '\\') out += '\\';
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
    c < ' ' ? out += escaped : out += *text;
  }
  return out + '"';
}

// Nine digits tell each float32 from the next.
inline std::string number(float value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", static_cast<double>(value));
  return digits;
}

// The answers of a student to inputs. Several threads may make them of the same student.
class Answers {
 public:
  // `second` is null for single texts. Throws std::runtime_error with a message for the user.
  Answers(const distill_student* student, Function function, const distill_texts& first, const distill_texts* second)
      : student_(student), function_(function) {
    const int64_t num_tasks = distill_num_tasks(student);
    for (int64_t task = 0; task < num_tasks; ++task) {
      distill_info info;
      check(distill_describe(student, task, &info));
      // The only task of a file refuses what it does not take, with a message about it.
      if (num_tasks > 1 && (info.kind == DISTILL_WORDS || info.is_pair != (second != nullptr))) continue;
      numbers_.push_back(task);
      infos_.push_back(info);
      width_ += info.num_answers;
    }
    if (infos_.empty()) throw std::runtime_error(second ? "no task takes two texts" : "no task takes one text");
    answers_.resize(static_cast<size_t>(first.count * width_));
    chosen_.resize(answers_.size());
    const distill_tasks tasks = {numbers_.data(), static_cast<int64_t>(numbers_.size())};
    const bool abstains = function == Function::PREDICT_OR_ABSTAIN;
    check(distill_predict(student, &tasks, &first, second, 1, abstains, answers_.data(), chosen_.data()));
  }

  // The answer as a number, if it is one.
  std::optional<float> score(int64_t input) const {
    if (distill_num_tasks(student_) > 1 || infos_[0].kind != DISTILL_SCORE) return std::nullopt;
    return answers_[static_cast<size_t>(input)];
  }

  // The answer as text.
  std::string text(int64_t input) const {
    const float* answers = answers_.data() + input * width_;
    const uint8_t* chosen = chosen_.data() + input * width_;
    if (distill_num_tasks(student_) == 1) {
      const bool is_label = infos_[0].kind == DISTILL_CLASSES && function_ != Function::SCORES;
      return is_label ? label(0, chosen) : json(0, answers, chosen);
    }
    std::string out;
    for (size_t k = 0; k < infos_.size(); ++k) {
      out += (k ? "," : "{") + quoted(infos_[k].task) + ":" + json(k, answers, chosen);
      answers += infos_[k].num_answers;
      chosen += infos_[k].num_answers;
    }
    return out + "}";
  }

 private:
  const char* label(size_t k, const uint8_t* chosen) const {
    for (int64_t n = 0; n < infos_[k].num_answers; ++n)
      if (chosen[n]) return distill_label(student_, numbers_[k], n);
    return "abstain";
  }

  std::string json(size_t k, const float* answers, const uint8_t* chosen) const {
    const bool has_scores = function_ == Function::SCORES;
    if (infos_[k].kind == DISTILL_SCORE) return number(answers[0]);
    if (infos_[k].kind == DISTILL_CLASSES && !has_scores) return quoted(label(k, chosen));
    std::string out;
    for (int64_t n = 0; n < infos_[k].num_answers; ++n) {
      if (!has_scores && !chosen[n]) continue;
      if (!out.empty()) out += ',';
      out += quoted(distill_label(student_, numbers_[k], n));
      if (has_scores) out += ":" + number(answers[n]);
    }
    return has_scores ? "{" + out + "}" : "[" + out + "]";
  }

  const distill_student* student_;
  const Function function_;
  std::vector<int64_t> numbers_;  // of the tasks that answer
  std::vector<distill_info> infos_;
  int64_t width_ = 0;  // answers of an input
  std::vector<float> answers_;
  std::vector<uint8_t> chosen_;
};
