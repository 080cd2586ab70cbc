#include "config/write.h"

#include <fmt/format.h>

#include <algorithm>

namespace augur {
namespace {

std::string LeafOf(const std::string& key) { return key.substr(key.find('.') + 1); }

// A value inside a table's cell.
std::string Cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string WrapAt(const std::string& text, size_t width, const std::string& indent) {
  std::string wrapped;
  size_t column = 0, begin = 0;
  while (begin < text.size()) {
    const size_t space = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, space - begin);
    if (column > 0 && column + word.size() > width) {
      wrapped += "\n" + indent;
      column = 0;
    }
    wrapped += word + " ";
    column += word.size() + 1;
    begin = space + 1;
  }
  while (wrapped.ends_with(' ')) wrapped.pop_back();
  return wrapped;
}

std::string HelpLine(const Field& field) {
  constexpr size_t kKeyWidth = 32, kTextWidth = 84;
  std::string description = field.description();
  if (field.is_saved()) description += fmt::format(" ({}; default {})", field.Kind(), field.Yaml());
  return fmt::format("  {:<{}}{}\n", field.key(), kKeyWidth - 2,
                     WrapAt(description, kTextWidth, std::string(kKeyWidth, ' ')));
}

bool Decides(const Field& field) { return field.is_saved() && !field.may_change_on_resume(); }

template <typename Config>
std::vector<std::string> Changes(Config* before, Config* now) {
  const FieldList old_fields = FieldsOf(*before), new_fields = FieldsOf(*now);
  std::vector<std::string> changed;
  for (const std::string_view key : new_fields.Keys()) {
    const Field& was = *old_fields.Find(key);
    const Field& is = *new_fields.Find(key);
    if (Decides(is) && was.Yaml() != is.Yaml()) {
      changed.push_back(fmt::format("{}: {} -> {}", key, was.Yaml(), is.Yaml()));
    }
  }
  return changed;
}

std::string StepsChange(std::string_view key, int64_t before, int64_t now, bool with_schedule) {
  return with_schedule && before != now ? fmt::format("{}: {} -> {}", key, before, now) : "";
}

}  // namespace

std::string ToYaml(const FieldList& fields) {
  std::string text;
  for (const FieldSection& section : fields.sections()) {
    text += section.name + ":\n";
    for (const Field& field : section.fields) {
      if (field.is_saved()) text += fmt::format("  {}: {}\n", LeafOf(field.key()), field.Yaml());
    }
  }
  return text;
}

std::string HelpText(const FieldList& fields) {
  std::string text;
  for (const FieldSection& section : fields.sections()) {
    text += fmt::format("\n{}: {}\n", section.name, section.description);
    for (const Field& field : section.fields) text += HelpLine(field);
  }
  return text;
}

std::string HelpText(const FieldList& fields, std::span<const std::string_view> keys) {
  std::string text;
  for (const std::string_view key : keys) text += HelpLine(*fields.Find(key));
  return text;
}

std::string ToMarkdown(const FieldList& fields) {
  std::string text;
  for (const FieldSection& section : fields.sections()) {
    text += fmt::format("\n### `{}`\n{}\n\n| key | default | value | |\n|---|---|---|---|\n", section.name,
                        section.description);
    for (const Field& field : section.fields) {
      const std::string value = field.is_saved() ? fmt::format("`{}`", Cell(field.Yaml())) : "";
      text += fmt::format("| `{}` | {} | {} | {} |\n", LeafOf(field.key()), value, Cell(field.Kind()),
                          Cell(field.description()));
    }
  }
  return text;
}

std::vector<std::string> ChangedKeys(RlConfig before, RlConfig now) { return Changes(&before, &now); }
std::vector<std::string> ChangedKeys(SftConfig before, SftConfig now) { return Changes(&before, &now); }

std::string ScheduleChange(const RlConfig& before, const RlConfig& now) {
  return StepsChange("train.steps", before.train.steps, now.train.steps,
                     now.train.optimizer.schedule != Schedule::kConstant);
}
std::string ScheduleChange(const SftConfig& before, const SftConfig& now) {
  return StepsChange("sft.steps", before.sft.steps, now.sft.steps,
                     now.sft.optimizer.schedule != Schedule::kConstant);
}

}  // namespace augur
