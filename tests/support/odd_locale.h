// OddLocale: while it lives, the program's locale writes 1234.5 as 1.234,5, as many do.
#pragma once

#include <locale>
#include <string>

namespace engine::test {

class OddLocale {
 public:
  OddLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new Numbers))) {}
  ~OddLocale() { std::locale::global(before_); }
  OddLocale(const OddLocale&) = delete;

 private:
  struct Numbers : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  std::locale before_;
};

}  // namespace engine::test
