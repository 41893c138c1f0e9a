// A student as its file describes it, and its answers for one thread.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "kept_rows.h"
#include "kernels.h"
#include "ngrams.h"
#include "tokenizer.h"

#ifdef __wasm__
struct Mutex {  // there is one thread
  void lock() {}
  void unlock() {}
};
#else
using Mutex = std::mutex;
#endif

inline std::string_view text_of(const distill_texts& texts, int64_t n) {
  return {texts.bytes + texts.starts[n], static_cast<size_t>(texts.starts[n + 1] - texts.starts[n])};
}

constexpr char WORDS[] = "words";  // the kind of a task that labels them

// The inputs of hidden layers that come from single tokens: of texts the sum, of words the sums of all tokens up to one
// and from one on, and the rows beside it.
enum { SUM_TO, SUM_FROM, PREVIOUS, SAME, NEXT };

enum class Pairing { NONE, JOINT, DIFFERENCE, COMPARISON, ATTENTION };

// A vector of numbers that begin where cache lines do.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t size = 0)
      : size_(size), memory_(static_cast<size_t>(size) * sizeof(T) + 64),
        start_(memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64)) {}
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = default;
  T* data() { return reinterpret_cast<T*>(start_); }
  const T* data() const { return reinterpret_cast<const T*>(start_); }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  std::vector<unsigned char> memory_;
  unsigned char* start_;
};

class Bigrams {
 public:
  Bigrams() = default;
  Bigrams(const File& file, int64_t num_tokens, int64_t size);
  int64_t size() const { return size_; }
  // Adds the vectors of the pairs of neighbouring ids.
  void add(const int32_t* ids, int64_t count, float* sum) const;

 private:
  static uint64_t key(int32_t first, int32_t second) { return uint64_t(uint32_t(first)) << 32 | uint32_t(second); }
  size_t place(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }

  int64_t size_ = 0, row_bytes_ = 0;
  const Tensor* table_ = nullptr;
  const float* scales_ = nullptr;
  int shift_ = 63;
  std::vector<std::pair<uint64_t, int32_t>> slots_;  // a row of -1 is none
};

// Some columns of a layer, ready to be multiplied.
class LayerPart {
 public:
  LayerPart(const Kernels& arithmetic, Layer layer, std::vector<Group> groups);
  // The first of its inputs among those of the layer.
  int64_t begin() const { return groups_.empty() ? 0 : groups_[0].begin; }
  // What it makes of rows of inputs that do not come often, which are `stride` numbers apart. `out` has room for
  // `room(count)` rows of packed.out numbers.
  void multiply(const Kernels& arithmetic, const float* inputs, int64_t stride, int64_t count, float* out) const;
  static int64_t room(int64_t count) { return count == 1 ? 1 : (count + TILE - 1) / TILE * TILE; }

  PackedLayer packed{};

 private:
  static constexpr int64_t TILE = 24;  // rows, of whole tiles on all levels

  std::vector<Group> groups_;
  Buffer<uint32_t> weights_;
  Buffer<float> weight_scales_;
  std::vector<int32_t> corrections_;
  std::vector<int64_t> unit_ends_;
};

// A layer that takes most of the time: many numbers, of the features of an input or of a token beside another. Where
// inputs are sums over tokens, its products with single tokens are computed once and kept, and their sums are enough.
struct HiddenLayer {
  // Neighbouring inputs. Those of tokens have a number, from 0 on, and begin with what a token's row begins with.
  struct Inputs {
    int64_t size;
    int of_token = -1;
  };

  // `name`: of the tensor of its weights. `begin`: of its numbers among those of all layers.
  HiddenLayer(const Kernels& arithmetic, const File& file, const std::string& name, int64_t size, int64_t begin,
              bool normalises, const std::vector<Inputs>& inputs);
  const LayerPart& of_input() const { return parts_[0]; }
  const LayerPart& of_token(int number) const { return parts_[static_cast<size_t>(number) + 1]; }
  bool has_tokens() const { return parts_.size() > 1; }
  // Makes room to keep what the parts of tokens make of rows.
  void keep_rows(int64_t num_rows);
  void keep(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows) const;
  void fetch_row(int32_t row) const {
    if (kept_) kept_->fetch_row(row);
  }
  // What each part of tokens makes of a row of the table, `of_input().packed.out` numbers.
  const float* of_row(const Kernels& arithmetic, const RowTable& table, int32_t row, std::vector<float>& spare) const;

