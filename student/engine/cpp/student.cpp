#include "student.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace {

constexpr int64_t MOST = 1 << 22, MOST_WIDTH = 1 << 16, LARGEST_SIDE = 64, MOST_VALUES = 1 << 16;
constexpr int64_t MOST_IDLE = 64;
constexpr size_t MOST_TASKS = 1024;

int64_t width_of(Pairing pairing) {
  return pairing == Pairing::COMPARISON ? 4 : pairing == Pairing::DIFFERENCE ? 3 : 1;
}

Pairing pairing_of(const std::string& name) {
  if (name == "none") return Pairing::NONE;
  if (name == "joint") return Pairing::JOINT;
  if (name == "diffcat") return Pairing::DIFFERENCE;
  if (name == "attention") return Pairing::ATTENTION;
  require(name == "compare", "the pairing " + name + " is unknown");
  return Pairing::COMPARISON;
}

std::vector<int32_t> ids_of(const Json& list, int64_t num_tokens) {
  std::vector<int32_t> ids;
  for (const Json& value : list.values()) ids.push_back(static_cast<int32_t>(value.integer(0, num_tokens - 1)));
  return ids;
}

const float* scales_of(const File& file, const std::string& name, const Tensor& tensor,
                       const std::vector<int64_t>& shape) {
  return tensor.number == INT8 ? file.get(name + ".scale", FLOAT32, shape).floats() : nullptr;
}

// How much is left of two sequences in `room`: the longer loses tokens first, then each by turns.
std::pair<int64_t, int64_t> truncated(int64_t first, int64_t second, int64_t room) {
  const int64_t shorter = std::min(std::min(first, second), room / 2);
  const int64_t longer = std::min(std::max(first, second), room - shorter);
  return first <= second ? std::pair(shorter, longer) : std::pair(longer, shorter);
}

}  // namespace

