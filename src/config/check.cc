// The rules between fields.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "config/read.h"
#include "data/prompt_set.h"
#include "reward/python_function.h"
#include "reward/verifier.h"

namespace augur {
namespace {

// Where a key was set: "file:line", the override, or the file where it has its default.
class Places {
 public:
  Places(const Settings& settings, const std::string& file) : settings_(settings), file_(file) {}
  std::string Of(std::string_view key) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? file_ : found->second.where;
  }
  Error Fault(std::string_view key, std::string_view what, std::string_view remedy) const {
    return Error(Of(key), fmt::format("{} {}", key, what), remedy);
  }

 private:
  const Settings& settings_;
  const std::string& file_;
};

void CheckRun(const RunSection& run, const Places& places) {
  const bool known = run.device == "auto" || run.device == "cpu" || run.device == "cuda" ||
                     (run.device.starts_with("cuda:") && run.device.size() > 5 &&
                      run.device.find_first_not_of("0123456789", 5) == std::string::npos);
  if (!known) {
    throw places.Fault("run.device", fmt::format("is '{}', which is no device", run.device),
                       "write auto, cpu, cuda or cuda:N");
  }
  if (Visible(run.dir) != run.dir || run.dir.find_first_of("\n\t") != std::string::npos) {
    throw places.Fault("run.dir", fmt::format("is {}, with a control character in it", Quoted(run.dir)),
                       "leave it out");
  }
  if (run.resume.empty())
    throw places.Fault("run.resume", "is empty", "write auto, never, a step or a checkpoint's path");
}

void CheckData(const DataSection& data, const Places& places) {
  if (data.train.empty()) throw places.Fault("data.train", "names no file", "list the files to train on");
  if (!TakesPrompt(data.prompt_template)) {
    throw places.Fault("data.prompt_template", "has no {prompt} in it", "write it where the prompt belongs");
  }
}

void CheckModel(const ModelSection& model, const Places& places) {
  if (model.path.empty()) throw places.Fault("model.path", "is missing", "name a Hugging Face directory");
}

void CheckLora(const LoraSection& lora, const Places& places) {
  if (lora.dropout != 0) {
    throw places.Fault("lora.dropout", "is not 0, and rollouts drop nothing that training could repeat",
                       "remove it");
  }
  if (lora.rank > 0 && lora.targets.empty()) {
    throw places.Fault("lora.targets", "names no layer", "write [all-linear], or set lora.rank to 0");
  }
}

void CheckReward(const RlConfig& config, const Places& places) {
  if (config.reward.verifier != "auto") FindVerifier(config.reward.verifier, places.Of("reward.verifier"));
  if (!config.reward.python.empty()) CheckPythonFunction(config.reward.python, places.Of("reward.python"));
  if (config.reward.overlong_buffer > config.rollout.max_tokens) {
    throw places.Fault("reward.overlong_buffer",
                       fmt::format("is {}, more than rollout.max_tokens ({})", config.reward.overlong_buffer,
                                   config.rollout.max_tokens),
                       "make it smaller");
  }
}

// More is a slip of the pen: memory is taken for each response of a step.
constexpr int64_t kMostResponses = 1 << 20;

void CheckRollout(const RolloutSection& rollout, const Places& places) {
  if (rollout.prompts <= kMostResponses / std::min(rollout.group, kMostResponses)) return;
  const std::string_view key = rollout.prompts >= rollout.group ? "rollout.prompts" : "rollout.group";
  throw places.Fault(key,
                     fmt::format("makes {} prompts of {} responses in a step, more than {} responses",
                                 rollout.prompts, rollout.group, kMostResponses),
                     "make it smaller");
}

// The mask's divergences need more of the distribution than the sampled token.
bool NeedsSupport(const MaskRule& rule) {
  return IsDivergence(rule.proximity) && (rule.support == Support::kTopK || Predicts(rule.direction));
}

// What decides by response does so before the loss, from a micro-batch that holds whole responses.
void CheckTrains(MaskRule rule) {
  if (rule.scope == Scope::kM2po) {
    throw Error("mask.scope", "m2po decides by batch, and training sees one micro-batch at a time",
                "choose another rule; augur.decide follows this one");
  }
  rule.scope = Scope::kToken;
  CheckRuleOfLoss(rule);
}

void CheckMask(const RlConfig& config, const Places& places) {
  AtPlace(places.Of("mask.preset"), [&] {
    CheckRule(config.mask.rule);
    if (config.algorithm.UsesMask()) CheckTrains(config.mask.rule);
  });
}

void CheckAlgorithm(const RlConfig& config, const Places& places) {
  const RolloutSection& rollout = config.rollout;
  if (FindAdvantage(config.algorithm.advantage).needs_group && rollout.group < 2) {
    throw places.Fault("rollout.group",
                       fmt::format("is {}, and {} compares the responses of a group", rollout.group,
                                   config.algorithm.advantage),
                       "make it 2 or more");
  }
  if (config.algorithm.UsesMask() && NeedsSupport(config.mask.rule) && rollout.support < 1) {
    throw places.Fault("rollout.support", "is 0, and this mask reads the recorded support",
                       "20 is the default");
  }
  if (config.algorithm.loss == LossKind::kGspo && config.algorithm.loss_clip_low >= 1) {
    throw places.Fault("algorithm.loss_clip_low", "is 1 or more, which clips nothing",
                       "GSPO's authors take 3e-4");
  }
}

void CheckTrain(const RlConfig& config, const Places& places) {
  const int64_t minibatch = config.train.minibatch, prompts = config.rollout.prompts;
  if (minibatch > prompts || (minibatch > 0 && prompts % minibatch != 0)) {
    throw places.Fault(
        "train.minibatch",
        fmt::format("is {} prompts, which does not divide rollout.prompts ({})", minibatch, prompts),
        "choose a divisor, or 0 for all");
  }
  const int64_t horizon = config.algorithm.horizon;
  if (horizon > 0 && config.algorithm.aggregation != Aggregation::kSeqMeanTokenSumNorm) {
    throw places.Fault("algorithm.horizon", "is only read by the aggregation seq-mean-token-sum-norm",
                       "remove it, or set algorithm.aggregation");
  }
}

void CheckSchedule(const OptimizerFields& optimizer, int64_t steps, const std::string& section,
                   const Places& places) {
  if (optimizer.schedule == Schedule::kCosine && optimizer.warmup_steps > steps) {
    throw places.Fault(section + ".warmup_steps",
                       fmt::format("is {}, more than all {} steps", optimizer.warmup_steps, steps),
                       "make it smaller");
  }
}

}  // namespace

void CheckConfig(const RlConfig& config, const Settings& settings, const std::string& file) {
  const Places places(settings, file);
  CheckRun(config.run, places);
  CheckModel(config.model, places);
  CheckLora(config.lora, places);
  CheckData(config.data, places);
  CheckReward(config, places);
  CheckRollout(config.rollout, places);
  CheckMask(config, places);
  CheckAlgorithm(config, places);
  CheckTrain(config, places);
  CheckSchedule(config.train.optimizer, config.train.steps, "train", places);
}

void CheckConfig(const SftConfig& config, const Settings& settings, const std::string& file) {
  const Places places(settings, file);
  CheckRun(config.run, places);
  CheckModel(config.model, places);
  CheckLora(config.lora, places);
  CheckData(config.data, places);
  CheckSchedule(config.sft.optimizer, config.sft.steps, "sft", places);
}

}  // namespace augur
