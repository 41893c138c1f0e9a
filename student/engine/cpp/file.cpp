#include "file.h"

#include <algorithm>
#include <utility>

namespace {

constexpr int64_t LONGEST_HEADER = 4 << 20, MOST_VALUES = 1 << 16;
constexpr const char* METADATA = "__metadata__";
constexpr const char* OURS = "distill_student";
constexpr struct {
  const char* name;
  Number number;
  int64_t bytes;
} NUMBERS[] = {{"F32", FLOAT32, 4}, {"F16", FLOAT16, 2}, {"BF16", BFLOAT16, 2},
               {"I8", INT8, 1},     {"U8", UINT8, 1},    {"I32", INT32, 4}};

int64_t little_endian(const unsigned char* bytes) {
  uint64_t value = 0;
  for (int n = 7; n >= 0; --n) value = value << 8 | bytes[n];
  return value > INT64_MAX ? -1 : static_cast<int64_t>(value);
}

Tensor read_tensor(const std::string& name, const Json& entry, const unsigned char* data, int64_t size) {
  Tensor tensor;
  const std::string& type = entry.at("dtype").string();
  int64_t bytes = 0;
  for (const auto& known : NUMBERS)
    if (type == known.name) tensor.number = known.number, bytes = known.bytes;
  require(bytes > 0, name + " has the unknown type " + type);
  const auto& offsets = entry.at("data_offsets").values();
  require(offsets.size() == 2, name + " has no beginning and end");
  const int64_t begin = offsets[0].integer(0, size), end = offsets[1].integer(begin, size);
  int64_t expected = bytes;
  for (const Json& length : entry.at("shape").values()) {
    tensor.shape.push_back(length.integer(0, size));
    require(!__builtin_mul_overflow(expected, tensor.shape.back(), &expected), name + " has too large a shape");
  }
  require(expected == end - begin, name + " has another number of bytes than its shape");
  tensor.data = data + begin;
  require(reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(bytes) == 0, name + " is not aligned");
  return tensor;
}

}  // namespace

File::File(Bytes bytes) : bytes_(std::move(bytes)) { read_header(); }

void File::read_header() {
  const unsigned char* const bytes = bytes_.data.get();
  require(bytes_.size > 8, "too short to be a student");
  const int64_t length = little_endian(bytes), most = std::min(LONGEST_HEADER, bytes_.size - 8);
  require(length >= 2 && length <= most, "not a safetensors file of a student");
  const unsigned char* data = bytes + 8 + length;
  const Json header = parse_json({reinterpret_cast<const char*>(bytes + 8), static_cast<size_t>(length)}, MOST_VALUES);
  header.as(Json::OBJECT, "tensors");
  const Json* metadata = header.find(METADATA);
  const Json* ours = metadata ? metadata->find(OURS) : nullptr;
  require(ours, "not a student: write one with distill export RUN --file FILE");
  configuration_ = ours->string();
  for (size_t n = 0; n < header.names.size(); ++n)
    if (header.names[n] != METADATA)
      tensors_[header.names[n]] = read_tensor(header.names[n], header.list[n], data, bytes_.size - 8 - length);
}

const Tensor& File::of_shape(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), "there is no tensor " + name);
  bool fits = found->second.shape.size() == shape.size();
  for (size_t n = 0; fits && n < shape.size(); ++n) fits = shape[n] < 0 || found->second.shape[n] == shape[n];
  require(fits, name + " has a shape that does not fit the others");
  return found->second;
}

const Tensor& File::get(const std::string& name, Number number, const std::vector<int64_t>& shape) const {
  const Tensor& tensor = of_shape(name, shape);
  require(tensor.number == number, name + " has another type of numbers than it must have");
  return tensor;
}

const Tensor& File::weights(const std::string& name, const std::vector<int64_t>& shape) const {
  const Tensor& tensor = of_shape(name, shape);
  require(tensor.number <= INT8, name + " has another type of numbers than weights have");
  return tensor;
}
