// The rules' names and text form and the aggregations, for Python: one parser and one list of presets serve
// both.
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include "mask/aggregation.h"
#include "mask/rule.h"
#include "ops/value_error.h"

namespace augur {
namespace {

std::string FormatRuleOp(const std::string& rule) {
  return ReportingValueErrors([&] { return FormatRule(ParseRule(rule)); });
}

std::vector<std::string> PresetNamesOp() { return {PresetNames().begin(), PresetNames().end()}; }

at::Tensor TokenWeightsOp(const at::Tensor& sequences, std::string_view aggregation, int64_t horizon) {
  return ReportingValueErrors([&] {
    if (sequences.dim() != 1) throw Error("sequences", "is not one-dimensional", "pass one number per token");
    const at::Tensor ids = sequences.to(at::kCPU, at::kLong).contiguous();
    std::vector<float> weights =
        TokenWeights(ParseAggregation(aggregation),
                     {ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())}, horizon);
    return at::from_blob(weights.data(), {ids.numel()}, at::kFloat).clone().to(sequences.device());
  });
}

}  // namespace
}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CompositeExplicitAutograd, m) {
  m.impl("format_rule", augur::FormatRuleOp);
  m.impl("preset_names", augur::PresetNamesOp);
  m.impl("token_weights", augur::TokenWeightsOp);
}
