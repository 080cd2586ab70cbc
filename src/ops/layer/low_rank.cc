#include "ops/layer/low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "ops/layer/product.h"

namespace augur {

std::vector<at::Tensor> FactorsOf(const std::vector<LowRank>& parts) {
  std::vector<at::Tensor> factors;
  for (const LowRank& part : parts) {
    factors.push_back(part.a);
    factors.push_back(part.b);
  }
  return factors;
}

LowRankPlaces PlacesOf(const std::vector<LowRank>& parts) {
  LowRankPlaces places;
  for (const LowRank& part : parts) {
    places.begins.push_back(part.begin_row);
    places.scales.push_back(part.scale);
  }
  return places;
}

std::vector<at::Tensor> LowRankGradients(const at::Tensor& x, const at::Tensor& grad,
                                         const std::vector<at::Tensor>& factors,
                                         const LowRankPlaces& places) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < places.begins.size(); ++i) {
    const at::Tensor a = factors[2 * i].to(x.scalar_type()), b = factors[2 * i + 1].to(x.scalar_type());
    const at::Tensor dy = grad.narrow(1, places.begins[i], b.size(0));
    const auto scaled = [&](const at::Tensor& product) {
      return product.to(at::kFloat).mul_(places.scales[i]);
    };
    gradients.push_back(scaled(Product(Product(dy, b).t(), x)));
    gradients.push_back(scaled(Product(dy.t(), Product(x, a.t()))));
  }
  return gradients;
}

}  // namespace augur
