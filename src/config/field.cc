#include "config/field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

namespace augur {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

enum class Parsed { kWell, kBadly, kTooFar };

template <typename T>
Parsed ParseAll(std::string_view text, T* value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (end != text.data() + text.size() || code == std::errc::invalid_argument) return Parsed::kBadly;
  return code == std::errc() ? Parsed::kWell : Parsed::kTooFar;
}

// 1e-06 as 1.0e-06: without a dot it is text to PyYAML.
std::string YamlNumber(std::string text) {
  const size_t exponent = text.find_first_not_of("-0123456789");
  if (exponent != 0 && exponent != std::string::npos && text[exponent] == 'e') text.insert(exponent, ".0");
  return text;
}

}  // namespace

std::string Field::Kind() const {
  std::string limits;
  if (std::isfinite(limits_.least))
    limits += fmt::format(", {} {}", limits_.above ? "above" : "at least", limits_.least);
  if (std::isfinite(limits_.most)) limits += fmt::format(", at most {}", limits_.most);
  return std::visit(
      Overloaded{[](bool*) -> std::string { return "true | false"; },
                 [&](int64_t*) { return "whole number" + limits; },
                 [&](double*) { return "number" + limits; },
                 [](std::string*) -> std::string { return "text"; },
                 [](std::vector<std::string>*) -> std::string { return "list"; },
                 [](const Choice& c) { return fmt::format("{}", fmt::join(c.names, " | ")); },
                 [](const MaskField& m) { return RuleFieldKind(*m.field); },
                 [](const MaskPreset&) { return fmt::format("{}", fmt::join(PresetNames(), " | ")); }},
      value_);
}

void Field::CheckRange(double value, std::string_view where) const {
  const bool low = limits_.above ? value <= limits_.least : value < limits_.least;
  if (!std::isfinite(value) || low || value > limits_.most) {
    throw Error(where, fmt::format("{} is {}, out of range", key_, value), "give a " + Kind());
  }
}

void Field::Set(std::string_view text, std::string_view where) const {
  const auto wrong = [&](std::string_view kind) {
    return Error(where, fmt::format("{} is {}, which is not {}", key_, Quoted(text), kind), "correct it");
  };
  const auto parse = [&](auto* value, std::string_view kind) {
    const Parsed parsed = ParseAll(text, value);
    if (parsed == Parsed::kBadly) throw wrong(kind);
    if (parsed == Parsed::kTooFar) {
      throw Error(where, fmt::format("{} is {}, out of range", key_, text), "give a " + Kind());
    }
    CheckRange(static_cast<double>(*value), where);
  };
  std::visit(
      Overloaded{
          [&](bool* value) {
            constexpr std::string_view kTrue[] = {"true", "True", "TRUE"};  // as YAML has it
            constexpr std::string_view kFalse[] = {"false", "False", "FALSE"};
            *value = std::ranges::find(kTrue, text) != std::end(kTrue);
            if (!*value && std::ranges::find(kFalse, text) == std::end(kFalse)) throw wrong("true or false");
          },
          [&](int64_t* value) { parse(value, "a whole number"); },
          [&](double* value) { parse(value, "a number"); },
          [&](std::string* value) {
            if (FirstInvalidUtf8(text) != std::string_view::npos) throw wrong("valid UTF-8");
            *value = text;
          },
          [&](std::vector<std::string>*) { SetList({std::string(text)}, where); },
          [&](const Choice& choice) { choice.set(IndexOfName(where, key_ + " value", text, choice.names)); },
          [&](const MaskField& m) { AtPlace(where, [&] { SetRuleField(m.field->name, text, m.rule); }); },
          [&](const MaskPreset& preset) { AtPlace(where, [&] { *preset.rule = PresetRule(text); }); }},
      value_);
}

void Field::SetList(std::vector<std::string> items, std::string_view where) const {
  auto* const* list = std::get_if<std::vector<std::string>*>(&value_);
  if (list == nullptr) throw Error(where, fmt::format("{} takes one value, not a list", key_), "give one");
  for (const std::string& item : items) {
    if (item.empty() || FirstInvalidUtf8(item) != std::string_view::npos) {
      throw Error(where, fmt::format("{} holds {}", key_, Quoted(item)), "give text that is not empty");
    }
  }
  **list = std::move(items);
}

std::string Field::Yaml() const {
  return std::visit(
      Overloaded{[](const bool* value) -> std::string { return *value ? "true" : "false"; },
                 [](const int64_t* value) { return fmt::format("{}", *value); },
                 [](const double* value) { return YamlNumber(fmt::format("{}", *value)); },
                 [](const std::string* value) { return YamlString(*value); },
                 [](const std::vector<std::string>* list) {
                   std::vector<std::string> items;
                   for (const std::string& item : *list) items.push_back(YamlString(item));
                   return fmt::format("[{}]", fmt::join(items, ", "));
                 },
                 [](const Choice& choice) { return std::string(choice.names[choice.get()]); },
                 [](const MaskField& m) { return YamlNumber(RuleFieldText(*m.rule, m.field->name)); },
                 [](const MaskPreset&) -> std::string { return ""; }},
      value_);
}

void FieldList::Section(std::string_view name, std::string_view description) {
  sections_.push_back({std::string(name), std::string(description), {}});
}

void FieldList::AddName(std::string_view name, std::string& value, std::span<const std::string_view> names,
                        std::string_view description) {
  AddField(name,
           Choice{.names = names,
                  .get = [&value, names] { return std::ranges::find(names, value) - names.begin(); },
                  .set = [&value, names](size_t index) { value = names[index]; }},
           {}, description);
}

void FieldList::AddField(std::string_view name, FieldValue value, Limits limits,
                         std::string_view description) {
  FieldSection& section = sections_.back();
  section.fields.emplace_back(fmt::format("{}.{}", section.name, name), std::move(value), limits,
                              description);
}

const Field* FieldList::Find(std::string_view key) const {
  for (const FieldSection& section : sections_) {
    for (const Field& field : section.fields) {
      if (field.key() == key) return &field;
    }
  }
  return nullptr;
}

std::vector<std::string_view> FieldList::Keys() const {
  std::vector<std::string_view> keys;
  for (const FieldSection& section : sections_) {
    for (const Field& field : section.fields) keys.push_back(field.key());
  }
  return keys;
}

std::string YamlString(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  const bool begins_plainly = !text.empty() && text.find_first_of("0123456789-.") != 0;
  const bool special =
      text == "null" || text == "Null" || text == "NULL" || text == "true" || text == "false";
  if (begins_plainly && !special && text.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(text);
  return Json(std::string(text)).dump();
}

}  // namespace augur
