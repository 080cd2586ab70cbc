// The rules' fields, names and text form and the aggregations, for Python: one list serves both.
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include "base/json.h"
#include "mask/aggregation.h"
#include "mask/rule.h"
#include "ops/value_error.h"

namespace augur {
namespace {

std::string FormatRuleOp(const std::string& rule) {
  return ReportingValueErrors([&] { return FormatRule(ParseRule(rule)); });
}

// The list of mask/rule.h as JSON.
std::string RuleFieldsOp() {
  Json fields = Json::array();
  for (const RuleField& field : RuleFields()) {
    const std::string initial = RuleFieldText(MaskRule(), field.name);
    const bool number = field.choices.empty();
    fields.push_back({{"name", field.name},
                      {"description", field.description},
                      {"kind", RuleFieldKind(field)},
                      {"choices", std::vector<std::string>(field.choices.begin(), field.choices.end())},
                      {"default", number ? Json::parse(initial) : Json(initial)}});
  }
  return fields.dump();
}

std::vector<std::string> PresetNamesOp() { return {PresetNames().begin(), PresetNames().end()}; }

at::Tensor TokenWeightsOp(const at::Tensor& sequences, std::string_view aggregation, int64_t horizon) {
  return ReportingValueErrors([&] {
    if (sequences.dim() != 1) throw Error("sequences", "is not one-dimensional", "pass one number per token");
    const at::Tensor ids = sequences.to(at::kCPU, at::kLong).contiguous();
    std::vector<float> weights =
        TokenWeights(ParseName<Aggregation>("aggregation", "aggregation", aggregation),
                     {ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())}, horizon);
    return at::from_blob(weights.data(), {ids.numel()}, at::kFloat).clone().to(sequences.device());
  });
}

}  // namespace
}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CompositeExplicitAutograd, m) {
  m.impl("format_rule", augur::FormatRuleOp);
  m.impl("rule_fields", augur::RuleFieldsOp);
  m.impl("preset_names", augur::PresetNamesOp);
  m.impl("token_weights", augur::TokenWeightsOp);
}