  int64_t size, num_inputs, begin;
  bool normalises;
  const float* bias;

 private:
  void make(const Kernels& arithmetic, const RowTable& table, const int32_t* rows, int64_t count, float* out) const;

  std::vector<LayerPart> parts_;  // that of the input, and those of tokens
  std::unique_ptr<KeptRows> kept_;
};

// What makes logits and answers of one task from the features of an input.
struct Head {
  Head(const File& file, const Json& settings, int64_t number, int64_t num_inputs);

  int64_t num_answers() const { return kind == DISTILL_SCORE ? 1 : num_logits; }
  // Logits of what the hidden layer has given, or of the features, normalised if it has none and normalises.
  void logits(const Kernels& arithmetic, const float* numbers, float* out) const {
    arithmetic.linear(numbers, hidden_size ? hidden_size : num_inputs, out_weights, out_bias, num_logits, out);
  }
  void answer(const float* logits, bool abstains, float* answers, uint8_t* is_chosen) const;

  bool labels_words() const { return kind == DISTILL_WORDS; }

  std::string task, prefix;
  distill_kind kind;
  bool is_pair, normalises;
  std::vector<std::string> labels;
  int64_t num_logits, num_inputs, hidden_size;
  int64_t outside = 0;  // of words: the label of those without tokens
  const float* bins = nullptr;
  const float* temperature = nullptr;  // of labels: what logits are divided by before they become probabilities
  const float* bias = nullptr;         // added to logits, divided, before labels are chosen
  const float* certified = nullptr;    // of a certificate: the margin above which a label is chosen
  const float* out_weights;
  const float* out_bias;
  const HiddenLayer* hidden = nullptr;  // its own, or that of an earlier head
  std::unique_ptr<Ngrams> ngrams;       // null without such a part

 private:
  void choose(const float* probabilities, bool abstains, uint8_t* is_chosen) const;
};

// The heads that answer, which take the same inputs.
using Heads = std::vector<const Head*>;

// How tokens of two texts are compared, each with what it is aligned with in the other text. See
// student/encoders/aligned.py. A token's vector is (row + offset) * factors + shifts, with the normalised row of the table.
//
// A comparison is relu(W [z, c, z * c, |z - c|] + b) of a token's contextual vector z and the mean c of those that it is
// aligned with. A contextual vector is the token's own and parts of its neighbours'.
struct Alignment {
  struct Workspace {
    // Of the tokens of a text: what is kept of them; vectors; contextual vectors, each with what the layer makes of it as
    // that of the other text; what it makes of it as the text's own; and the shares of the other text's tokens.
    std::vector<const float*> kept;
    std::vector<std::vector<float>> spares;
    std::vector<float> vectors[2], rows[2], own[2], shares[2];
    Buffer<float> seen, inputs, scales, compared, biases;
    Buffer<uint32_t> units;
  };

  Alignment(const Kernels& arithmetic, const File& file, int64_t num_rows, int64_t vector_size, int64_t size);
  int64_t features() const { return 4 * compare.size; }
  Workspace workspace() const;
  void keep(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows) const;
  void fetch_row(int32_t row) const { kept_.fetch_row(row); }
  void read_tokens(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows, Workspace& work,
                   int side) const;
  // Sums and maxima of the comparisons of both texts' tokens.
  void represent(const Kernels& arithmetic, Workspace& work, float* features) const;

  static constexpr int64_t BLOCK = 48;  // tokens that are multiplied at once

  int64_t vector_size;
  const float* offsets;     // of the rows, or null
  const float* norm;        // factors, then shifts
  const float* neighbours;  // factors of the previous token's vector, and of the next one's
  HiddenLayer compare;

 private:
  // A row of tokens in the workspace.
  int64_t width() const { return vector_size + compare.of_input().packed.out; }
  int64_t count(const Workspace& work, int side) const {
    return static_cast<int64_t>(work.vectors[side].size()) / vector_size;
  }
  void make(const Kernels& arithmetic, const RowTable& table, const int32_t* rows, int64_t count, float* out) const;
  void multiply_vectors(const Kernels& arithmetic, Workspace& work) const;
  void prepare(const Kernels& arithmetic, Workspace& work, int side, int64_t token, int64_t n) const;