Bigrams::Bigrams(const File& file, int64_t num_tokens, int64_t size) : size_(size) {
  table_ = &file.weights("bigrams", {-1, size});
  const int64_t count = table_->shape[0];
  require(count > 0 && count <= MOST, "there are too many bigrams");
  scales_ = scales_of(file, "bigrams", *table_, {count});
  row_bytes_ = size * (table_->number == FLOAT32 ? 4 : table_->number == INT8 ? 1 : 2);
  const int32_t* pairs = file.get("bigrams.pairs", INT32, {count, 2}).integers();
  int bits = 4;
  while (int64_t{1} << bits < 2 * count) ++bits;
  shift_ = 64 - bits;
  slots_.assign(size_t{1} << bits, {0, -1});
  uint64_t least = 0;
  for (int64_t n = 0; n < count; ++n) {
    const int32_t first = pairs[2 * n], second = pairs[2 * n + 1];
    require(first >= 0 && first < num_tokens && second >= 0 && second < num_tokens, "a bigram is not of two tokens");
    const uint64_t wanted = key(first, second);
    require(wanted >= least, "bigrams do not rise");
    least = wanted + 1;
    size_t slot = place(wanted);
    while (slots_[slot].second >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = {wanted, static_cast<int32_t>(n)};
  }
}

void Bigrams::add(const int32_t* ids, int64_t count, float* sum) const {
  for (int64_t t = 0; t + 1 < count; ++t) {
    const uint64_t wanted = key(ids[t], ids[t + 1]);
    size_t slot = place(wanted);
    while (slots_[slot].second >= 0 && slots_[slot].first != wanted) slot = (slot + 1) & (slots_.size() - 1);
    const int64_t row = slots_[slot].second;
    if (row < 0) continue;
    kernels().add_row(table_->data + row * row_bytes_, table_->number, scales_ ? scales_[row] : 1, size_, sum);
  }
}

Workspace::Workspace(const Student& student) : reader(*student.tokenizer), scratch(2 * student.table.width) {
  int64_t inputs = 2 * student.features_of_text(), out = 0, groups = 0, room = 0;
  for (const Head& head : student.heads) {
    inputs = std::max(inputs, head.num_inputs);
  }
  for (const auto& layer : student.hidden_layers) {
    const PackedLayer& packed = layer->of_input().packed;
    out = std::max(out, packed.out);
    groups = std::max(groups, packed.num_groups);
    room = std::max(room, packed.units);
  }
  features = Buffer<float>(inputs + student.features_of_text());
  normalised = Buffer<float>(inputs);
  hidden = Buffer<float>(Student::BLOCK * out);
  scales = Buffer<float>(Student::BLOCK * groups);
  biases = Buffer<float>(Student::BLOCK * student.hidden_width);
  units = Buffer<uint32_t>(Student::BLOCK * room);
  if (student.alignment) alignment = student.alignment->workspace();
}

Student::Student(Bytes bytes) : file(std::move(bytes)), arithmetic(kernels()) {
  const Json settings = parse_json(file.configuration(), MOST_VALUES);
  require(settings.at("format").integer(1, INT32_MAX) == 1, "is of a newer format; install a newer distill-student");
  num_tokens = settings.at("num_tokens").integer(1, MOST);
  pairing = pairing_of(settings.at("pairing").string());
  pad = static_cast<int32_t>(settings.at("pad").integer(0, num_tokens - 1));
  max_tokens = settings.at("max_tokens").integer(1, MOST);
  room_single = settings.at("room_single").integer(0, MOST);
  room_pair = settings.at("room_pair").integer(0, MOST);
  window = settings.at("window").integer(0, MOST);
  before = ids_of(settings.at("before"), num_tokens);
  between = ids_of(settings.at("between"), num_tokens);
  after = ids_of(settings.at("after"), num_tokens);
  tokenizer = std::make_unique<Tokenizer>(file, settings.at("tokenizer"), num_tokens);
  read_table(settings);
  read_heads(settings);
}

void Student::read_table(const Json& settings) {
  table.vector_size = settings.at("vector_size").integer(0, MOST_WIDTH);
  table.side = settings.at("side").integer(0, LARGEST_SIDE);
  table.has_maxima = settings.at("maxima").boolean();
  table.has_backward = settings.at("bidirectional").boolean();
  require(table.vector_size + table.side > 0, "there are neither vectors nor matrices");
  require((!table.has_backward || table.side) && (!table.has_maxima || table.vector_size), "a part has no table");
  table.width = table.vector_size + table.side * table.side * (1 + table.has_backward);
  const Tensor& rows = file.weights("rows", {-1, table.width});
  table.data = rows.data;
  table.number = rows.number;
  table.scales = scales_of(file, "rows", rows, {rows.shape[0], table.parts()});
  table.whole = rows.shape[0];
  num_rows = table.whole;
  if (file.has("vectors")) {
    require(table.vector_size && table.side, "there are vectors apart, but no matrices, or no vectors in the rows");
    const Tensor& vectors = file.get("vectors", rows.number, {-1, table.vector_size});
    table.vectors = vectors.data;
    table.vector_scales = scales_of(file, "vectors", vectors, {vectors.shape[0]});
    num_rows += vectors.shape[0];
  }
  row_of_token = file.get("row_of_token", INT32, {num_tokens}).integers();
  for (int64_t token = 0; token < num_tokens; ++token)
    require(row_of_token[token] >= 0 && row_of_token[token] < num_rows, "a token has a row that is not there");
  const int64_t size = settings.at("bigram_size").integer(0, MOST_WIDTH);
  if (size) bigrams = Bigrams(file, num_tokens, size);
  const int64_t compared = settings.at("compared").integer(0, MOST_WIDTH);
  const bool is_plain = !(table.side || table.has_maxima || size || window);
  require(compared ? is_plain && (pairing == Pairing::NONE || pairing == Pairing::ATTENTION)
                   : pairing != Pairing::ATTENTION,
          "its tokens are compared and have more than a vector, or are not compared");
  if (compared) alignment = std::make_unique<Alignment>(arithmetic, file, table.whole, table.vector_size, compared);
  if (const Json* state_size = settings.find("state_size")) {
    require(table.has_maxima && !(table.side || size || window || compared),
            "it has a recurrence, and parts that do not go with it");
    const Number head = file.has("0.hidden") ? file.weights("0.hidden", {-1, -1}).number : FLOAT32;
    const bool is_rounded = arithmetic.plan({nullptr, head, nullptr, 0, 0, nullptr, 0}).is_rounded();
    // Every token's steps are kept, so a state must not be wider than what the file holds of a token.
    recurrence = std::make_unique<Recurrence>(arithmetic, file, table.whole, table.vector_size,
                                              state_size->integer(1, table.vector_size), is_rounded);
  }
}

void Student::read_heads(const Json& settings) {
  const auto& tasks = settings.at("tasks").values();
  require(!tasks.empty() && tasks.size() <= MOST_TASKS, "there are no tasks, or too many");
  heads.reserve(tasks.size());
  for (const Json& task : tasks) {
    Head& head = heads.emplace_back(file, task, static_cast<int64_t>(heads.size()), inputs_of(task));
    const int64_t last = static_cast<int64_t>(heads.size()) - 1, hidden_of = task.at("hidden_of").integer(0, last);
    if (head.hidden_size) read_hidden(head, hidden_of);
    const std::string prefix = head.prefix + "ngrams.";
    if (file.has(prefix + "weight"))
      head.ngrams = std::make_unique<Ngrams>(file, prefix, num_tokens, head.num_logits,
                                             head.is_pair && pairing != Pairing::JOINT);
  }
}

// How many numbers the head of a task reads.
int64_t Student::inputs_of(const Json& task) const {
  const bool is_pair = task.at("is_pair").boolean();
  require(!is_pair || pairing != Pairing::NONE, "a task of pairs has no pairing");
  if (task.at("kind").string() != WORDS) return features_of_text() * (is_pair ? width_of(pairing) : 1);
  require(!(is_pair || alignment || recurrence || table.has_maxima || bigrams.size() || window), "words have what only texts can have");
  return table.token_features() + 3 * table.width;
}

void Student::read_hidden(Head& head, int64_t hidden_of) {
  const Head& owner = heads[static_cast<size_t>(hidden_of)];
  if (&owner != &head) {
    head.hidden = owner.hidden;
    require(head.hidden && head.hidden->size == head.hidden_size && head.hidden->num_inputs == head.num_inputs &&
                head.hidden->normalises == head.normalises,
            "a hidden layer is not that of the task it is shared with");
    return;
  }
  const std::string name = head.prefix + "hidden";
  hidden_layers.push_back(std::make_unique<HiddenLayer>(arithmetic, file, name, head.hidden_size, hidden_width,
                                                        head.normalises, parts_of(head)));
  hidden_layers.back()->keep_rows(num_rows);
  hidden_width += head.hidden_size;
  head.hidden = hidden_layers.back().get();
  // Inputs are made ready once for the hidden layers of all tasks.
  const PackedLayer& own = head.hidden->of_input().packed;
  for (const Head& other : heads)
    require(!other.hidden || other.num_inputs != head.num_inputs ||
                (other.hidden->of_input().packed.arithmetic == own.arithmetic &&
                 other.hidden->of_input().packed.units == own.units),
            "hidden layers have numbers of different types");
}

// The parts of a head's inputs: they are of different sizes, and so are those of two compared texts.
std::vector<HiddenLayer::Inputs> Student::parts_of(const Head& head) const {
  if (alignment) return std::vector<HiddenLayer::Inputs>(4, {alignment->compare.size});  // sums, maxima, of both texts
  const int64_t size = table.vector_size, matrix = table.side * table.side, back = matrix * table.has_backward;
  if (head.labels_words()) {
    std::vector<HiddenLayer::Inputs> parts{{size, SUM_TO}, {matrix}};
    if (table.has_backward) parts.insert(parts.end(), {{size, SUM_FROM}, {matrix}});
    for (const int token : {PREVIOUS, SAME, NEXT}) parts.insert(parts.end(), {{size, token}, {matrix, token}, {back, token}});
    return parts;
  }
  const int64_t copies = head.is_pair ? width_of(pairing) : 1;
  std::vector<HiddenLayer::Inputs> parts;
  for (int64_t copy = 0; copy < copies; ++copy) {
    parts.insert(parts.end(), {{size, copies == 1 && !window ? SUM_TO : -1}, {size * table.has_maxima}, {matrix}, {back},
                               {bigrams.size()}});
    if (recurrence) parts.insert(parts.end(), 6, {recurrence->size()});
  }
  return parts;
}

// What is added to the numbers of hidden layers: their biases, and what single tokens give.
void Student::text_biases(Workspace& work, const HeadBatch& batch, float* biases) const {
  for (const auto& layer : hidden_layers) {
    if (!batch.has_hidden_layer(*layer)) continue;
    float* const sum = biases + layer->begin;
    std::copy_n(layer->bias, layer->size, sum);
    if (!layer->has_tokens()) continue;
    work.kept.clear();
    for (const int32_t row : work.rows) {
      work.kept.push_back(layer->of_row(arithmetic, table, row, work.spare));
      if (work.kept.back() != work.spare.data()) continue;
      arithmetic.add_rows(&work.kept.back(), 1, layer->size, sum);
      work.kept.pop_back();
    }
    arithmetic.add_rows(work.kept.data(), static_cast<int64_t>(work.kept.size()), layer->size, sum);
  }
}

std::unique_ptr<Workspace> Student::borrow() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto work = std::move(idle_.back());
      idle_.pop_back();
      return work;
    }
  }
  return std::make_unique<Workspace>(*this);
}

