#include "ops/head/head_gradients.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "ops/layer/product.h"

namespace augur {

HeadGradients::HeadGradients(const Head& head, const at::Tensor& weight, const HeadWants& wants,
                             bool accumulate_float32, int64_t chunks)
    : head_(head), weight_(weight) {
  const bool narrow = head.weight.element_size() == 2;
  // One GEMM accumulates in float32 by itself: a single chunk is rounded once either way.
  const bool wide = MultipliesInFloat(head.weight) || (narrow && accumulate_float32 && chunks > 1);
  const auto type = wide ? at::kFloat : head.weight.scalar_type();
  if (wants.hidden) hidden_sum_ = at::zeros_like(head.hidden);
  if (wants.weight) {
    weight_sum_ = at::empty(head.weight.sizes(), head.weight.options().dtype(type));
    // The first chunk overwrites its rows, so only the padding is cleared here.
    weight_sum_.narrow(0, weight.size(0), head.weight.size(0) - weight.size(0)).zero_();
    if (head.weight.is_cpu() && type != weight.scalar_type()) weight_part_ = at::empty_like(weight);
  }
  if (wants.bias) {
    bias_sum_ = at::zeros({head.bias.size(0)}, head.bias.options().dtype(narrow ? at::kFloat : type));
  }
}

void HeadGradients::AddWeight(const GradientRows& rows) {
  at::Tensor sum = weight_sum_.narrow(0, 0, weight_.size(0));
  const at::Tensor transposed = Factor(rows.values).t();
  at::Tensor hidden = rows.hidden;
  if (rows.factor.defined()) {
    // A row's factor may stand on either side of the product, and this one is narrow.
    hidden = at::empty_like(rows.hidden);
    at::mul_out(hidden, rows.hidden, rows.factor.unsqueeze(1));
  }
  hidden = Factor(hidden);
  if (weight_part_.defined()) {
    ProductInto(weight_part_, transposed, hidden);
    started_ ? sum.add_(weight_part_) : sum.copy_(weight_part_);
  } else if (sum.scalar_type() != hidden.scalar_type()) {
    started_ ? at::addmm_out(sum, sum, transposed, hidden, sum.scalar_type())
             : at::mm_out(sum, transposed, hidden, sum.scalar_type());
  } else if (started_) {
    at::addmm_out(sum, sum, transposed, hidden);
  } else {
    ProductInto(sum, transposed, hidden);
  }
  started_ = true;
}

void HeadGradients::AddBias(const GradientRows& rows) {
  const at::Tensor sum = rows.factor.defined() ? rows.values.t().mv(rows.factor.to(rows.values.scalar_type()))
                                               : rows.values.sum(0, false, bias_sum_.scalar_type());
  bias_sum_.narrow(0, 0, weight_.size(0)).add_(sum);
}

void HeadGradients::SetHidden(const GradientRows& rows) {
  at::Tensor product = rows.tokens.defined() ? at::empty_like(rows.hidden)
                                             : hidden_sum_.narrow(0, rows.begin, rows.values.size(0));
  ProductInto(product, rows.values, weight_);
  if (rows.factor.defined()) product.mul_(rows.factor.unsqueeze(1));
  if (rows.tokens.defined()) hidden_sum_.index_copy_(0, rows.tokens, product);
}

void HeadGradients::Add(const GradientRows& rows) {
  if (weight_sum_.defined()) AddWeight(rows);
  if (bias_sum_.defined()) AddBias(rows);
  if (hidden_sum_.defined()) SetHidden(rows);
}

void HeadGradients::Finish(HeadPassResult* out) {
  weight_part_ = at::Tensor();
  out->hidden_gradient = hidden_sum_;
  if (weight_sum_.defined()) {
    if (!started_) weight_sum_.zero_();
    out->weight_gradient = weight_sum_.to(head_.weight.scalar_type());
  }
  if (bias_sum_.defined()) out->bias_gradient = bias_sum_.to(head_.bias.scalar_type());
}

}  // namespace augur
