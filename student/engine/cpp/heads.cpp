// The heads of a student: from features to logits, and from logits to answers.
#include <algorithm>
#include <cmath>

#include "student.h"

namespace {

constexpr int64_t MOST_WIDTH = 1 << 16;
constexpr char OUTSIDE[] = "O";

distill_kind kind_of(const std::string& name) {
  if (name == "classes") return DISTILL_CLASSES;
  if (name == "labels") return DISTILL_LABELS;
  if (name == WORDS) return DISTILL_WORDS;
  require(name == "score" || name == "bins", "the kind " + name + " is unknown");
  return DISTILL_SCORE;
}

double sigmoid(double logit) { return logit < 0 ? std::exp(logit) / (1 + std::exp(logit)) : 1 / (1 + std::exp(-logit)); }

}  // namespace

Head::Head(const File& file, const Json& settings, int64_t number, int64_t inputs)
    : task(settings.at("task").string()),
      prefix(std::to_string(number) + "."),
      kind(kind_of(settings.at("kind").string())),
      is_pair(settings.at("is_pair").boolean()),
      normalises(settings.at("normalises").boolean()),
      num_inputs(inputs),
      hidden_size(settings.at("hidden").integer(0, MOST_WIDTH)) {
  const std::string& name = settings.at("kind").string();
  for (const Json& label : settings.at("labels").values()) labels.push_back(label.string());
  num_logits = static_cast<int64_t>(labels.size());
  require(num_logits > 0 && (name != "score" || num_logits == 1), "there are no logits, or too many");
  outside = std::find(labels.begin(), labels.end(), OUTSIDE) - labels.begin();
  require(!labels_words() || outside < num_logits, "there is no label of words outside of spans");
  if (name == "bins") bins = file.get(prefix + "bins", FLOAT32, {num_logits}).floats();
  if (kind != DISTILL_SCORE) {
    temperature = file.get(prefix + "temperature", FLOAT32, {num_logits}).floats();
    for (int64_t k = 0; k < num_logits; ++k) require(temperature[k] > 0, "a temperature is not above 0");
  }
  if (kind == DISTILL_LABELS) bias = file.get(prefix + "bias", FLOAT32, {num_logits}).floats();
  if (file.has(prefix + "margin")) {
    require(kind == DISTILL_CLASSES && num_logits > 1, "a certificate is not of classes");
    certified = file.get(prefix + "margin", FLOAT32, {1}).floats();
    // A certificate of all answers has -1.
    require(*certified >= -1 && *certified <= 1, "the margin of a certificate is not between -1 and 1");
  }
  out_weights = file.get(prefix + "out", FLOAT32, {num_logits, hidden_size ? hidden_size : num_inputs}).floats();
  out_bias = file.get(prefix + "out.bias", FLOAT32, {num_logits}).floats();
}

LayerPart::LayerPart(const Kernels& arithmetic, Layer layer, std::vector<Group> groups) : groups_(std::move(groups)) {
  layer.groups = groups_.data();
  layer.num_groups = static_cast<int64_t>(groups_.size());
  packed = arithmetic.plan(layer);
  weights_ = Buffer<uint32_t>(packed.out * packed.units);
  unit_ends_.resize(groups_.size());
  if (packed.is_rounded()) {
    weight_scales_ = Buffer<float>(packed.num_groups * packed.out);
    corrections_.resize(static_cast<size_t>(packed.num_groups * packed.out));
  }
  packed.weights = weights_.data();
  packed.unit_ends = unit_ends_.data();
  packed.scales = weight_scales_.data();
  packed.corrections = corrections_.data();
  arithmetic.pack(layer, packed);
}

void LayerPart::multiply(const Kernels& arithmetic, const float* inputs, int64_t stride, int64_t count,
                         float* out) const {
  std::vector<uint32_t> units(static_cast<size_t>(room(count) * packed.units));
  std::vector<float> scales(static_cast<size_t>(room(count) * packed.num_groups));
  for (int64_t n = 0; n < count; ++n)
    arithmetic.prepare(packed, inputs + n * stride, units.data() + n * packed.units, scales.data() + n * packed.num_groups);
  arithmetic.multiply(packed, units.data(), scales.data(), count, out);
}

