// The operators' schemas: what torch.ops.augur offers. Each file of this room registers its own
// implementations.
#include <torch/library.h>

#include <string>

namespace {

// Of both losses, behind their logits or hidden states.
const std::string kLossArguments =
    "Tensor support_ids, Tensor support_logprobs, Tensor advantages, Tensor? weights, "
    "Tensor? reference_logprobs, str rule, float temperature, SymInt vocab_size, float softcap, "
    "float entropy_bonus, float kl_coef, str reference_kl, bool validate";
const std::string kHeadArguments =
    "Tensor hidden, Tensor weight, Tensor? bias, " + kLossArguments +
    ", SymInt chunk, bool accumulate_float32, float grad_scale, str group, SymInt vocab_start";
const std::string kLossOutputs =
    "Tensor loss, Tensor logprobs, Tensor entropy, Tensor ratio, Tensor divergence, Tensor direction, "
    "Tensor keep, Tensor flags, Tensor sums";

}  // namespace

// Named on the link line, so that this file is never left out of a program.
extern "C" const int augur_operator_schemas;
const int augur_operator_schemas = 1;

TORCH_LIBRARY(augur, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "decide(Tensor behaviour, Tensor policy, Tensor advantages, SymInt vocab_size, Tensor? tail_square, "
      "str rule, bool validate, Tensor? tail_cube=None, Tensor? lengths=None) -> (Tensor ratio, "
      "Tensor divergence, Tensor direction, Tensor keep, Tensor flags, Tensor coefficient)",
      tags);
  const std::string policy_loss =
      "policy_loss(Tensor logits, " + kLossArguments + ") -> (" + kLossOutputs +
      ", Tensor log_sum_exp, Tensor dense, Tensor entropy_weight, Tensor support)";
  m.def(policy_loss.c_str(), tags);
  m.def(
      "policy_loss_backward(Tensor grad_loss, Tensor logits, Tensor support, Tensor log_sum_exp, "
      "Tensor entropy, Tensor dense, Tensor entropy_weight, float temperature, SymInt vocab_size, "
      "float softcap) -> Tensor",
      tags);
  const std::string head = "linear_policy_loss(" + kHeadArguments + ") -> (" + kLossOutputs + ")";
  m.def(head.c_str(), tags);
  // With the gradients of what is `wanted` of hidden, weight and bias; autograd calls it.
  const std::string head_gradients =
      "linear_policy_loss_gradients(" + kHeadArguments + ", bool[3] wanted) -> (" + kLossOutputs +
      ", Tensor hidden_gradient, Tensor weight_gradient, Tensor bias_gradient)";
  m.def(head_gradients.c_str(), tags);
  m.def("format_rule(str rule) -> str");
  m.def("rule_fields() -> str");
  m.def("preset_names() -> str[]");
  m.def("token_weights(Tensor sequences, str aggregation, int horizon) -> Tensor");
}
