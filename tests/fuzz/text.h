// Small checkers of what the engine writes for other programs: JSON (RFC 8259) and DOT as far as it is used.
#pragma once

#include <cstdint>
#include <string_view>

namespace engine::fuzz {

// One JSON value and nothing behind it, in valid UTF-8.
class Json {
 public:
  static bool Valid(std::string_view text) {
    Json json{text};
    return json.Value() && (json.Space(), json.at_ == text.size());
  }

 private:
  explicit Json(std::string_view text) : text_(text) {}
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) { return Peek() == c && ++at_; }
  void Space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(Peek()) != std::string_view::npos) ++at_;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool Digits() {
    const size_t from = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    return at_ > from;
  }
  bool Number() {
    (void)Take('-');
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (Take('e') || Take('E')) {
      if (!Take('+')) (void)Take('-');
      return Digits();
    }
    return true;
  }
  bool Character() {
    const auto c = static_cast<unsigned char>(Peek());
    if (c < 0x20) return false;
    ++at_;
    if (c < 0x80) return true;
    const int more = c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
    uint32_t point = c & (0x3f >> more);
    for (int i = 0; i < more; ++i) {
      if ((Peek() & 0xc0) != 0x80) return false;
      point = point << 6 | (static_cast<unsigned char>(text_[at_++]) & 0x3f);
    }
    if (more == 2) return point >= 0x800 && (point < 0xd800 || point > 0xdfff);
    if (more == 3) return point >= 0x10000 && point <= 0x10ffff;
    return more == 1;
  }
  bool String() {
    if (!Take('"')) return false;
    while (!Take('"')) {
      if (!Take('\\')) {
        if (!Character()) return false;
      } else if (Take('u')) {
        for (int i = 0; i < 4; ++i, ++at_)
          if (std::string_view("0123456789abcdefABCDEF").find(Peek()) == std::string_view::npos || !Peek())
            return false;
      } else if (std::string_view("\"\\/bfnrt").find(Peek()) == std::string_view::npos || !Peek()) {
        return false;
      } else {
        ++at_;
      }
    }
    return true;
  }
  template <class Member>
  bool List(char close, Member&& member) {
    Space();
    if (Take(close)) return true;
    do {
      if (!member()) return false;
      Space();
    } while (Take(','));
    return Take(close);
  }
  bool Value() {
    Space();
    if (Take('{')) return List('}', [this] { return Space(), String() && (Space(), Take(':')) && Value(); });
    if (Take('[')) return List(']', [this] { return Value(); });
    if (Peek() == '"') return String();
    return Word("true") || Word("false") || Word("null") || Number();
  }
  std::string_view text_;
  size_t at_ = 0;
};

// Strings are closed, braces and brackets match, and outside of strings stands only what the writers put there.
inline bool ValidDot(std::string_view text) {
  int depth = 0;
  bool string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (string) {
      if (c == '\\') ++i;
      if (c == '"') string = false;
      continue;
    }
    string = c == '"';
    depth += c == '{' || c == '[';
    depth -= c == '}' || c == ']';
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (depth < 0 || (!word && std::string_view(" \n\"{}[]=;,->_").find(c) == std::string_view::npos)) return false;
  }
  return depth == 0 && !string;
}

}  // namespace engine::fuzz
