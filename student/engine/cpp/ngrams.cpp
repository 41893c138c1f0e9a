#include "ngrams.h"

#include <algorithm>
#include <cmath>

#include "error.h"

namespace {

constexpr uint64_t BASE = 0x9E3779B97F4A7C15u, MIX = 0xD6E8FEB86659FD93u;
constexpr uint64_t POWERS[] = {1, BASE, BASE * BASE, BASE * BASE * BASE};
constexpr size_t MOST_BYTES = 4, MOST_WORDS = 2;
constexpr uint8_t OF_WORDS = 3, OF_BYTES = 1;
constexpr int SECOND = 2;  // where the weight in the second text begins, in a row's mark
constexpr int64_t MOST_ROWS = 1 << 18;

}  // namespace

Ngrams::Ngrams(const File& file, const std::string& prefix, int64_t num_tokens, int64_t num_logits, bool is_pair)
    : num_logits_(num_logits), groups_(is_pair ? 3 : 1) {
  const Tensor& spelling = file.get(prefix + "spelling", UINT8, {-1});
  spelling_ = reinterpret_cast<const char*>(spelling.data);
  starts_ = file.get(prefix + "starts", INT32, {num_tokens + 1}).integers();
  require(starts_[0] == 0 && starts_[num_tokens] == spelling.shape[0] && std::is_sorted(starts_, starts_ + num_tokens + 1),
          "its tokens' spellings have no order");
  const Tensor& weights = file.get(prefix + "weight", INT8, {groups_, -1, num_logits});
  weights_ = reinterpret_cast<const int8_t*>(weights.data);
  num_rows_ = weights.shape[1];
  int bits = 1;
  while (int64_t{1} << bits < num_rows_) ++bits;
  require(int64_t{1} << bits == num_rows_ && num_rows_ <= MOST_ROWS, "its n-grams have no power of two of rows");
  hash_shift_ = 64 - bits;
  scale_ = file.get(prefix + "scale", FLOAT32, {num_logits}).floats();
  overlap_ = file.get(prefix + "overlap", FLOAT32, {num_logits}).floats();
  bias_ = file.get(prefix + "bias", FLOAT32, {num_logits}).floats();
}

// Marks the n-grams of a text: words, pairs of them, and some bytes within the spaces around a word.
void Ngrams::find(Workspace& work, const std::vector<int32_t>& ids, int shift) const {
  work.spelled.clear();
  for (const int32_t id : ids) work.spelled.append(spelling_ + starts_[id], spelling_ + starts_[id + 1]);
  work.spelled.push_back(' ');
  const auto* const bytes = reinterpret_cast<const unsigned char*>(work.spelled.data());
  const size_t size = work.spelled.size(), known = work.found.size();
  work.found.resize(known + (MOST_BYTES - 1 + MOST_WORDS) * size);
  uint32_t* behind = work.found.data() + known;
  const auto add_row = [&](uint64_t hash, uint8_t weight) {
    const auto row = static_cast<uint32_t>(hash * MIX >> hash_shift_);
    *behind++ = row << SECOND | weight;
    // Marks and weights are larger than the nearest cache, and most rows are in none of their lines there.
    __builtin_prefetch(work.marks.data() + row);
    __builtin_prefetch(weights_ + row * num_logits_);  // of the first text's group
  };
  size_t space = 0;  // the first one behind `begin`
  uint64_t before = 0, power_before = 0;  // the hash of the word before without the space behind it, and its power
  for (size_t begin = 0; begin + 1 < size; ++begin) {
    if (space <= begin) space = work.spelled.find(' ', begin + 1);
    uint64_t hash = bytes[begin] + uint64_t{1};
    const size_t last = std::min(space, begin + MOST_BYTES - 1);
    for (size_t end = begin + 1; end <= last; ++end) {
      hash += (bytes[end] + uint64_t{1}) * POWERS[end - begin];
      add_row(hash, OF_BYTES);
    }
    if (bytes[begin] != ' ') continue;
    uint64_t power = 1, word = 0;
    for (size_t place = begin; place < space; ++place, power *= BASE) word += (bytes[place] + uint64_t{1}) * power;
    const bool is_word = space > begin + 1;
    if (is_word) {
      const uint64_t whole = word + (' ' + uint64_t{1}) * power;
      add_row(whole, OF_WORDS);
      if (power_before) add_row(before + whole * power_before, OF_WORDS);
    }
    before = word;
    power_before = is_word ? power : 0;
  }
  uint32_t* kept = work.found.data() + known;
  for (const uint32_t* next = kept; next < behind; ++next) {
    const uint32_t row = *next >> SECOND, weight = *next & OF_WORDS;
    uint8_t& mark = work.marks[row];
    // Whether a row is new cannot be predicted, so each one is written, and the next takes the place of one seen before.
    *kept = row;
    kept += !mark;
    mark = static_cast<uint8_t>(mark | weight << shift);
  }
  work.found.resize(static_cast<size_t>(kept - work.found.data()));
}

void Ngrams::add(Workspace& work, const std::vector<int32_t>* texts, float* logits) const {
  work.marks.resize(std::max(work.marks.size(), static_cast<size_t>(num_rows_)));
  work.found.clear();
  find(work, texts[0], 0);
  if (groups_ > 1) find(work, texts[1], SECOND);
  work.sums.assign(static_cast<size_t>(num_logits_), 0);
  const auto sum = [&](int64_t group, uint32_t row, int count) {
    const int8_t* const weights = weights_ + (group * num_rows_ + row) * num_logits_;
    for (int64_t k = 0; k < num_logits_; ++k) work.sums[static_cast<size_t>(k)] += count * weights[k];
  };
  int64_t in_first = 0, in_second = 0, in_both = 0;
  for (const uint32_t row : work.found) {
    const int first = work.marks[row] & OF_WORDS, second = work.marks[row] >> SECOND, both = std::min(first, second);
    work.marks[row] = 0;
    in_first += first;
    in_second += second;
    in_both += both;
    if (first > both) sum(0, row, first - both);
    if (second > both) sum(1, row, second - both);
    if (both) sum(2, row, both);
  }
  const auto number = [](int64_t count) { return static_cast<float>(count); };
  const float length = std::sqrt(std::max(number(in_first + in_second), 1.0f));
  const float shared = number(in_both) / std::sqrt(std::max(number(in_first) * number(in_second), 1.0f));
  for (int64_t k = 0; k < num_logits_; ++k)
    logits[k] += number(work.sums[static_cast<size_t>(k)]) * scale_[k] / length + shared * overlap_[k] + bias_[k];
}
