#include "ops/layer/shared_prefixes.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of the copies of the same rows, which follow each other.
void AddCopies(const at::Tensor& tokens, const SharedPrefixes& shared, const at::Tensor& rows) {
  for (auto copy = shared.copies.begin(); copy != shared.copies.end();) {
    const at::Tensor first = rows.narrow(0, copy->row, copy->length);
    const at::Tensor sum = first.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    for (const int64_t row = copy->row; copy != shared.copies.end() && copy->row == row; ++copy) {
      sum.add_(tokens.narrow(0, copy->place, copy->length));
    }
    first.copy_(sum);
  }
}

struct CopyFunction : torch::autograd::Function<CopyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const SharedPrefixes& shared) {
    context->saved_data["shared"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(shared));
    return rows.index_select(0, shared.sources);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto kept = context->saved_data["shared"].toCapsule();
    const SharedPrefixes& shared = static_cast<const Kept*>(kept.get())->shared;
    const at::Tensor grad = grads[0].index_select(0, shared.places);
    AddCopies(grads[0], shared, grad);
    return {grad, {}};
  }

  struct Kept : torch::CustomClassHolder {
    explicit Kept(SharedPrefixes from) : shared(std::move(from)) {}
    SharedPrefixes shared;
  };
};

struct DropFunction : torch::autograd::Function<DropFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& places) {
    context->save_for_backward({places});
    context->saved_data["tokens"] = tokens.size(0);
    return tokens.index_select(0, places);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor places = context->get_saved_variables()[0];
    const at::Tensor grad =
        at::zeros({context->saved_data["tokens"].toInt(), grads[0].size(1)}, grads[0].options());
    return {grad.index_copy_(0, places, grads[0]), {}};
  }
};

}  // namespace

at::Tensor CopyPrefixes(const at::Tensor& rows, const SharedPrefixes& shared) {
  return shared.empty() ? rows : CopyFunction::apply(rows, shared);
}

at::Tensor DropCopies(const at::Tensor& tokens, const SharedPrefixes& shared) {
  return shared.empty() ? tokens : DropFunction::apply(tokens, shared.places);
}

}  // namespace augur