  KeptRows kept_;  // of each row: the vector; and of itself, as the previous token and as the next one, both products
};

// An element-wise recurrence, see student/encoders/recurrent.py. What a token does to a state depends on the token alone. It
// is computed when a text first has the token, and kept.
class Recurrence {
 public:
  // `is_rounded`: whether heads round the states to 8 bits, so that steps are kept in 16.
  Recurrence(const Kernels& arithmetic, const File& file, int64_t num_rows, int64_t vector_size, int64_t size,
             bool is_rounded);
  int64_t features() const { return 6 * size_; }
  int64_t size() const { return size_; }
  void fetch_row(int32_t row) const { steps_.fetch_row(row); }
  // The last state, the maxima and the minima of each way.
  void represent(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows,
                 std::vector<const void*>& steps, float* features) const;
  void keep(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows) const;

 private:
  void make(const Kernels& arithmetic, const RowTable& table, const int32_t* rows, int64_t count, float* out) const;
  void normalise(float* vector) const;
  void pass(const Kernels& arithmetic, const std::vector<const void*>& steps, bool is_back, float* states) const;

  int64_t vector_size_, size_;
  int64_t padded_;     // numbers of a state, in whole vectors of all levels
  const float* norm_;  // factors, then shifts
  const float* bias_;
  LayerPart layer_;  // [gates of both ways, values of both ways]
  Number number_;   // of steps
  KeptRows steps_;  // of each way the gates, then the values
};

struct Student;
struct Workspace;

// The heads of inputs, which are multiplied for many inputs at once.
class HeadBatch {
 public:
  HeadBatch(const Student& student, Workspace& work, const Heads& asked);
  int64_t width() const { return width_; }
  bool has_hidden_layer(const HiddenLayer& layer) const;
  bool has_linear_head() const;
  // Whether it reads the sums of vectors, which are not what single tokens give its hidden layers.
  bool reads_sums() const;
  // Where what is added to the hidden layers' numbers of the next input belongs.
  float* biases();
  // Takes an input with these features. Its logits are in `out` after `finish` at the latest.
  void add(const float* features, float* out);
  void finish();

  static constexpr int64_t MOST = 48;

 private:
  void linear_logits(const float* features, float* out);
  void hidden_logits(const HiddenLayer& hidden);

  const Student& student_;
  Workspace& work_;
  const Heads& asked_;
  const HiddenLayer* any_ = nullptr;  // the hidden layers of all heads read the same inputs in the same form
  int64_t width_ = 0, count_ = 0;
  float* outs_[MOST];
};

// What a thread needs to answer; kept from call to call.
struct Workspace {
  explicit Workspace(const Student& student);
  TextReader reader;
  using Ids = std::vector<int32_t>[2];  // of the texts of an input
  Ids ids, waiting[HeadBatch::MOST];
  std::vector<int32_t> rows, joint, distinct;
  std::vector<int64_t> last_text;  // of each row, for `distinct`: the number of the text that had it last
  int64_t text = 0;
  // `biases`: of each input, what is added to the numbers of all hidden layers.
  Buffer<float> features, normalised, scratch, hidden, scales, biases;
  Buffer<uint32_t> units;
  std::vector<float> spare;
  bool reads_sums = true;
  // Of words: the features and the biases of each token, and the first token of each word, or -1.
  std::vector<float> tokens, token_biases;
  std::vector<int64_t> word_tokens;
  Alignment::Workspace alignment;
  std::vector<const float*> kept;  // of a text's tokens
  std::vector<const void*> steps;
  Ngrams::Workspace ngrams;
  std::vector<float> added;  // to the logits of heads with n-grams
};

struct Student {
  explicit Student(Bytes bytes);
  Student(const Student&) = delete;

  static constexpr int64_t BLOCK = HeadBatch::MOST;  // inputs that a thread takes

  int64_t features_of_text() const {
    if (alignment) return alignment->features();
    return table.features() + bigrams.size() + (recurrence ? recurrence->features() : 0);
  }

