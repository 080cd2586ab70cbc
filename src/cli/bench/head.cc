// `augur bench head`: the one-pass head compared with the bare GEMMs it cannot do without, and with eager
// torch.
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "cli/bench/bench.h"
#include "cli/bench/measure.h"
#include "model/load.h"
#include "ops/head/linear_policy_loss.h"

namespace augur {
namespace {

struct HeadBenchFlags {
  int64_t tokens = 2048;
  int64_t hidden = 576;
  int64_t vocab = 49152;
  int64_t support = 20;
  int64_t chunk = 0;
  int rounds = 5;
  std::string dtype = "float32";
  std::string device = "cpu";
  bool eager = true;
  bool json = false;
};

at::ScalarType ParseDtype(const std::string& name) {
  constexpr std::string_view kNames[] = {"float32", "bfloat16", "float16"};
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return kTypes[i];
  }
  throw UnknownName("--dtype", "type", name, kNames);
}

struct HeadInputs {
  Head head;
  RecordedTokens recorded;
};

// A head of random weights and the top of its own distribution as the support, a few rows at a time.
HeadInputs MakeHeadInputs(const HeadBenchFlags& options) {
  const auto floats = at::TensorOptions().device(options.device).dtype(at::kFloat);
  const auto type = ParseDtype(options.dtype);
  HeadInputs in;
  in.head.hidden = at::randn({options.tokens, options.hidden}, floats).to(type);
  in.head.weight = at::randn({options.vocab, options.hidden}, floats)
                       .mul(3 / std::sqrt(static_cast<double>(options.hidden)))
                       .to(type);
  const int64_t columns = options.support + 1;
  in.recorded.support_ids = at::empty({options.tokens, columns}, floats.dtype(at::kInt));
  in.recorded.support_logprobs = at::empty({options.tokens, columns}, floats);
  constexpr int64_t kRows = 256;
  for (int64_t begin = 0; begin < options.tokens; begin += kRows) {
    const int64_t rows = std::min(kRows, options.tokens - begin);
    const at::Tensor logits =
        at::mm(in.head.hidden.narrow(0, begin, rows), in.head.weight.t()).to(at::kFloat);
    const auto [values, ids] = at::log_softmax(logits, 1).topk(columns);
    in.recorded.support_ids.narrow(0, begin, rows).copy_(ids);
    in.recorded.support_logprobs.narrow(0, begin, rows).copy_(values.sub(0.01));
  }
  in.recorded.advantages = at::randn({options.tokens}, floats);
  return in;
}

void ClearGradients(const Head& head) {
  head.hidden.mutable_grad() = at::Tensor();
  head.weight.mutable_grad() = at::Tensor();
}

void RunHead(const HeadInputs& in, const RecordedTokens& recorded, const HeadOptions& options) {
  ComputeLinearPolicyLoss({PresetRule("none")}, in.head, recorded, options).loss.backward();
  ClearGradients(in.head);
}

// What one writes without the operator: log-softmax in float32, entropy, the support gathered, autograd.
void RunEager(const HeadInputs& in) {
  const at::Tensor logprobs = at::log_softmax(in.head.hidden.matmul(in.head.weight.t()), 1, at::kFloat);
  const at::Tensor entropy = logprobs.detach().exp().mul(logprobs.detach()).sum(1).neg();
  const at::Tensor policy = logprobs.gather(1, in.recorded.support_ids.to(at::kLong));
  const at::Tensor divergence =
      in.recorded.support_logprobs.exp().mul(in.recorded.support_logprobs.sub(policy.detach())).sum(1);
  const at::Tensor keep = divergence.le(100).logical_and(entropy.ge(0));
  const at::Tensor ratio = policy.select(1, 0).sub(in.recorded.support_logprobs.select(1, 0)).exp();
  ratio.mul(in.recorded.advantages).mul(keep.to(at::kFloat)).mean().neg().backward();
  ClearGradients(in.head);
}

void RunThreeGemms(const Head& head) {
  const at::Tensor logits = at::mm(head.hidden, head.weight.t());
  at::mm(logits.t(), head.hidden);
  at::mm(logits, head.weight);
}

void PrintHeadBench(const HeadBenchFlags& options, const std::vector<std::string>& names,
                    const std::vector<Measured>& measured, int64_t gradient_bytes) {
  const auto at = [&](std::string_view name) -> const Measured& {
    return measured[std::ranges::find(names, name) - names.begin()];
  };
  const auto reference = [&](std::string_view name) {
    return name == "decide_only" || name == "one_gemm" ? at("one_gemm").seconds : at("three_gemms").seconds;
  };
  constexpr double kMiB = 1 << 20;
  Json json = {{"what", "head"},
               {"device", options.device},
               {"dtype", options.dtype},
               {"tokens", options.tokens},
               {"hidden", options.hidden},
               {"vocab", options.vocab},
               {"support", options.support},
               {"chunk", options.chunk}};
  if (!options.json) {
    fmt::print("head, {} tokens, d = {}, V = {}, K = {}, {} on {}\n", options.tokens, options.hidden,
               options.vocab, options.support, options.dtype, options.device);
    fmt::print("  {:12} {:>10} {:>22} {:>10}\n", "", "ms", "of the bare GEMMs", "peak MiB");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const double ratio = measured[i].seconds / reference(names[i]);
    const double peak = static_cast<double>(measured[i].peak_bytes) / kMiB;
    json[names[i]] = {{"ms", measured[i].seconds * 1e3}, {"ratio", ratio}, {"peak_mib", peak}};
    if (!options.json) {
      fmt::print("  {:12} {:10.2f} {:22.3f} {:10.0f}\n", names[i], measured[i].seconds * 1e3, ratio, peak);
    }
  }
  const double extra = static_cast<double>(at("augur").peak_bytes - gradient_bytes) / kMiB;
  json["augur_beyond_gradients_mib"] = extra;
  if (options.json) {
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("  augur's peak beyond dW (as it is summed) and dH: {:.0f} MiB\n", extra);
  }
}

void RunHeadBench(const HeadBenchFlags& options) {
  for (const auto& [name, value] : {std::pair("--tokens", options.tokens),
                                    {"--hidden", options.hidden},
                                    {"--vocab", options.vocab - options.support},
                                    {"--rounds", options.rounds}}) {
    if (value < 1) throw Error(name, "is too small", "see augur bench head --help for the defaults");
  }
  const c10::Device device = UseDevice(options.device, "--device");
  const HeadInputs in = MakeHeadInputs(options);
  RecordedTokens half = in.recorded;
  half.advantages =
      in.recorded.advantages.mul(at::rand({options.tokens}, in.recorded.advantages.options()).lt(0.5));
  HeadOptions head_options;
  head_options.logits.validate = false;
  head_options.chunk = options.chunk;
  const Head frozen{in.head.hidden.detach(), in.head.weight.detach(), {}};
  in.head.hidden.requires_grad_();
  in.head.weight.requires_grad_();

  std::vector<std::string> names = {"three_gemms", "augur", "augur_half", "one_gemm", "decide_only"};
  std::vector<std::function<void()>> contestants = {
      [&] { RunThreeGemms(frozen); }, [&] { RunHead(in, in.recorded, head_options); },
      [&] { RunHead(in, half, head_options); }, [&] { at::mm(frozen.hidden, frozen.weight.t()); },
      [&] { ComputeLinearPolicyLoss({PresetRule("none")}, frozen, in.recorded, head_options); }};
  if (options.eager) {
    names.push_back("eager");
    contestants.push_back([&] { RunEager(in); });
  }
  const std::vector<Measured> measured = MeasureInTurns(device, options.rounds, contestants);
  const int64_t gradient_bytes =
      options.vocab * options.hidden * 4 + options.tokens * options.hidden * frozen.hidden.element_size();
  PrintHeadBench(options, names, measured, gradient_bytes);
}

}  // namespace

void AddBenchHead(CLI::App& bench) {
  const auto options = std::make_shared<HeadBenchFlags>();
  CLI::App* command = bench.add_subcommand(
      "head", "The one-pass head (loss and both gradients) against its bare GEMMs and against eager torch");
  command->add_option("--tokens", options->tokens, "Tokens in the batch")->capture_default_str();
  command->add_option("--hidden", options->hidden, "Width of the hidden states")->capture_default_str();
  command->add_option("--vocab", options->vocab, "Rows of the head")->capture_default_str();
  command->add_option("--support", options->support, "Most likely tokens recorded with the sampled one")
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32, bfloat16 or float16")->capture_default_str();
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command->add_option("--chunk", options->chunk, "Tokens per chunk; 0 takes the default")
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "Timed calls of each contestant")->capture_default_str();
  command->add_flag("--eager,!--no-eager", options->eager,
                    "Measure eager torch, too, which holds all logits");
  command->add_flag("--json", options->json, "One JSON line instead of text");
  command->callback([options] { RunHeadBench(*options); });
}

}  // namespace augur
