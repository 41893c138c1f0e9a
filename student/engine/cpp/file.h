// A safetensors file in memory: which tensors it has, where they are, what is written about them. Every offset and size
// is checked here; who reads a tensor needs to check its numbers alone.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "json.h"

enum Number { FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8, INT32 };

struct Tensor {
  const unsigned char* data = nullptr;
  Number number = FLOAT32;
  std::vector<int64_t> shape;

  int64_t size() const {
    int64_t product = 1;
    for (const int64_t length : shape) product *= length;  // no more than the bytes of the file
    return product;
  }
  const float* floats() const { return reinterpret_cast<const float*>(data); }
  const int32_t* integers() const { return reinterpret_cast<const int32_t*>(data); }
};

// Where a file is in memory, which may be of its owner.
struct Bytes {
  std::shared_ptr<const unsigned char> data;
  int64_t size;
};

class File {
 public:
  explicit File(Bytes bytes);
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& configuration() const { return configuration_; }
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  // The tensor, of this type and shape; -1 is any length.
  const Tensor& get(const std::string& name, Number number, const std::vector<int64_t>& shape) const;
  // Of one of the types that weights have.
  const Tensor& weights(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  void read_header();
  const Tensor& of_shape(const std::string& name, const std::vector<int64_t>& shape) const;

  const Bytes bytes_;
  std::string configuration_;
  std::map<std::string, Tensor> tensors_;
};
