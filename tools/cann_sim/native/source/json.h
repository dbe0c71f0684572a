// JSON values: enough to write operator records and to read an op library's indexes.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace sim {

struct Json;
using Array = std::vector<Json>;
using Object = std::map<std::string, Json>;

// One JSON value. The accessors throw JsonError where the value is of another kind.
struct Json {
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value = nullptr;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool given) : value(given) {}
  Json(int given) : value(static_cast<int64_t>(given)) {}
  Json(int64_t given) : value(given) {}
  Json(double given) : value(given) {}
  Json(const char* given) : value(std::string(given)) {}
  Json(std::string given) : value(std::move(given)) {}
  Json(Array given) : value(std::move(given)) {}
  Json(Object given) : value(std::move(given)) {}
  Json(const std::vector<int64_t>& given) : value(Array(given.begin(), given.end())) {}

  const Object& object() const;
  const Array& array() const;
  const std::string& text() const;
  int64_t whole() const;
  // The member called `name`; JsonError where this is no object or has none.
  const Json& at(const std::string& name) const;

  // As Python's json.dumps(value, sort_keys=True, indent=2) writes it.
  std::string written() const;
};

struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The value in `text`; JsonError where it is not one whole JSON document.
Json parse_json(const std::string& text);

}  // namespace sim
