// The logits of words. See TokenLabelStudent in student/model/student.py.
//
// The first token of a word stands for it. A head reads the sums and products of everything up to this token and of
// everything from it on, and the rows of the token before it, of the token, and of the one behind it.
#include <algorithm>
#include <limits>

#include "student.h"

namespace {

constexpr size_t MOST_KEPT = 1 << 22;  // numbers of tokens that stay in memory from call to call

}  // namespace

void Student::word_logits(Workspace& work, const Heads& asked, const distill_sentences& inputs, int64_t begin,
                          int64_t end, float* out) const {
  HeadBatch batch(*this, work, asked);
  for (int64_t n = begin; n < end; ++n) {
    read_words(work, inputs.words, inputs.starts[n], inputs.starts[n + 1]);
    keep_rows(batch, work.rows);
    word_biases(work, batch);
    for (const int64_t token : work.word_tokens) {
      if (token >= 0) {
        const float* features = work.tokens.data() + token * table.token_features();
        if (batch.has_linear_head()) word_inputs(work, token), features = work.features.data();
        std::copy_n(work.token_biases.data() + token * hidden_width, hidden_width, batch.biases());
        batch.add(features, out);
      } else {
        std::fill_n(out, batch.width(), -std::numeric_limits<float>::infinity());
        float* place = out;
        for (const Head* head : asked) {
          place[head->outside] = 0;
          place += head->num_logits;
        }
      }
      out += batch.width();
    }
  }
  batch.finish();
  if (work.tokens.size() > MOST_KEPT) work.tokens = work.token_biases = std::vector<float>();
}

// The features of the tokens of words, which are read one by one: no token has parts of two words.
void Student::read_words(Workspace& work, const distill_texts& words, int64_t begin, int64_t end) const {
  auto& ids = work.ids[0];
  ids.clear();
  work.word_tokens.clear();
  for (int64_t word = begin; word < end; ++word) {
    const std::string_view text = text_of(words, word);
    require(is_utf8(text), "a word is not UTF-8", DISTILL_TEXT);
    const auto first = static_cast<int64_t>(ids.size());
    work.reader.read(text, INT64_MAX, ids);
    work.word_tokens.push_back(static_cast<int64_t>(ids.size()) > first ? first : -1);
  }
  work.rows.clear();
  for (const int32_t id : ids) work.rows.push_back(row_of_token[id]);
  work.tokens.resize(ids.size() * static_cast<size_t>(table.token_features()));
  arithmetic.scan(table, work.rows.data(), static_cast<int64_t>(ids.size()), work.tokens.data(), work.scratch.data());
}

// What is added to the numbers of hidden layers for each token, as of `text_biases`.
void Student::word_biases(Workspace& work, const HeadBatch& batch) const {
  const auto count = static_cast<int64_t>(work.rows.size());
  work.token_biases.resize(static_cast<size_t>(count * hidden_width));
  std::vector<float> sum;
  for (const auto& layer : hidden_layers) {
    if (!batch.has_hidden_layer(*layer)) continue;
    const auto biases = [&](int64_t t) { return work.token_biases.data() + t * hidden_width + layer->begin; };
    const auto add = [&](const float* numbers, float* to) { arithmetic.add_row(numbers, FLOAT32, 1, layer->size, to); };
    const auto made = [&](int64_t t) { return layer->of_row(arithmetic, table, work.rows[t], work.spare); };
    const int64_t width = layer->of_input().packed.out;
    sum.assign(layer->bias, layer->bias + layer->size);
    for (int64_t t = 0; t < count; ++t) {
      add(made(t) + SUM_TO * width, sum.data());
      std::copy_n(sum.data(), layer->size, biases(t));
    }
    sum.assign(sum.size(), 0);
    for (int64_t t = count - 1; t >= 0; --t) {
      const float* const numbers = made(t);
      add(numbers + SUM_FROM * width, sum.data());
      add(sum.data(), biases(t));
      add(numbers + SAME * width, biases(t));
      if (t > 0) add(numbers + NEXT * width, biases(t - 1));  // this token is the next one of the one before
      if (t + 1 < count) add(numbers + PREVIOUS * width, biases(t + 1));
    }
  }
}

void Student::word_inputs(Workspace& work, int64_t token) const {
  const int64_t size = table.token_features(), count = static_cast<int64_t>(work.rows.size());
  float* out = std::copy_n(work.tokens.data() + token * size, size, work.features.data());
  for (int64_t beside = token - 1; beside <= token + 1; ++beside, out += table.width) {
    if (beside < 0 || beside >= count) std::fill_n(out, table.width, 0.0f);
    // The representation of a token alone is its row.
    else arithmetic.encode(table, work.rows.data() + beside, 1, out, work.scratch.data());
  }
}
