// `augur bench train`: one update of a model of a given shape, with random weights and data.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "base/names.h"
#include "base/random.h"
#include "cli/bench/bench.h"
#include "cli/bench/measure.h"
#include "cli/flag_checks.h"
#include "model/load.h"
#include "model/save.h"
#include "model/shapes.h"
#include "ops/parallel/fake_group.h"
#include "rollout/device.h"
#include "rollout/engine.h"
#include "train/step/learner.h"
#include "train/step/policy_step.h"

namespace augur {
namespace {

struct TrainBenchFlags {
  std::string shape = "smollm2-135m";
  int64_t tokens = 16384;
  int64_t length = 4096;
  int64_t micro_tokens = 16384;
  int64_t support = 20;
  int rounds = 5;
  std::string dtype = "bf16";
  std::string device = "cpu";
  std::string checkpoint = "selective";
  std::string mask = "none";
  bool fp8 = false;
  bool bf16_states = false;
  bool deterministic = false;
  bool bf16_gradients = false;
  int64_t lora_rank = 0;
  bool json = false;
  int ranks = 1;
  bool reference = false;
  std::string save;
  std::string shard = "full";
};

int32_t RandomToken(int64_t vocab, uint64_t sequence, uint64_t place) {
  return static_cast<int32_t>(Philox::At(1, place, sequence).word[0] % static_cast<uint64_t>(vocab));
}

// A sequence all of whose tokens but the first are trained on.
Rollout MakeRollout(const TrainBenchFlags& options, int64_t vocab, uint64_t sequence) {
  Rollout rollout;
  rollout.prompt_tokens = {RandomToken(vocab, sequence, 0)};
  rollout.support.columns = options.support + 1;
  for (int64_t t = 1; t < options.length; ++t) {
    const int32_t sampled = RandomToken(vocab, sequence, static_cast<uint64_t>(t));
    rollout.tokens.push_back(sampled);
    for (int64_t c = 0; c < rollout.support.columns; ++c) {
      rollout.support.ids.push_back(static_cast<int32_t>((sampled + c * 7) % vocab));
      rollout.support.logprobs.push_back(-std::log(static_cast<float>(vocab)));
    }
  }
  return rollout;
}

// All but auto, the last, which a run resolves by its memory.
constexpr auto kShards = std::span(kNamesOf<Shard>).first<static_cast<size_t>(Shard::kAuto)>();

Shard ParseShard(std::string_view name) {
  return static_cast<Shard>(IndexOfName("--shard", "choice", name, kShards));
}

StepLoss MakeLoss(const TrainBenchFlags& options, ActivationCheckpoint checkpoint) {
  StepLoss loss;
  loss.terms.rule = PresetRule(options.mask);
  loss.micro_tokens = options.micro_tokens;
  loss.forward.checkpoint_layers = checkpoint == ActivationCheckpoint::kFull;
  loss.forward.recompute_cheap = checkpoint == ActivationCheckpoint::kSelective;
  loss.forward.fp8 = options.fp8;
  return loss;
}

Model BenchModel(const TrainBenchFlags& options, const ModelConfig& config, at::Device device) {
  Model model = NoiseModel(config, ParsePrecision(options.dtype, "--dtype"), device, 0);
  AddBenchAdapters(options.lora_rank, options.fp8, &model);
  return model;
}

std::optional<Reference> BenchReference(const TrainBenchFlags& options, const ModelConfig& config,
                                        at::Device device) {
  if (!options.reference) return std::nullopt;
  return MakeReference(NoiseModel(config, ParsePrecision(options.dtype, "--dtype"), device, 0),
                       ParseShard(options.shard));
}

// What a rank of a run has, made in the order of a run.
struct RankState {
  RankState(const TrainBenchFlags& options, const ModelConfig& config, at::Device device)
      : reference(BenchReference(options, config, device)),
        model(BenchModel(options, config, device)),
        optimizer(model, {.bf16_states = options.bf16_states,
                          .gradients = options.bf16_gradients ? GradientDtype::kBf16 : GradientDtype::kFp32,
                          .shard = ParseShard(options.shard)}) {
    if (store() != nullptr) store()->ReleaseAll();
  }
  LayerShards* store() const { return optimizer.layer_shards(); }

