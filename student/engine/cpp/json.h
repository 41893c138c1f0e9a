// JSON as strictly as it is written: the header of a safetensors file and the configuration in it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error.h"

struct Json {
  enum Kind { NOTHING, TRUTH, NUMBER, TEXT, LIST, OBJECT };
  Kind kind = NOTHING;
  bool truth = false;
  int64_t number = 0;
  std::string text;
  std::vector<Json> list;          // of a list, or the values of an object
  std::vector<std::string> names;  // of an object, one for each value

  // Whether the last name is there before; objects are small.
  bool has_twice() const {
    for (size_t n = 0; n + 1 < names.size(); ++n)
      if (names[n] == names.back()) return true;
    return false;
  }

  const Json* find(std::string_view name) const {
    for (size_t n = 0; n < names.size(); ++n)
      if (names[n] == name) return &list[n];
    return nullptr;
  }

  const Json& at(std::string_view name) const {
    const Json* value = find(name);
    require(value, "the header has no " + std::string(name));
    return *value;
  }

  const Json& as(Kind wanted, const char* what) const {
    require(kind == wanted, std::string("the header holds something else than ") + what);
    return *this;
  }

  int64_t integer(int64_t least, int64_t most) const {
    as(NUMBER, "a number");
    require(number >= least && number <= most, "the number " + std::to_string(number) + " in the header is not between " +
                                                   std::to_string(least) + " and " + std::to_string(most));
    return number;
  }

  const std::string& string() const { return as(TEXT, "text").text; }
  bool boolean() const { return as(TRUTH, "true or false").truth; }
  const std::vector<Json>& values() const { return as(LIST, "a list").list; }
};

// Throws Error. A text of more values than `most` is refused before it takes the memory.
Json parse_json(std::string_view text, int64_t most);

// Whether bytes are UTF-8, as strictly as Python is: no surrogates, nothing longer than it must be.
bool is_utf8(std::string_view text);
