#include "json.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace sim {
namespace {

template <class Kind>
const Kind& get(const Json& json, const char* what) {
  const Kind* found = std::get_if<Kind>(&json.value);
  if (found == nullptr) throw JsonError(std::string("not ") + what);
  return *found;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

std::string number(double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string out(text, end);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

void write(const Json& json, int depth, std::string& out);

void write_items(size_t count, int depth, std::string& out, char open, char close, auto&& item) {
  out += open;
  for (size_t i = 0; i < count; ++i) {
    out += i ? ",\n" : "\n";
    out.append(2 * (depth + 1), ' ');
    item(i);
  }
  if (count) {
    out += '\n';
    out.append(2 * depth, ' ');
  }
  out += close;
}

void write(const Json& json, int depth, std::string& out) {
  if (const auto* object = std::get_if<Object>(&json.value)) {
    auto member = object->begin();
    write_items(object->size(), depth, out, '{', '}', [&](size_t) {
      out += quoted(member->first) + ": ";
      write((member++)->second, depth + 1, out);
    });
  } else if (const auto* array = std::get_if<Array>(&json.value)) {
    write_items(array->size(), depth, out, '[', ']', [&](size_t i) { write((*array)[i], depth + 1, out); });
  } else if (const auto* text = std::get_if<std::string>(&json.value)) {
    out += quoted(*text);
  } else if (const auto* whole = std::get_if<int64_t>(&json.value)) {
    out += std::to_string(*whole);
  } else if (const auto* real = std::get_if<double>(&json.value)) {
    out += number(*real);
  } else if (const auto* flag = std::get_if<bool>(&json.value)) {
    out += *flag ? "true" : "false";
  } else {
    out += "null";
  }
}

class Parser {
 public:
  explicit Parser(const std::string& text) : at_(text.data()), end_(text.data() + text.size()) {}

  Json document() {
    Json found = value(0);
    if (peek() != '\0' || at_ != end_) fail("more than one value");
    return found;
  }

 private:
  static constexpr int kMaxDepth = 64;

  [[noreturn]] static void fail(const char* why) { throw JsonError(std::string("not JSON: ") + why); }

  char peek() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    return at_ == end_ ? '\0' : *at_;
  }

  void expect(char wanted) {
    if (peek() != wanted) fail("a character is missing");
    ++at_;
  }

  Json value(int depth) {
    if (depth > kMaxDepth) fail("nested too deeply");
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return string();
      case 't':
        return word("true", true);
      case 'f':
        return word("false", false);
      case 'n':
        return word("null", nullptr);
      default:
        return number();
    }
  }

  Json object(int depth) {
    Object found;
    expect('{');
    while (peek() != '}') {
      if (!found.empty()) expect(',');
      peek();
      std::string name = string();
      expect(':');
      found[std::move(name)] = value(depth + 1);
    }
    ++at_;
    return found;
  }

  Json array(int depth) {
    Array found;
    expect('[');
    while (peek() != ']') {
      if (!found.empty()) expect(',');
      found.push_back(value(depth + 1));
    }
    ++at_;
    return found;
  }

  std::string string() {
    expect('"');
    std::string found;
    while (true) {
      if (at_ == end_) fail("text without end");
      const char c = *at_++;
      if (c == '"') return found;
      found += c == '\\' ? escaped() : std::string(1, c);
    }
  }

  std::string escaped() {
    if (at_ == end_) fail("text without end");
    const char c = *at_++;
    switch (c) {
      case 'n':
        return "\n";
      case 't':
        return "\t";
      case 'r':
        return "\r";
      case 'b':
        return "\b";
      case 'f':
        return "\f";
      case 'u':
        return code_point();
      default:
        return std::string(1, c);
    }
  }

  std::string code_point() {
    unsigned code = 0;
    if (end_ - at_ < 4 || std::from_chars(at_, at_ + 4, code, 16).ptr != at_ + 4) fail("a bad escape");
    at_ += 4;
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    std::string out;
    if (code >= 0x800) {
      out += static_cast<char>(0xE0 | code >> 12);
      out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    } else {
      out += static_cast<char>(0xC0 | code >> 6);
    }
    return out + static_cast<char>(0x80 | (code & 0x3F));
  }

  Json word(const std::string& wanted, Json meaning) {
    if (static_cast<size_t>(end_ - at_) < wanted.size() || std::string(at_, wanted.size()) != wanted) fail("an unknown word");
    at_ += wanted.size();
    return meaning;
  }

  Json number() {
    const char* stop = at_;
    while (stop != end_ && std::string("+-0123456789.eE").find(*stop) != std::string::npos) ++stop;
    int64_t whole = 0;
    if (std::from_chars(at_, stop, whole).ptr == stop && stop != at_) {
      at_ = stop;
      return whole;
    }
    double real = 0;
    if (std::from_chars(at_, stop, real).ptr != stop || stop == at_) fail("not a value");
    at_ = stop;
    return real;
  }

  const char* at_;
  const char* end_;
};

}  // namespace

const Object& Json::object() const { return get<Object>(*this, "an object"); }
const Array& Json::array() const { return get<Array>(*this, "an array"); }
const std::string& Json::text() const { return get<std::string>(*this, "text"); }
int64_t Json::whole() const { return get<int64_t>(*this, "a whole number"); }

const Json& Json::at(const std::string& name) const {
  const auto found = object().find(name);
  if (found == object().end()) throw JsonError("no " + name);
  return found->second;
}

std::string Json::written() const {
  std::string out;
  write(*this, 0, out);
  return out;
}

Json parse_json(const std::string& text) { return Parser(text).document(); }

}  // namespace sim
