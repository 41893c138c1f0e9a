#include "json.h"

namespace {

constexpr int DEEPEST = 16;
constexpr size_t DIGITS = 15, MOST_NAMES = 256;

class Parser {
 public:
  Parser(std::string_view text, int64_t most) : text_(text), left_(most) {}

  Json whole() {
    Json value = parse(0);
    space();
    require(at_ == text_.size(), "the header goes on behind its end");
    return value;
  }

 private:
  Json parse(int depth) {
    require(depth < DEEPEST && --left_ >= 0, "the header has too many values");
    space();
    Json value;
    switch (peek()) {
      case '{': return object(depth);
      case '[': return list(depth);
      case '"':
        value.kind = Json::TEXT;
        value.text = string();
        return value;
      case 't':
      case 'f':
        value.kind = Json::TRUTH;
        value.truth = peek() == 't';
        word(value.truth ? "true" : "false");
        return value;
      case 'n': word("null"); return value;
      default: return number();
    }
  }

  Json object(int depth) {
    Json value;
    value.kind = Json::OBJECT;
    ++at_;
    for (space(); peek() != '}'; space()) {
      if (!value.list.empty()) comma();
      require(peek() == '"', "the header is no JSON");
      value.names.push_back(string());
      require(!value.has_twice() && value.names.size() <= MOST_NAMES, "the header has too many names, or one twice");
      space();
      require(peek() == ':', "the header is no JSON");
      ++at_;
      value.list.push_back(parse(depth + 1));
    }
    ++at_;
    return value;
  }

  Json list(int depth) {
    Json value;
    value.kind = Json::LIST;
    ++at_;
    for (space(); peek() != ']'; space()) {
      if (!value.list.empty()) comma();
      value.list.push_back(parse(depth + 1));
    }
    ++at_;
    return value;
  }

  void comma() {
    require(peek() == ',', "the header is no JSON");
    ++at_;
    space();
  }

  // Whole numbers alone: all others are tensors, because reading them depends on the locale of the program around this.
  Json number() {
    const bool is_negative = peek() == '-';
    at_ += is_negative;
    Json value;
    value.kind = Json::NUMBER;
    const size_t start = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      value.number = 10 * value.number + (text_[at_] - '0');
    require(at_ > start && at_ - start <= DIGITS, "the header is no JSON of whole numbers");
    if (is_negative) value.number = -value.number;
    return value;
  }

  std::string string() {
    std::string out;
    for (++at_; peek() != '"'; ++at_) {
      require(static_cast<unsigned char>(peek()) >= 0x20, "the header is no JSON");
      if (peek() != '\\') {
        out += peek();
        continue;
      }
      ++at_;
      const char escaped = peek();
      const size_t place = std::string_view("\"\\/bfnrt").find(escaped);
      if (escaped == 'u') {
        append_utf8(out, code_point());
      } else {
        require(place != std::string_view::npos, "the header is no JSON");
        out += "\"\\/\b\f\n\r\t"[place];
      }
    }
    ++at_;
    return out;
  }

  // The four digits behind \u, and those of the second half of a pair; at the last of them afterwards.
  uint32_t code_point() {
    const uint32_t first = four_digits();
    if (first < 0xD800 || first > 0xDFFF) return first;
    require(first < 0xDC00 && text_.substr(at_ + 1, 2) == "\\u", "the header is no JSON");
    at_ += 2;
    const uint32_t second = four_digits();
    require(second >= 0xDC00 && second <= 0xDFFF, "the header is no JSON");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  uint32_t four_digits() {
    uint32_t code = 0;
    for (int n = 0; n < 4; ++n) {
      ++at_;
      const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(peek() | (peek() >= 'A' ? 0x20 : 0)));
      require(digit != std::string_view::npos, "the header is no JSON");
      code = code << 4 | static_cast<uint32_t>(digit);
    }
    return code;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    const auto byte = [&](uint32_t value) { out += static_cast<char>(value); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
      byte(0xC0 | code >> 6);
    } else if (code < 0x10000) {
      byte(0xE0 | code >> 12);
      byte(0x80 | (code >> 6 & 0x3F));
    } else {
      byte(0xF0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3F));
      byte(0x80 | (code >> 6 & 0x3F));
    }
    byte(0x80 | (code & 0x3F));
  }

  void word(std::string_view expected) {
    require(text_.substr(at_, expected.size()) == expected, "the header is no JSON");
    at_ += expected.size();
  }

  char peek() const {
    require(at_ < text_.size(), "the header ends too early");
    return text_[at_];
  }

  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
  int64_t left_;
};

}  // namespace

Json parse_json(std::string_view text, int64_t most) {
  require(is_utf8(text), "the header is not UTF-8");
  return Parser(text, most).whole();
}

bool is_utf8(std::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  const auto follows = [&](int64_t k) { return (at[k] & 0xC0) == 0x80; };
  while (at < end) {
    if (*at < 0x80) {
      ++at;
    } else if (*at >= 0xC2 && *at < 0xE0 && end - at >= 2 && follows(1)) {
      at += 2;
    } else if (*at >= 0xE0 && *at < 0xF0 && end - at >= 3 && follows(1) && follows(2) &&
               !(*at == 0xE0 && at[1] < 0xA0) && !(*at == 0xED && at[1] >= 0xA0)) {
      at += 3;
    } else if (*at >= 0xF0 && *at < 0xF5 && end - at >= 4 && follows(1) && follows(2) && follows(3) &&
               !(*at == 0xF0 && at[1] < 0x90) && !(*at == 0xF4 && at[1] >= 0x90)) {
      at += 4;
    } else {
      return false;
    }
  }
  return true;
}
