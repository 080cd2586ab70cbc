// Registers augur::decide. Decisions carry no gradient.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/head/decide.h"
#include "ops/value_error.h"

namespace augur {
namespace {

using DecideOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

DecideOutputs DecideOp(const at::Tensor& behaviour, const at::Tensor& policy, const at::Tensor& advantages,
                       c10::SymInt vocab_size, const OptionalTensor& tail_square, std::string_view rule,
                       bool validate, const OptionalTensor& tail_cube, const OptionalTensor& lengths) {
  return ReportingValueErrors(behaviour, [&]() -> DecideOutputs {
    const at::Tensor none;
    const DecideFacts facts{tail_square.value_or(none), tail_cube.value_or(none), none,
                            lengths.value_or(none)};
    const Decisions d =
        Decide(ParseRule(rule), behaviour, policy, advantages, vocab_size.expect_int(), facts, validate);
    return {d.ratio, d.divergence, d.direction, d.keep, d.flags, d.coefficient};
  });
}

DecideOutputs DecideMeta(const at::Tensor& behaviour, const at::Tensor& policy, const at::Tensor&,
                         c10::SymInt, const OptionalTensor&, std::string_view, bool, const OptionalTensor&,
                         const OptionalTensor&) {
  const bool wide = behaviour.scalar_type() == at::kDouble && policy.scalar_type() == at::kDouble;
  const auto options = behaviour.options().dtype(wide ? at::kDouble : at::kFloat);
  const auto like = [&](at::ScalarType type) {
    return at::empty_symint({behaviour.sym_size(0)}, options.dtype(type));
  };
  const auto floats = options.dtype().toScalarType();
  return {like(floats), like(floats), like(floats), like(at::kBool), like(at::kByte), like(floats)};
}

}  // namespace
}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CPU, m) { m.impl("decide", augur::DecideOp); }
TORCH_LIBRARY_IMPL(augur, CUDA, m) { m.impl("decide", augur::DecideOp); }
TORCH_LIBRARY_IMPL(augur, Meta, m) { m.impl("decide", augur::DecideMeta); }