HiddenLayer::HiddenLayer(const Kernels& arithmetic, const File& file, const std::string& name, int64_t hidden_size,
                         int64_t first, bool is_normalised, const std::vector<Inputs>& inputs)
    : size(hidden_size),
      num_inputs(0),
      begin(first),
      normalises(is_normalised),
      bias(file.get(name + ".bias", FLOAT32, {hidden_size}).floats()) {
  std::vector<std::vector<Group>> groups(1);  // those of the input, then those of tokens
  int64_t number = 0;
  for (const Inputs& part : inputs) {
    const auto place = static_cast<size_t>(part.of_token + 1);
    groups.resize(std::max(groups.size(), place + 1));
    if (part.size) groups[place].push_back({num_inputs, part.size, number++});
    num_inputs += part.size;
  }
  const Tensor& weights = file.weights(name, {size, num_inputs});
  require(weights.number != FLOAT16, name + " has numbers of a type that layers do not have");
  const float* scales =
      weights.number == INT8 ? file.get(name + ".scale", FLOAT32, {number, size}).floats() : nullptr;
  const Layer layer{weights.data, weights.number, scales, size, num_inputs, nullptr, 0};
  for (auto& part : groups) parts_.emplace_back(arithmetic, layer, std::move(part));
}

void HiddenLayer::keep_rows(int64_t num_rows) {
  const auto tokens = static_cast<int64_t>(parts_.size()) - 1;
  if (tokens) kept_ = std::make_unique<KeptRows>(num_rows, tokens * of_input().packed.out);
}

void HiddenLayer::make(const Kernels& arithmetic, const RowTable& table, const int32_t* rows, int64_t count,
                       float* out) const {
  const int64_t features = table.features(), width = of_input().packed.out;
  const auto tokens = static_cast<int64_t>(parts_.size()) - 1;
  std::vector<float> numbers(static_cast<size_t>(count * features)), scratch(static_cast<size_t>(2 * table.width));
  std::vector<float> made(static_cast<size_t>(LayerPart::room(count) * width));
  for (int64_t n = 0; n < count; ++n)  // the sum of one row: its numbers as floats
    arithmetic.encode(table, rows + n, 1, numbers.data() + n * features, scratch.data());
  for (int64_t token = 0; token < tokens; ++token) {
    of_token(static_cast<int>(token)).multiply(arithmetic, numbers.data(), features, count, made.data());
    for (int64_t n = 0; n < count; ++n) std::copy_n(made.data() + n * width, width, out + (n * tokens + token) * width);
  }
}

void HiddenLayer::keep(const Kernels& arithmetic, const RowTable& table, const std::vector<int32_t>& rows) const {
  if (kept_) kept_->keep(rows, [&](auto... made) { make(arithmetic, table, made...); });
}

const float* HiddenLayer::of_row(const Kernels& arithmetic, const RowTable& table, int32_t row,
                                 std::vector<float>& spare) const {
  return kept_->of(row, spare, [&](auto... made) { make(arithmetic, table, made...); });
}

void Head::answer(const float* logits, bool abstains, float* answers, uint8_t* is_chosen) const {
  if (is_chosen && kind == DISTILL_SCORE) is_chosen[0] = 0;  // a score is no label
  if (kind == DISTILL_SCORE && !bins) {
    answers[0] = logits[0];
    return;
  }
  if (kind == DISTILL_LABELS) {
    for (int64_t k = 0; k < num_logits; ++k) {
      const float divided = logits[k] / temperature[k];
      answers[k] = static_cast<float>(sigmoid(divided));
      if (is_chosen) is_chosen[k] = divided + bias[k] > 0;
    }
    return;
  }
  // One temperature serves all classes, or none a score in bins.
  const float divisor = temperature ? temperature[0] : 1, largest = *std::max_element(logits, logits + num_logits);
  const auto share_of = [&](int64_t k) {
    return std::exp(static_cast<double>(logits[k] / divisor) - static_cast<double>(largest / divisor));
  };
  double total = 0, expected = 0;
  for (int64_t k = 0; k < num_logits; ++k) {
    const double share = share_of(k);
    total += share;
    if (bins) expected += share * bins[k];
  }
  if (bins) {
    answers[0] = static_cast<float>(expected / total);
    return;
  }
  for (int64_t k = 0; k < num_logits; ++k) answers[k] = static_cast<float>(share_of(k) / total);
  if (is_chosen) choose(answers, abstains, is_chosen);
}

