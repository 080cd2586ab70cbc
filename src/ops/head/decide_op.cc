// Registers augur::decide. Decisions carry no gradient.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/head/decide.h"
#include "ops/value_error.h"

namespace augur {
namespace {

using DecideOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

DecideOutputs DecideOp(const at::Tensor& behaviour, const at::Tensor& policy, const at::Tensor& advantages,
                       c10::SymInt vocab_size, const std::optional<at::Tensor>& tail_square,
                       std::string_view rule, bool validate) {
  return ReportingValueErrors(behaviour, [&]() -> DecideOutputs {
    const Decisions d = Decide(ParseRule(rule), behaviour, policy, advantages, vocab_size.expect_int(),
                               tail_square, validate);
    return {d.ratio, d.divergence, d.direction, d.keep, d.flags};
  });
}

DecideOutputs DecideMeta(const at::Tensor& behaviour, const at::Tensor& policy, const at::Tensor&,
                         c10::SymInt, const std::optional<at::Tensor>&, std::string_view, bool) {
  const bool wide = behaviour.scalar_type() == at::kDouble && policy.scalar_type() == at::kDouble;
  const auto options = behaviour.options().dtype(wide ? at::kDouble : at::kFloat);
  const auto like = [&](at::ScalarType type) {
    return at::empty_symint({behaviour.sym_size(0)}, options.dtype(type));
  };
  const auto floats = options.dtype().toScalarType();
  return {like(floats), like(floats), like(floats), like(at::kBool), like(at::kByte)};
}

}  // namespace
}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CPU, m) { m.impl("decide", augur::DecideOp); }
TORCH_LIBRARY_IMPL(augur, CUDA, m) { m.impl("decide", augur::DecideOp); }
TORCH_LIBRARY_IMPL(augur, Meta, m) { m.impl("decide", augur::DecideMeta); }