void Student::give_back(std::unique_ptr<Workspace> work) const {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < MOST_IDLE) idle_.push_back(std::move(work));
}

// The ids of the texts of an input, truncated, without padding tokens that a text may spell.
void Student::read_input(Workspace& work, const std::string_view* texts, bool is_pair) const {
  const int64_t room = is_pair ? room_pair : room_single;
  for (int side = 0; side < 1 + is_pair; ++side) {
    require(is_utf8(texts[side]), "a text is not UTF-8", DISTILL_TEXT);
    work.ids[side].clear();
    work.reader.read(texts[side], is_pair ? INT64_MAX : room, work.ids[side]);  // the longer of two loses tokens
  }
  const auto size = [&](int side) { return static_cast<int64_t>(work.ids[side].size()); };
  const auto lengths = is_pair ? truncated(size(0), size(1), room) : std::pair(std::min(size(0), room), int64_t{0});
  for (int side = 0; side < 1 + is_pair; ++side) {
    auto& ids = work.ids[side];
    ids.resize(static_cast<size_t>(side ? lengths.second : lengths.first));
    ids.erase(std::remove(ids.begin(), ids.end(), pad), ids.end());
  }
}

// Computes what is kept of rows, for many of them at once.
void Student::keep_rows(const HeadBatch& batch, const std::vector<int32_t>& rows) const {
  if (recurrence) recurrence->keep(arithmetic, table, rows);
  if (alignment) alignment->keep(arithmetic, table, rows);
  for (const auto& layer : hidden_layers)
    if (batch.has_hidden_layer(*layer)) layer->keep(arithmetic, table, rows);
}