// The likeliest class, the first of equal ones, unless it is no surer than the certificate demands.
void Head::choose(const float* probabilities, bool abstains, uint8_t* is_chosen) const {
  const int64_t best = std::max_element(probabilities, probabilities + num_logits) - probabilities;
  float second = 0;
  for (int64_t k = 0; k < num_logits; ++k)
    if (k != best) second = std::max(second, probabilities[k]);
  const bool answers = !abstains || probabilities[best] - second > *certified;
  for (int64_t k = 0; k < num_logits; ++k) is_chosen[k] = answers && k == best;
}

HeadBatch::HeadBatch(const Student& student, Workspace& work, const Heads& asked)
    : student_(student), work_(work), asked_(asked) {
  for (const Head* head : asked) {
    if (head->hidden) any_ = head->hidden;
    width_ += head->num_logits;
  }
}

bool HeadBatch::has_hidden_layer(const HiddenLayer& layer) const {
  return std::any_of(asked_.begin(), asked_.end(), [&](const Head* head) { return head->hidden == &layer; });
}

bool HeadBatch::has_linear_head() const {
  return std::any_of(asked_.begin(), asked_.end(), [](const Head* head) { return !head->hidden; });
}

bool HeadBatch::reads_sums() const {
  return std::any_of(asked_.begin(), asked_.end(), [](const Head* head) { return !head->hidden || !head->hidden->has_tokens(); });
}

float* HeadBatch::biases() { return work_.biases.data() + count_ * student_.hidden_width; }

void HeadBatch::add(const float* features, float* out) {
  linear_logits(features, out);
  if (!any_) return;
  // The hidden layers of all heads read the same inputs in the same form, see `read_hidden`.
  const PackedLayer& packed = any_->of_input().packed;
  student_.arithmetic.prepare(packed, features + any_->of_input().begin(), work_.units.data() + count_ * packed.units,
                              work_.scales.data() + count_ * packed.num_groups);
  outs_[count_++] = out;
  if (count_ == MOST) finish();
}

void HeadBatch::finish() {
  if (!count_) return;
  for (const auto& hidden : student_.hidden_layers)
    if (has_hidden_layer(*hidden)) hidden_logits(*hidden);
  count_ = 0;
}

// The logits of heads without a hidden layer.
void HeadBatch::linear_logits(const float* features, float* out) {
  bool is_normalised = false;
  for (const Head* head : asked_) {
    const float* numbers = features;
    if (!head->hidden && head->normalises) {
      // A copy, since hidden layers read the features as they are.
      if (!is_normalised) {
        std::copy_n(numbers, head->num_inputs, work_.normalised.data());
        student_.arithmetic.activate(work_.normalised.data(), head->num_inputs, nullptr, true);
        is_normalised = true;
      }
      numbers = work_.normalised.data();
    }
    if (!head->hidden) head->logits(student_.arithmetic, numbers, out);
    out += head->num_logits;
  }
}

// The logits of those heads that have this hidden layer, which is computed once for all of them.
void HeadBatch::hidden_logits(const HiddenLayer& hidden) {
  const PackedLayer& packed = hidden.of_input().packed;
  student_.arithmetic.multiply(packed, work_.units.data(), work_.scales.data(), count_, work_.hidden.data());
  for (int64_t n = 0; n < count_; ++n) {
    float* const numbers = work_.hidden.data() + n * packed.out;
    const float* const bias = work_.biases.data() + n * student_.hidden_width + hidden.begin;
    student_.arithmetic.activate(numbers, hidden.size, bias, hidden.normalises);
    float* place = outs_[n];
    for (const Head* head : asked_) {
      if (head->hidden == &hidden) head->logits(student_.arithmetic, numbers, place);
      place += head->num_logits;
    }
  }
}
