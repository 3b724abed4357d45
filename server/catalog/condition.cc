// What conditions of the catalogue mean, and how an unmet one is told.

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/catalog/catalog.h"

namespace fuseboard {
namespace {

std::string ValueText(const v1::AttributeValue& value) {
  switch (value.value_case()) {
    case v1::AttributeValue::kText:
      return absl::StrCat("\"", value.text(), "\"");
    case v1::AttributeValue::kInteger:
      return absl::StrCat(value.integer());
    case v1::AttributeValue::kNumber:
      return absl::StrCat(value.number());
    case v1::AttributeValue::kFlag:
      return value.flag() ? "true" : "false";
    case v1::AttributeValue::VALUE_NOT_SET:
      return "nothing";
  }
  return "nothing";
}

// Python's 1 and 1.0 are one value; True is a flag here and equals only a flag.
std::optional<double> AsNumber(const v1::AttributeValue& value) {
  if (value.value_case() == v1::AttributeValue::kInteger) {
    return static_cast<double>(value.integer());
  }
  if (value.value_case() == v1::AttributeValue::kNumber) return value.number();
  return std::nullopt;
}

bool SameValue(const v1::AttributeValue& a, const v1::AttributeValue& b) {
  if (a.value_case() == b.value_case()) {
    switch (a.value_case()) {
      case v1::AttributeValue::kText:
        return a.text() == b.text();
      case v1::AttributeValue::kInteger:
        return a.integer() == b.integer();
      case v1::AttributeValue::kNumber:
        return a.number() == b.number();
      case v1::AttributeValue::kFlag:
        return a.flag() == b.flag();
      case v1::AttributeValue::VALUE_NOT_SET:
        return false;
    }
  }
  const std::optional<double> x = AsNumber(a);
  const std::optional<double> y = AsNumber(b);
  return x.has_value() && y.has_value() && *x == *y;
}

std::string OneOf(const std::vector<std::string>& wanted) {
  return absl::StrCat(wanted.size() == 1 ? "want " : "want one of ", absl::StrJoin(wanted, ", "));
}

template <typename Texts>
std::vector<std::string> Quoted(const Texts& texts) {
  std::vector<std::string> quoted;
  for (const std::string& text : texts) quoted.push_back(absl::StrCat("\"", text, "\""));
  return quoted;
}

std::string UnmetRange(const v1::AttributeCondition& condition, const v1::AttributeValue& value) {
  if (!condition.has_min() && !condition.has_max()) return "";
  const std::optional<double> number = AsNumber(value);
  // A NaN lies in no range.
  const bool inside = number.has_value() && !std::isnan(*number) &&
                      (!condition.has_min() || *number >= condition.min()) &&
                      (!condition.has_max() || *number <= condition.max());
  if (inside) return "";
  std::string wanted = "want a number";
  if (condition.has_min()) absl::StrAppend(&wanted, " of at least ", condition.min());
  if (condition.has_min() && condition.has_max()) absl::StrAppend(&wanted, " and");
  if (condition.has_max()) absl::StrAppend(&wanted, " of at most ", condition.max());
  return absl::StrCat("attribute ", condition.name(), " is ", ValueText(value), ", ", wanted);
}

std::string UnmetAttribute(const v1::AttributeCondition& condition, const v1::Site& site) {
  const auto it = site.attributes().find(condition.name());
  if (it == site.attributes().end()) {
    return absl::StrCat("attribute ", condition.name(), " is not there, want it");
  }
  if (condition.any_of().empty()) return UnmetRange(condition, it->second);
  std::vector<std::string> wanted;
  for (const v1::AttributeValue& value : condition.any_of()) {
    if (SameValue(value, it->second)) return UnmetRange(condition, it->second);
    wanted.push_back(ValueText(value));
  }
  return absl::StrCat("attribute ", condition.name(), " is ", ValueText(it->second), ", ",
                      OneOf(wanted));
}

std::string UnmetChild(const v1::ChildCondition& condition, const v1::Site& site) {
  const auto it = site.children().find(condition.name());
  if (it == site.children().end()) {
    return absl::StrCat("submodule ", condition.name(), " is not there, ",
                        OneOf(Quoted(condition.any_of())));
  }
  for (const std::string& wanted : condition.any_of()) {
    if (wanted == it->second) return "";
  }
  return absl::StrCat("submodule ", condition.name(), " is \"", it->second, "\", ",
                      OneOf(Quoted(condition.any_of())));
}

std::string UnmetParameter(const v1::ParameterCondition& condition, const v1::Site& site) {
  const auto it = site.parameters().find(condition.name());
  const bool present = it != site.parameters().end();
  if (present != condition.present()) {
    return absl::StrCat("parameter ", condition.name(), present ? " is there" : " is not there",
                        condition.present() ? ", want it" : ", want none");
  }
  if (!present) return "";
  const v1::ParameterShape& shape = it->second;
  if (condition.has_ndim() && shape.shape_size() != condition.ndim()) {
    return absl::StrCat("parameter ", condition.name(), " has ", shape.shape_size(),
                        " dimensions, want ", condition.ndim());
  }
  if (condition.dtypes().empty()) return "";
  for (const std::string& dtype : condition.dtypes()) {
    if (dtype == shape.dtype()) return "";
  }
  return absl::StrCat("parameter ", condition.name(), " is \"", shape.dtype(), "\", ",
                      OneOf(Quoted(condition.dtypes())));
}

}  // namespace

std::string UnmetCondition(const v1::Condition& condition, const v1::Site& site) {
  switch (condition.condition_case()) {
    case v1::Condition::kAttribute:
      return UnmetAttribute(condition.attribute(), site);
    case v1::Condition::kChild:
      return UnmetChild(condition.child(), site);
    case v1::Condition::kParameter:
      return UnmetParameter(condition.parameter(), site);
    case v1::Condition::CONDITION_NOT_SET:
      break;
  }
  // Validation lets none through; what cannot be understood is not met.
  return "the condition says nothing, want attribute, child or parameter";
}

}  // namespace fuseboard