// Fetches what is read of the first tokens of a text.
void Student::fetch_rows(const std::vector<int32_t>& ids) const {
  const size_t most = std::min(ids.size(), static_cast<size_t>(PIECE));
  for (size_t t = 0; t < most; ++t) {
    const int32_t row = row_of_token[ids[t]];
    if (recurrence) recurrence->fetch_row(row);
    if (alignment) alignment->fetch_row(row);
    for (const auto& layer : hidden_layers) layer->fetch_row(row);
    if (table.has_maxima) fetch(table.vector_at(row), table.vector_size * table.bytes_of_number());
  }
}

// Joins the two texts of the input in the workspace.
void Student::join(Workspace& work) const {
  work.joint = before;
  work.joint.insert(work.joint.end(), work.ids[0].begin(), work.ids[0].end());
  work.joint.insert(work.joint.end(), between.begin(), between.end());
  work.joint.insert(work.joint.end(), work.ids[1].begin(), work.ids[1].end());
  work.joint.insert(work.joint.end(), after.begin(), after.end());
  // In sums and products, padding is neutral. A step of its own would change a state.
  if (recurrence) work.joint.erase(std::remove(work.joint.begin(), work.joint.end(), pad), work.joint.end());
}

void Student::head_inputs(Workspace& work, bool is_pair) const {
  float* const features = work.features.data();
  if (is_pair && pairing == Pairing::JOINT) {
    join(work);
    return represent(work, work.joint, features);
  }
  if (alignment) return align(work, is_pair, features);
  represent(work, work.ids[0], features);
  if (!is_pair) return;
  represent(work, work.ids[1], features + features_of_text());
  compare(features);
}