  const std::optional<Reference> reference;
  const Model model;
  Optimizer optimizer;
};

// Bytes at the peak, of phases of a run with several ranks, its updates apart.
struct PhasePeaks {
  int64_t loading = 0, generating = 0, saving = 0;
};

void PrintTrainBench(const TrainBenchFlags& options, const Measured& update, const Measured& gradient,
                     int64_t resident, const PhasePeaks& phases) {
  constexpr double kGiB = 1 << 30;
  const auto tokens = static_cast<double>(options.tokens / options.length * options.length);
  const double peak = static_cast<double>(resident + update.peak_bytes) / kGiB;
  Json json = {{"what", "train"},
               {"shape", options.shape},
               {"device", options.device},
               {"dtype", options.fp8 ? "fp8" : options.dtype},
               {"tokens", tokens},
               {"length", options.length},
               {"micro_tokens", options.micro_tokens},
               {"checkpoint_activations", options.checkpoint},
               {"lora_rank", options.lora_rank},
               {"ranks", options.ranks},
               {"update_ms", update.seconds * 1e3},
               {"forward_backward_ms", gradient.seconds * 1e3},
               {"tokens_per_second", tokens / update.seconds},
               {"weights_and_states_gib", static_cast<double>(resident) / kGiB},
               {"peak_gib", peak}};
  const std::pair<const char*, int64_t> peaks[] = {
      {"loading", phases.loading}, {"generating", phases.generating}, {"saving", phases.saving}};
  for (const auto& [phase, bytes] : peaks) {
    if (bytes > 0) json[fmt::format("{}_peak_gib", phase)] = static_cast<double>(bytes) / kGiB;
  }
  if (options.json) {
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print("train, {}, {:.0f} tokens in sequences of {}, {} on {}, activations recomputed: {}\n",
             options.shape, tokens, options.length, options.fp8 ? "fp8" : options.dtype, options.device,
             options.checkpoint);
  fmt::print("  update {:.1f} ms (forward and backward {:.1f}): {:.0f} tokens/s\n", update.seconds * 1e3,
             gradient.seconds * 1e3, tokens / update.seconds);
  fmt::print("  memory: weights and optimizer states {:.2f} GiB, at the peak {:.2f} GiB\n",
             static_cast<double>(resident) / kGiB, peak);
  for (const auto& [phase, bytes] : peaks) {
    if (bytes > 0) fmt::print("  at the peak of {} {:.2f} GiB\n", phase, static_cast<double>(bytes) / kGiB);
  }
}

std::vector<at::Tensor> Resident(const Reference& reference) {
  return reference.shards != nullptr ? reference.shards->pieces() : Parameters(reference.model);
}

void RunTrainBench(const TrainBenchFlags& options) {
  const auto checkpoint =
      ParseName<ActivationCheckpoint>("--checkpoint-activations", "choice", options.checkpoint);
  if (options.length < 2 || options.tokens < options.length) {
    throw Error("--tokens", "is less than one sequence of --length", "make it larger");
  }
  SetDeterministic(options.deterministic);
  const at::Device device = UseDevice(options.device, "--device");
  const ModelConfig config = NamedShape(options.shape, "--shape");
  if (options.support * 7 >= config.vocab_size)
    throw Error("--support", "is too large for the shape", "lower it");
  if (options.ranks > 1) UseFakeGroup(options.ranks);
  std::unique_ptr<RankState> state;
  PhasePeaks phases;
  phases.loading = PeakBytes([&] { state = std::make_unique<RankState>(options, config, device); });
  const Model& model = state->model;
  Optimizer& optimizer = state->optimizer;
  std::vector<Rollout> rollouts;
  for (int64_t i = 0; i < options.tokens / options.length; ++i) {
    rollouts.push_back(MakeRollout(options, config.vocab_size, static_cast<uint64_t>(i)));
  }
  std::vector<TrainSample> samples;
  for (size_t i = 0; i < rollouts.size(); ++i) samples.push_back({&rollouts[i], i % 2 == 0 ? 1.0 : -1.0});
  StepLoss loss = MakeLoss(options, checkpoint);
  loss.forward.store = optimizer.layer_shards();
  loss.forward.checkpoint_layers |= loss.forward.store != nullptr;
  int64_t resident = optimizer.ResidentBytes();
  if (model.lora) {
    for (const at::Tensor& weight : Parameters(model)) resident += static_cast<int64_t>(weight.nbytes());
    for (const LayerWeights& layer : model.layers) {
      for (const ModuleWeights& module : layer) {
        if (module.base.defined() && module.base.device() == device)
          resident += static_cast<int64_t>(module.base.nbytes());
      }
    }
  }
  if (state->reference) {
    for (const at::Tensor& piece : Resident(*state->reference))
      resident += static_cast<int64_t>(piece.nbytes());
  }
  if (state->store() != nullptr && device.is_cuda()) {
    phases.generating =
        resident + PeakBytes([&] {
          const Engine engine(model, {.precision = RolloutPrecision::kBf16, .store = state->store()});
        });
  }
  if (!options.save.empty()) {
    phases.saving =
        resident + PeakBytes([&] { SaveModel(model, options.save, kShardBytes, state->store()); });
  }
  const std::vector<Measured> measured =
      MeasureInTurns(device, options.rounds,
                     {[&] {
                        AccumulateMinibatch(model, optimizer, samples, loss);
                        optimizer.ReduceGradient();
                        optimizer.Update(1e-6);
                      },
                      [&] {
                        AccumulateMinibatch(model, optimizer, samples, loss);
                        optimizer.DropGradient();
                      }});
  PrintTrainBench(options, measured[0], measured[1], resident, phases);
}

}  // namespace

void AddBenchTrain(CLI::App& bench) {
  const auto options = std::make_shared<TrainBenchFlags>();
  CLI::App* command = bench.add_subcommand(
      "train", "One update (forward, head, backward, AdamW) of a random model of a given shape");
  command->add_option("--shape", options->shape, OneOf(ShapeNames()))->capture_default_str();
  command->add_option("--tokens", options->tokens, "Tokens in the minibatch")->capture_default_str();
  command->add_option("--length", options->length, "Tokens in each sequence")->capture_default_str();
  command->add_option("--micro-tokens", options->micro_tokens, "Tokens in one forward")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--support", options->support, "Most likely tokens recorded with the sampled one")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--dtype", options->dtype, "bf16 or fp32")->capture_default_str();
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command
      ->add_option("--checkpoint-activations", options->checkpoint,
                   "What the backward computes again: " + OneOf(kNamesOf<ActivationCheckpoint>))
      ->capture_default_str();
  command->add_option("--mask", options->mask, "The rule; none keeps every token's gradient alive")
      ->capture_default_str();
  command->add_flag("--fp8", options->fp8, "FP8 products in the layers");
  command->add_flag("--bf16-states", options->bf16_states, "AdamW's averages in bfloat16");
  command->add_flag("--deterministic", options->deterministic,
                    "Kernels that give the same bits at every run alone, as run.deterministic");
  command->add_flag("--bf16-gradients", options->bf16_gradients, "Gradients added up in bfloat16");
  command->add_option("--lora-rank", options->lora_rank, "Train adapters of this rank; 0 trains every weight")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  command
      ->add_option("--ranks", options->ranks,
                   "Be one rank of so many, the others left out: its memory and compute, without the wire")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--shard", options->shard, "What the ranks divide: " + OneOf(kShards))
      ->capture_default_str();
  command->add_flag("--reference", options->reference, "Keep the reference of a KL penalty, too");
  command->add_option(
      "--save", options->save,
      "Write the model to this directory, as at the end of a run, and show the memory it takes");
  command->add_option("--rounds", options->rounds, "Timed updates")->capture_default_str()->check(AtLeast(1));
  command->add_flag("--json", options->json, "One JSON line instead of text");
  command->callback([options] { RunTrainBench(*options); });
}

}  // namespace augur
