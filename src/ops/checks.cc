#include "ops/checks.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace augur {
namespace {

constexpr double kAboveZero = 1e-4;  // rounding may lift a log-prob or a mass this far

std::string ShapeText(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
  }
  return text + "]";
}

std::string At(std::string_view name, int64_t token, int64_t column) {
  return fmt::format("{}: token {}, column {}", name, token, column);
}

void CheckLogprob(std::string_view name, double value, int64_t token, int64_t column) {
  if (value > kAboveZero) {
    throw Error(At(name, token, column), fmt::format("log-prob {} is above 0", value),
                "pass logarithms of probabilities, normalised at the sampling temperature");
  }
}

void CheckMass(std::string_view name, double mass, int64_t token) {
  if (mass > 1 + kAboveZero) {
    throw Error(fmt::format("{}: token {}", name, token), fmt::format("probabilities sum to {:.6g}", mass),
                "log-probs must come from one softmax over the whole vocabulary");
  }
}

void CheckUsedColumns(std::string_view name, int64_t used, int64_t vocab_size, int64_t token) {
  if (used > vocab_size) {
    throw Error(fmt::format("{}: token {}", name, token),
                fmt::format("a support of {} tokens in a vocabulary of {}", used, vocab_size),
                "pass the model's real vocabulary size");
  }
}

[[noreturn]] void ThrowSampledMissing(std::string_view name, int64_t token) {
  throw Error(At(name, token, 0), "the sampled token is missing although the support is recorded",
              "put the sampled token in column 0 and the rest of the top-K behind it");
}

at::Tensor OnCpuAsDouble(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble).contiguous(); }

// One look on the device, for CUDA tensors: does every recorded value obey the rules? Where not, the values
// are copied to the CPU and gone through one by one to say which.
bool AllValid(const at::Tensor& behaviour, const at::Tensor& policy, int64_t vocab_size) {
  const at::Tensor mu = behaviour.detach().to(at::kFloat);
  const at::Tensor used = mu.gt(-std::numeric_limits<float>::infinity());
  const at::Tensor sampled_first = used.select(1, 0).logical_or(used.any(1).logical_not());
  at::Tensor valid = mu.le(kAboveZero).all().logical_and(sampled_first.all());  // a NaN is not <= anything
  valid = valid.logical_and(mu.exp().sum(1).le(1 + kAboveZero).all());
  valid = valid.logical_and(used.sum(1).le(vocab_size).all());
  if (policy.defined()) {
    const at::Tensor pi =
        policy.detach().to(at::kFloat).masked_fill(used.logical_not(), -1e30).nan_to_num(-1e30);
    valid = valid.logical_and(pi.le(kAboveZero).all()).logical_and(pi.exp().sum(1).le(1 + kAboveZero).all());
  }
  return valid.item<bool>();
}

bool AllIdsValid(const at::Tensor& ids, const at::Tensor& behaviour, int64_t vocab_size) {
  const at::Tensor unused = behaviour.detach().eq(-std::numeric_limits<float>::infinity());
  const at::Tensor sorted = std::get<0>(ids.sort(1));
  const at::Tensor left = sorted.slice(1, 0, -1), right = sorted.slice(1, 1);
  const at::Tensor twins = left.eq(right).logical_and(left.ge(0));
  const at::Tensor in_range = ids.ge(-1).logical_and(ids.lt(vocab_size));
  const at::Tensor sampled_first = ids.select(1, 0).ge(0).logical_or(ids.lt(0).all(1));
  return in_range.all()
      .logical_and(ids.eq(-1).eq(unused).all())
      .logical_and(sampled_first.all())
      .logical_and(twins.any().logical_not())
      .item<bool>();
}

}  // namespace

void CheckShape(const NamedTensor& argument, at::IntArrayRef shape) {
  const auto sizes = argument.tensor.sizes();
  bool fits = sizes.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] < 0 || shape[i] == sizes[i];
  if (!fits) {
    throw Error(argument.name, fmt::format("has shape {}, expected {}", ShapeText(sizes), ShapeText(shape)),
                "see the function's documentation for the shapes");
  }
}

void CheckRows(const NamedTensor& argument, std::string_view shape) {
  if (argument.tensor.dim() == 2) return;
  throw Error(argument.name,
              fmt::format("has shape {}, expected {}: one row per response token",
                          ShapeText(argument.tensor.sizes()), shape),
              fmt::format("select the rows: {}[mask], with the response mask", argument.name));
}

void CheckFloating(const NamedTensor& argument) {
  if (!argument.tensor.is_floating_point()) {
    throw Error(argument.name, fmt::format("has dtype {}", c10::toString(argument.tensor.scalar_type())),
                "pass a floating-point tensor");
  }
}

void CheckSameDevice(std::initializer_list<NamedTensor> arguments) {
  const NamedTensor& first = *arguments.begin();
  if (!first.tensor.is_cpu() && !first.tensor.is_cuda()) {
    throw Error(first.name, fmt::format("is on device {}", first.tensor.device().str()),
                "move it to cpu or cuda");
  }
  for (const NamedTensor& argument : arguments) {
    if (!argument.tensor.defined() || argument.tensor.device() == first.tensor.device()) continue;
    throw Error(argument.name,
                fmt::format("is on {} while {} is on {}", argument.tensor.device().str(), first.name,
                            first.tensor.device().str()),
                "move both to the same device");
  }
}

