// `augur bench step`: a whole training step (generation, updates, new weights) of a random model of a given
// shape.
#include <fmt/format.h>

#include <future>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/names.h"
#include "base/random.h"
#include "cli/bench/bench.h"
#include "cli/bench/lengths.h"
#include "cli/bench/measure.h"
#include "model/load.h"
#include "model/shapes.h"
#include "rollout/device.h"
#include "train/run/overlap.h"
#include "train/step/learner.h"

namespace augur {
namespace {

struct StepBenchFlags {
  std::string shape = "smollm2-135m", device = "cpu", precision = "bf16", checkpoint = "selective";
  std::string mask = "predictive-kl-aggregated", kv_precision = "bf16";
  ResponseLengths lengths;
  int64_t prompts = 16, group = 8, prompt = 256, new_tokens = 1024, minibatch = 16, micro_tokens = 16384;
  int64_t staleness = 0, steps = 3, lora_rank = 0;
  bool bf16_states = false, bf16_gradients = false;
  bool json = false;
};

struct StepFigures {
  double generate = 0, update = 0, weights = 0, wait = 0, step = 0;  // seconds
  double new_tokens = 0, tokens = 0;
};

RlConfig MakeConfig(const StepBenchFlags& options) {
  RlConfig config;
  const FieldList fields = FieldsOf(config);
  fields.Find("model.precision")->Set(options.precision, "--precision");
  fields.Find("rollout.kv_precision")->Set(options.kv_precision, "--kv-precision");
  fields.Find("train.checkpoint_activations")->Set(options.checkpoint, "--checkpoint-activations");
  config.run.device = options.device;
  config.rollout.prompts = options.prompts;
  config.rollout.group = options.group;
  config.rollout.max_tokens = options.new_tokens;
  config.rollout.staleness = options.staleness;
  config.mask.rule = PresetRule(options.mask);
  config.train.steps = options.steps + 1;
  config.train.minibatch = options.minibatch;
  config.train.optimizer.micro_tokens = options.micro_tokens;
  config.train.optimizer.optimizer_dtype = options.bf16_states ? StateDtype::kBf16 : StateDtype::kFp32;
  config.train.optimizer.gradient_dtype =
      options.bf16_gradients ? GradientDtype::kBf16 : GradientDtype::kFp32;
  return config;
}

Model MakeModel(const StepBenchFlags& options, const RlConfig& config, at::Device device) {
  const ModelConfig shape = NamedShape(options.shape, "--shape");
  Model model = NoiseModel(shape, TrainerType(config.model.precision), device, 1);
  AddBenchAdapters(options.lora_rank, config.model.precision == Precision::kFp8, &model);
  return model;
}

// The parts of a run whose prompts and rewards are chance.
class Bench {
 public:
  Bench(const StepBenchFlags& options, const RlConfig& config, at::Device device)
      : options_(options),
        config_(config),
        device_(device),
        model_(MakeModel(options, config, device)),
        learner_(config, model_, nullptr, model_.config.vocab_size),
        engine_(model_, MakeEngineOptions(config, device)),
        overlap_(device) {
    sampling_.max_tokens = options.new_tokens;
    sampling_.samples = options.group;
    sampling_.support = config.rollout.support;
    if (Overlaps(config, device)) waiting_ = Generate();
  }

  StepFigures Step(int64_t step) {
    const auto start = Clock::now();
    StepFigures figures;
    const bool overlaps = Overlaps(config_, device_);
    const Experience experience = overlaps ? std::move(waiting_) : Generate();
    std::future<Experience> next;
    if (overlaps) {
      next = overlap_.Start([this] { return Generate(); });
    } else {
      engine_.ReleaseMemory();
    }
    figures.generate = experience.generate_seconds;
    for (const Rollout& rollout : experience.rollouts) {
      figures.new_tokens += static_cast<double>(rollout.tokens.size());
      figures.tokens += static_cast<double>(rollout.tokens.size() + static_cast<size_t>(options_.prompt));
    }
    auto stage = Clock::now();
    StepMetrics metrics;
    learner_.Learn(step, experience, {}, &metrics);
    figures.update = SecondsSince(stage);
    stage = Clock::now();
    if (next.valid()) waiting_ = next.get();
    figures.wait = SecondsSince(stage);
    stage = Clock::now();
    engine_.UpdateWeights(model_, step);
    figures.weights = SecondsSince(stage);
    figures.step = SecondsSince(start);
    return figures;
  }

 private:
  Experience Generate() {
    const auto start = Clock::now();
    std::vector<GenerateRequest> requests(options_.prompts);
    Experience experience;
    for (int64_t i = 0; i < options_.prompts; ++i) {
      requests[i] = {position_++, {}, fmt::format("prompt {}", i)};
      requests[i].max_tokens = options_.lengths.Of(requests[i].key, options_.new_tokens);
      for (int64_t t = 0; t < options_.prompt; ++t) {
        const uint32_t word = Philox::At(2, requests[i].key, static_cast<uint64_t>(t)).word[0];
        requests[i].tokens.push_back(static_cast<int32_t>(word % model_.config.vocab_size));
      }
      experience.prompts.push_back(static_cast<size_t>(i));
    }
    experience.rollouts = engine_.Generate(requests, sampling_);
    for (size_t i = 0; i < experience.rollouts.size(); ++i) {
      if (!experience.rollouts[i].error.empty()) {
        throw Error("bench step", experience.rollouts[i].error, "see the message");
      }
      experience.rewards.push_back(i % 2 == 0 ? 1 : 0);
      experience.scores.push_back({.value = experience.rewards.back()});
    }
    experience.generate_seconds = SecondsSince(start);
    return experience;
  }