  // Of inputs, each of which is read once: text(side, n) is a text of input n.
  template <class Text>
  void logits(Workspace& work, const Heads& asked, int64_t count, Text text, float* out) const;
  // Of the words of the inputs from `begin` up to `end`.
  void word_logits(Workspace& work, const Heads& asked, const distill_sentences& inputs, int64_t begin, int64_t end,
                   float* out) const;
  void encode(Workspace& work, std::string_view text, float* features) const;

  std::unique_ptr<Workspace> borrow() const;
  void give_back(std::unique_ptr<Workspace> work) const;

  const File file;
  const Kernels& arithmetic;
  Pairing pairing;
  int64_t num_tokens, num_rows, max_tokens, room_single, room_pair, window;
  int32_t pad;
  std::vector<int32_t> before, between, after;
  RowTable table{};
  const int32_t* row_of_token;
  Bigrams bigrams;
  std::unique_ptr<Alignment> alignment;  // of students whose texts see each other
  std::unique_ptr<Recurrence> recurrence;
  std::vector<std::unique_ptr<HiddenLayer>> hidden_layers;
  int64_t hidden_width = 0;  // of all hidden layers
  std::vector<Head> heads;
  std::unique_ptr<Tokenizer> tokenizer;

 private:
  void read_table(const Json& settings);
  void read_heads(const Json& settings);
  void read_hidden(Head& head, int64_t hidden_of);
  void add_ngrams(Workspace& work, const Heads& asked, float* added) const;
  int64_t inputs_of(const Json& task) const;
  std::vector<HiddenLayer::Inputs> parts_of(const Head& head) const;
  void read_input(Workspace& work, const std::string_view* texts, bool is_pair) const;
  void keep_rows(const HeadBatch& batch, const std::vector<int32_t>& rows) const;
  void fetch_rows(const std::vector<int32_t>& ids) const;
  void join(Workspace& work) const;
  void head_inputs(Workspace& work, bool is_pair) const;
  void represent(Workspace& work, const std::vector<int32_t>& ids, float* features) const;
  void align(Workspace& work, bool is_pair, float* features) const;
  const std::vector<int32_t>& distinct_rows(Workspace& work) const;
  void represent_window(Workspace& work, const int32_t* ids, int64_t count, float* features) const;
  void compare(float* features) const;
  void read_words(Workspace& work, const distill_texts& words, int64_t begin, int64_t end) const;
  void word_inputs(Workspace& work, int64_t token) const;
  void text_biases(Workspace& work, const HeadBatch& batch, float* biases) const;
  void word_biases(Workspace& work, const HeadBatch& batch) const;

  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

template <class Text>
void Student::logits(Workspace& work, const Heads& asked, int64_t count, Text text, float* out) const {
  const bool is_pair = asked[0]->is_pair;
  HeadBatch batch(*this, work, asked);
  const bool has_ngrams = std::any_of(asked.begin(), asked.end(), [](const Head* head) { return head->ngrams != nullptr; });
  work.added.assign(static_cast<size_t>(has_ngrams ? count * batch.width() : 0), 0.0f);
  work.reads_sums = batch.reads_sums();
  work.rows.clear();
  for (int64_t n = 0; n < count; ++n) {
    const std::string_view texts[2] = {text(0, n), is_pair ? text(1, n) : std::string_view()};
    read_input(work, texts, is_pair);
    // Before the encoder reads any text, because both have tables that fill a core's cache.
    if (has_ngrams) add_ngrams(work, asked, work.added.data() + n * batch.width());
    for (int side = 0; side < 1 + is_pair; ++side)
      for (const int32_t id : work.ids[side]) work.rows.push_back(row_of_token[id]);
    std::swap(work.ids, work.waiting[n]);
  }
  keep_rows(batch, work.rows);
  for (int64_t n = 0; n < count; ++n) {
    std::swap(work.ids, work.waiting[n]);
    for (int side = 0; n + 1 < count && side < 1 + is_pair; ++side) fetch_rows(work.waiting[n + 1][side]);
    head_inputs(work, is_pair);
    text_biases(work, batch, batch.biases());
    batch.add(work.features.data(), out + n * batch.width());
  }
  batch.finish();
  for (size_t i = 0; i < work.added.size(); ++i) out[i] += work.added[i];
}