void CheckSupportLogprobs(const at::Tensor& behaviour, const at::Tensor& policy, int64_t vocab_size,
                          std::string_view behaviour_name) {
  if (behaviour.is_cuda() && AllValid(behaviour, policy, vocab_size)) return;
  const at::Tensor mu = OnCpuAsDouble(behaviour);
  const at::Tensor pi = policy.defined() ? OnCpuAsDouble(policy) : at::Tensor();
  const int64_t tokens = mu.size(0), columns = mu.size(1);
  const double* mu_data = mu.const_data_ptr<double>();
  const double* pi_data = pi.defined() ? pi.const_data_ptr<double>() : nullptr;
  for (int64_t t = 0; t < tokens; ++t) {
    double mu_mass = 0, pi_mass = 0;
    int64_t used = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double log_mu = mu_data[t * columns + c];
      if (log_mu == -std::numeric_limits<double>::infinity()) continue;
      if (std::isnan(log_mu)) {
        throw Error(At(behaviour_name, t, c), "log-prob is not a number", "mark an unused column with -inf");
      }
      CheckLogprob(behaviour_name, log_mu, t, c);
      if (c > 0 && mu_data[t * columns] == -std::numeric_limits<double>::infinity()) {
        ThrowSampledMissing(behaviour_name, t);
      }
      ++used;
      mu_mass += std::exp(log_mu);
      if (pi_data == nullptr) continue;
      CheckLogprob("policy", pi_data[t * columns + c], t, c);
      pi_mass += std::exp(pi_data[t * columns + c]);
    }
    CheckUsedColumns(behaviour_name, used, vocab_size, t);
    CheckMass(behaviour_name, mu_mass, t);
    CheckMass("policy", pi_mass, t);
  }
}

void CheckSupportIds(const at::Tensor& ids, const at::Tensor& behaviour, int64_t vocab_size) {
  if (ids.is_cuda() && AllIdsValid(ids, behaviour, vocab_size)) return;
  const at::Tensor id_rows = ids.to(at::kCPU, at::kLong).contiguous();
  const at::Tensor mu = OnCpuAsDouble(behaviour);
  const int64_t tokens = id_rows.size(0), columns = id_rows.size(1);
  const int64_t* id_data = id_rows.const_data_ptr<int64_t>();
  const double* mu_data = mu.const_data_ptr<double>();
  std::vector<int64_t> sorted;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t* row = id_data + t * columns;
    sorted.clear();
    for (int64_t c = 0; c < columns; ++c) {
      if (row[c] < -1 || row[c] >= vocab_size) {
        throw Error(At("support_ids", t, c),
                    fmt::format("id {} is outside the vocabulary of {}", row[c], vocab_size),
                    "ids run from 0 to the vocabulary size less one; -1 marks an unused column");
      }
      const bool unused = mu_data[t * columns + c] == -std::numeric_limits<double>::infinity();
      if (row[c] == -1 && c == 0 && std::any_of(row, row + columns, [](int64_t id) { return id >= 0; })) {
        ThrowSampledMissing("support_ids", t);
      }
      if ((row[c] == -1) != unused) {
        throw Error(
            At("support_ids", t, c),
            unused ? fmt::format("id {} has log-prob -inf", row[c]) : "an unused column has a log-prob",
            "an unused column holds id -1 and log-prob -inf");
      }
      if (row[c] >= 0) sorted.push_back(row[c]);
    }
    std::ranges::sort(sorted);
    const auto twin = std::ranges::adjacent_find(sorted);
    if (twin == sorted.end()) continue;
    const int64_t second = std::find(std::find(row, row + columns, *twin) + 1, row + columns, *twin) - row;
    throw Error(At("support_ids", t, second), fmt::format("id {} appears twice", *twin),
                "the sampled token stands in column 0 and is left out of the rest");
  }
}

void CheckTailSquare(const at::Tensor& tail_square, const at::Tensor& behaviour, const at::Tensor& policy) {
  constexpr double kRounding = 0.01;
  const at::Tensor used = behaviour.detach().gt(-std::numeric_limits<double>::infinity());
  const at::Tensor inside =
      policy.detach().to(at::kDouble).masked_fill(used.logical_not(), -1e300).exp().sum(1);
  const at::Tensor tail = inside.neg().add(1).clamp(0, 1);
  const at::Tensor square = tail_square.detach().to(at::kDouble);
  const at::Tensor possible = square.ge(-kRounding).logical_and(square.le(tail.square().add(kRounding)));
  const at::Tensor bad = possible.logical_not().logical_and(used.any(1));
  if (!bad.any().item<bool>()) return;
  const int64_t token = bad.nonzero()[0].item<int64_t>();
  const double outside = tail[token].item<double>();
  throw Error(fmt::format("tail_square: token {}", token),
              fmt::format("is {:.6g} where the probability outside the support is {:.6g}, so that it lies "
                          "between 0 and {:.6g}",
                          square[token].item<double>(), outside, outside * outside),
              "pass the policy's sum of squared probabilities outside the support");
}

void CheckFinite(const NamedTensor& argument) {
  if (argument.tensor.is_cuda() && at::isfinite(argument.tensor).all().item<bool>()) return;
  const at::Tensor values = OnCpuAsDouble(argument.tensor);
  const double* data = values.const_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (!std::isfinite(data[i])) {
      throw Error(fmt::format("{}: token {}", argument.name, i), fmt::format("is {}", data[i]),
                  "pass finite numbers");
    }
  }
}

}  // namespace augur