  const StepBenchFlags& options_;
  const RlConfig& config_;
  const at::Device device_;
  const Model model_;
  Learner learner_;
  Engine engine_;
  SamplingOptions sampling_;
  uint64_t position_ = 0;
  Experience waiting_;
  OverlapWorker overlap_;  // last: it waits for the work before anything the work uses goes
};

void PrintStepBench(const StepBenchFlags& options, int64_t step, const StepFigures& s, double peak) {
  if (options.json) {
    const Json json = {{"what", "step"},
                       {"shape", options.shape},
                       {"device", options.device},
                       {"precision", options.precision},
                       {"kv_precision", options.kv_precision},
                       {"lengths", options.lengths.kind},
                       {"staleness", options.staleness},
                       {"lora_rank", options.lora_rank},
                       {"step", step},
                       {"generate_s", s.generate},
                       {"update_s", s.update},
                       {"wait_s", s.wait},
                       {"weights_s", s.weights},
                       {"step_s", s.step},
                       {"tokens_per_second", s.tokens / s.step},
                       {"peak_gib", peak}};
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print(
      "  {:7}: {:7.2f} s, {:6.0f} tokens/s; generation {:.2f} s ({:.0f} new tokens/s), updates {:.2f} s "
      "({:.0f} "
      "tokens/s), waiting {:.2f} s, weights {:.3f} s; peak {:.1f} GiB\n",
      step == 0 ? "first" : fmt::format("step {}", step), s.step, s.tokens / s.step, s.generate,
      s.new_tokens / s.generate, s.update, s.tokens / s.update, s.wait, s.weights, peak);
}

void RunStepBench(const StepBenchFlags& options) {
  for (const auto& [name, value] : {std::pair("--prompts", options.prompts),
                                    {"--group", options.group - 1},
                                    {"--prompt", options.prompt},
                                    {"--new", options.new_tokens},
                                    {"--minibatch", options.minibatch},
                                    {"--micro-tokens", options.micro_tokens},
                                    {"--steps", options.steps + 1}}) {
    if (value < 1) throw Error(name, "is too small", "see augur bench step --help for the defaults");
  }
  const RlConfig config = MakeConfig(options);
  const at::Device device = RunDevice(config.run);
  if (!options.json) {
    fmt::print(
        "step, {} on {} in {}, {} x {} responses, {} + {}{} tokens, minibatches of {} prompts, staleness "
        "{}\n",
        options.shape, options.device, options.precision, options.prompts, options.group, options.prompt,
        options.lengths.long_tailed() ? "up to " : "", options.new_tokens, options.minibatch,
        options.staleness);
  }
  Bench bench(options, config, device);
  for (int64_t step = 0; step <= options.steps; ++step) {
    const StepFigures figures = bench.Step(step + 1);
    PrintStepBench(options, step, figures, static_cast<double>(PeakMemoryBytes(device)) / (1 << 30));
  }
}

}  // namespace

void AddBenchStep(CLI::App& bench) {
  const auto options = std::make_shared<StepBenchFlags>();
  CLI::App* command =
      bench.add_subcommand("step", "A whole training step of a random model of a given shape, by its parts");
  command->add_option("--shape", options->shape, OneOf(ShapeNames()))->capture_default_str();
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command->add_option("--precision", options->precision, OneOf(kNamesOf<Precision>))->capture_default_str();
  command
      ->add_option("--kv-precision", options->kv_precision,
                   "Of keys and values: " + OneOf(kNamesOf<KvPrecision>))
      ->capture_default_str();
  command->add_option("--prompts", options->prompts, "Prompts in a step")->capture_default_str();
  command->add_option("--group", options->group, "Responses to each")->capture_default_str();
  command->add_option("--prompt", options->prompt, "Tokens of a prompt")->capture_default_str();
  command->add_option("--new", options->new_tokens, "Tokens of a response")->capture_default_str();
  options->lengths.AddFlag(command);
  command->add_option("--minibatch", options->minibatch, "Prompts in an update")->capture_default_str();
  command->add_option("--micro-tokens", options->micro_tokens, "Tokens in one forward")
      ->capture_default_str();
  command
      ->add_option("--checkpoint-activations", options->checkpoint,
                   "What the backward computes again: " + OneOf(kNamesOf<ActivationCheckpoint>))
      ->capture_default_str();
  command->add_option("--mask", options->mask, "The rule")->capture_default_str();
  command->add_option("--staleness", options->staleness, "From 1 on, a GPU generates while it trains")
      ->capture_default_str();
  command->add_option("--lora-rank", options->lora_rank, "Train adapters of this rank; 0 trains every weight")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  command->add_flag("--bf16-states", options->bf16_states, "AdamW's averages in bfloat16");
  command->add_flag("--bf16-gradients", options->bf16_gradients, "Gradients added up in bfloat16");
  command->add_option("--steps", options->steps, "Timed steps, after a first one")->capture_default_str();
  command->add_flag("--json", options->json, "JSON lines instead of text");
  command->callback([options] { RunStepBench(*options); });
}

}  // namespace augur
