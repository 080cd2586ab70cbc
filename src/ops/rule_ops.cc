// The rules' names and text form, for Python: one parser and one list of presets serve both languages.
#include <torch/library.h>

#include "mask/rule.h"
#include "ops/value_error.h"

namespace augur {
namespace {

std::string FormatRuleOp(const std::string& rule) {
  return ReportingValueErrors([&] { return FormatRule(ParseRule(rule)); });
}

std::vector<std::string> PresetNamesOp() { return {PresetNames().begin(), PresetNames().end()}; }

}  // namespace
}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CompositeExplicitAutograd, m) {
  m.impl("format_rule", augur::FormatRuleOp);
  m.impl("preset_names", augur::PresetNamesOp);
}
