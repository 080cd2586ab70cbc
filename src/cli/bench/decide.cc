// `augur bench decide`: token decisions by the kernel and by the same computation in eager torch.
#include "kernels/head/decide.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "cli/bench/bench.h"
#include "cli/bench/timing.h"
#include "model/load.h"
#include "ops/device.h"
#include "ops/head/decide.h"

namespace augur {
namespace {

struct DecideBenchFlags {
  int64_t tokens = 65536;
  int64_t support = 20;
  int64_t vocab = 151936;
  std::string device = "cpu";
  bool json = false;
};

struct DecideInputs {
  at::Tensor behaviour, policy, advantages;
};

// Log-probs over a support that carries nearly all the mass, as a rollout records it.
DecideInputs MakeDecideInputs(const DecideBenchFlags& options) {
  const auto floats = at::TensorOptions().device(options.device).dtype(at::kFloat);
  const at::Tensor logits = at::randn({options.tokens, options.support + 1}, floats).mul(2);
  const auto normal = [&](const at::Tensor& z) { return at::log_softmax(z, 1).sub(0.02).contiguous(); };
  return {normal(logits), normal(logits.add(at::randn_like(logits), 0.3)),
          at::randn({options.tokens}, floats)};
}

// The same computation without the kernel, with the same care for unused columns: predictive KL, aggregated
// tail.
Decisions EagerDecide(const DecideInputs& in, double delta) {
  const at::Tensor used = in.behaviour.gt(-INFINITY);
  const at::Tensor log_mu = at::where(used, in.behaviour, 0.0), log_pi = at::where(used, in.policy, 0.0);
  const at::Tensor mu = at::where(used, log_mu.exp(), 0.0), pi = at::where(used, log_pi.exp(), 0.0);
  const at::Tensor mu_sum = mu.sum(1), pi_sum = pi.sum(1);
  const at::Tensor mu_tail = mu_sum.neg().add(1).clamp_min(0), pi_tail = pi_sum.neg().add(1).clamp_min(0);
  const at::Tensor head = mu.mul(log_mu.sub(log_pi)).sum(1);
  const at::Tensor tail = mu_tail.mul(mu_tail.clamp_min(1e-38).log().sub(pi_tail.clamp_min(1e-38).log()));
  const at::Tensor divergence = head.add(tail).clamp_min(0);
  const at::Tensor local = pi.select(1, 0).sub(mu.select(1, 0));
  const at::Tensor change = local.add(pi.mul(mu.sub(pi)).sum(1)).add(pi_tail.mul(mu_tail.sub(pi_tail)));
  const at::Tensor ratio = log_pi.select(1, 0).sub(log_mu.select(1, 0)).clamp(-20, 20).exp();
  const at::Tensor outside = divergence.gt(delta), outward = in.advantages.mul(change).gt(0);
  const at::Tensor disagree = outside.logical_and(outward.ne(in.advantages.mul(ratio.sub(1)).gt(0)));
  const at::Tensor clamped = mu_sum.gt(1).logical_or(pi_sum.gt(1));
  return {ratio,
          divergence,
          change,
          outside.logical_and(outward).logical_not(),
          disagree.logical_or(clamped),
          at::Tensor()};
}

void RunKernel(const MaskRule& rule, const DecideBenchFlags& options, const DecideInputs& in,
               const Decisions& out) {
  const DecideInput<float> input{in.behaviour.const_data_ptr<float>(),
                                 in.policy.const_data_ptr<float>(),
                                 in.advantages.const_data_ptr<float>(),
                                 nullptr,
                                 nullptr,
                                 options.tokens,
                                 static_cast<int>(options.support + 1),
                                 options.vocab};
  const DecideOutput<float> output{
      out.ratio.mutable_data_ptr<float>(), out.divergence.mutable_data_ptr<float>(),
      out.direction.mutable_data_ptr<float>(), out.flags.mutable_data_ptr<uint8_t>(),
      out.coefficient.mutable_data_ptr<float>()};
  if (in.behaviour.is_cuda()) {
    DecideCuda(rule, input, output, CurrentStream(in.behaviour));
  } else {
    DecideCpu(rule, input, output);
  }
}

void RunDecideBench(const DecideBenchFlags& options) {
  if (options.tokens < 1) throw Error("--tokens", "must be at least 1", "65536 is the default");
  if (options.support < 1) throw Error("--support", "must be at least 1", "20 is the default");
  const c10::Device device = UseDevice(options.device, "--device");
  const MaskRule rule = PresetRule("predictive-kl-aggregated");
  const int64_t moved = options.tokens * ((options.support + 1) * 8 + 4 + 13);
  // Enough input sets that a GPU's L2 cache cannot hold them all.
  const int sets = device.is_cuda() ? static_cast<int>(std::max<int64_t>(2, (160 << 20) / moved)) : 2;
  std::vector<DecideInputs> inputs;
  std::vector<Decisions> outputs;
  for (int i = 0; i < sets; ++i) {
    inputs.push_back(MakeDecideInputs(options));
    const DecideInputs& in = inputs.back();
    outputs.push_back(
        Decide(rule, in.behaviour, in.policy, in.advantages, options.vocab, {}, /*validate=*/true));
  }
  const int64_t differing = EagerDecide(inputs[0], rule.delta).keep.ne(outputs[0].keep).sum().item<int64_t>();

  const int calls = device.is_cuda() ? 2 * sets : 50;
  const double kernel = SecondsPerCall(
      device, calls, [&](int i) { RunKernel(rule, options, inputs[i % sets], outputs[i % sets]); });
  const double eager =
      SecondsPerCall(device, calls, [&](int i) { EagerDecide(inputs[i % sets], rule.delta); });

  if (options.json) {
    fmt::print("{}\n", Json({{"what", "decide"},
                             {"device", options.device},
                             {"tokens", options.tokens},
                             {"support", options.support},
                             {"kernel_us", kernel * 1e6},
                             {"eager_us", eager * 1e6},
                             {"ratio", eager / kernel},
                             {"gb_per_s", static_cast<double>(moved) / kernel * 1e-9},
                             {"keep_differs", differing}})
                           .dump());
    return;
  }
  fmt::print("token decisions, {} tokens, K = {}, {}\n", options.tokens, options.support, options.device);
  fmt::print("  augur  {:10.1f} us   {:.0f} GB/s\n", kernel * 1e6,
             static_cast<double>(moved) / kernel * 1e-9);
  fmt::print("  eager  {:10.1f} us   {:.1f} times augur's\n", eager * 1e6, eager / kernel);
  fmt::print("  {} of {} decisions differ (float32 rounding of eager at the boundary)\n", differing,
             options.tokens);
}

}  // namespace

void AddBenchDecide(CLI::App& bench) {
  const auto options = std::make_shared<DecideBenchFlags>();
  CLI::App* command =
      bench.add_subcommand("decide", "Token decisions against the same computation in eager torch");
  command->add_option("--tokens", options->tokens, "Tokens in the batch")->capture_default_str();
  command->add_option("--support", options->support, "Most likely tokens recorded with the sampled one")
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON line instead of text");
  command->callback([options] { RunDecideBench(*options); });
}

}  // namespace augur