// What the n-grams of the input in the workspace add to the logits of heads.
void Student::add_ngrams(Workspace& work, const Heads& asked, float* added) const {
  const bool is_joint = asked[0]->is_pair && pairing == Pairing::JOINT;
  if (is_joint) join(work);
  for (const Head* head : asked) {
    if (head->ngrams) head->ngrams->add(work.ngrams, is_joint ? &work.joint : work.ids, added);
    added += head->num_logits;
  }
}

void Student::encode(Workspace& work, std::string_view text, float* features) const {
  require(is_utf8(text), "a text is not UTF-8", DISTILL_TEXT);
  auto& ids = work.ids[0];
  ids.clear();
  work.reader.read(text, room_single, ids);
  ids.resize(static_cast<size_t>(std::min(static_cast<int64_t>(ids.size()), room_single)));
  ids.erase(std::remove(ids.begin(), ids.end(), pad), ids.end());
  if (alignment) return align(work, false, features);
  work.reads_sums = true;
  represent(work, ids, features);
}

// The features of the two texts that were read, or of one that sees itself.
void Student::align(Workspace& work, bool is_pair, float* features) const {
  for (int side = 0; side < 2; ++side) {
    work.rows.clear();
    for (const int32_t id : work.ids[is_pair ? side : 0]) work.rows.push_back(row_of_token[id]);
    alignment->read_tokens(arithmetic, table, work.rows, work.alignment, side);
  }
  alignment->represent(arithmetic, work.alignment, features);
}

void Student::represent(Workspace& work, const std::vector<int32_t>& ids, float* features) const {
  const auto count = static_cast<int64_t>(ids.size());
  if (!window || count <= window) return represent_window(work, ids.data(), count, features);
  const int64_t size = features_of_text(), first_max = table.vector_size;
  const int64_t behind_max = first_max * (1 + table.has_maxima);
  float* const one = work.features.data() + work.features.size() - size;
  int64_t windows = 0;
  for (int64_t begin = 0; begin < count; begin += window, ++windows) {
    represent_window(work, ids.data() + begin, std::min(window, count - begin), windows ? one : features);
    if (!windows) continue;
    for (int64_t i = 0; i < size; ++i)
      features[i] = i >= first_max && i < behind_max ? std::max(features[i], one[i]) : features[i] + one[i];
  }
  for (int64_t i = 0; i < size; ++i)
    if (i < first_max || i >= behind_max) features[i] /= static_cast<float>(windows);
}

// The rows of a text without repetitions, which change no maxima.
const std::vector<int32_t>& Student::distinct_rows(Workspace& work) const {
  work.distinct.clear();
  work.last_text.resize(static_cast<size_t>(num_rows));
  ++work.text;
  for (const int32_t row : work.rows)
    if (std::exchange(work.last_text[row], work.text) != work.text) work.distinct.push_back(row);
  return work.distinct;
}

void Student::represent_window(Workspace& work, const int32_t* ids, int64_t count, float* features) const {
  work.rows.resize(static_cast<size_t>(count));
  for (int64_t t = 0; t < count; ++t) work.rows[static_cast<size_t>(t)] = row_of_token[ids[t]];
  RowTable read = table;
  read.skips_sums = !work.reads_sums;
  const auto& rows = read.skips_sums && !table.side && count > PIECE ? distinct_rows(work) : work.rows;
  arithmetic.encode(read, rows.data(), static_cast<int64_t>(rows.size()), features, work.scratch.data());
  if (recurrence)
    recurrence->represent(arithmetic, table, work.rows, work.steps, features + table.features());
  if (!bigrams.size()) return;
  float* const sum = features + table.features();
  std::fill_n(sum, bigrams.size(), 0.0f);
  bigrams.add(ids, count, sum);
}

// Behind two representations u and w: u * w where they are compared, and |u - w|.
void Student::compare(float* features) const {
  const int64_t size = features_of_text();
  const float *u = features, *w = features + size;
  float* out = features + 2 * size;
  if (pairing == Pairing::COMPARISON) {
    for (int64_t i = 0; i < size; ++i) out[i] = u[i] * w[i];
    out += size;
  }
  for (int64_t i = 0; i < size; ++i) out[i] = std::fabs(u[i] - w[i]);
}
