#include "train/run/idle_settings.h"

#include <fmt/format.h>

#include "train/parallel/shard_groups.h"

namespace augur {
namespace {

class Idle {
 public:
  // Notes `key` where it was set and `reason` holds.
  template <typename T>
  void Check(bool reason, const T& value, const T& initial, std::string_view key, std::string_view where) {
    if (reason && value != initial) lines_.push_back(fmt::format("{} does nothing where {}", key, where));
  }
  void Note(std::string line) { lines_.push_back(std::move(line)); }
  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

void CheckMask(const MaskRule& rule, const AlgorithmSection& algorithm, Idle* idle) {
  const MaskRule plain;
  if (!algorithm.UsesMask()) {
    const std::string where = fmt::format("algorithm.loss is {}", NameOf(algorithm.loss));
    idle->Check(true, rule, plain, "the section mask", where);
    return;
  }
  const std::string where = fmt::format("mask.proximity is {}", NameOf(rule.proximity));
  const bool divergence = IsDivergence(rule.proximity), ratio = rule.proximity == Proximity::kRatio;
  idle->Check(!ReadsDelta(rule), rule.delta, plain.delta, "mask.delta", where);
  idle->Check(!divergence, rule.delta_negative, plain.delta_negative, "mask.delta_negative", where);
  idle->Check(!ratio, rule.clip_low, plain.clip_low, "mask.clip_low", where);
  idle->Check(!ratio, rule.clip_high, plain.clip_high, "mask.clip_high", where);
  idle->Check(rule.direction != Direction::kSecondOrder, rule.eta, plain.eta, "mask.eta",
              fmt::format("mask.direction is {}", NameOf(rule.direction)));
  const std::string weight = fmt::format("mask.weight is {}", NameOf(rule.weight));
  const bool quadratic = rule.weight == Weight::kSpo || rule.weight == Weight::kDrpo;
  const bool two_slopes = rule.weight == Weight::kSapo || rule.scope == Scope::kVespo;
  idle->Check(!quadratic, rule.epsilon, plain.epsilon, "mask.epsilon", weight);
  idle->Check(!two_slopes, rule.tau_positive, plain.tau_positive, "mask.tau_positive", weight);
  idle->Check(!two_slopes, rule.tau_negative, plain.tau_negative, "mask.tau_negative", weight);
  const std::string scope = fmt::format("mask.scope is {}", NameOf(rule.scope));
  const bool cppo = rule.scope == Scope::kCppo;
  idle->Check(rule.scope != Scope::kTrm, rule.delta_mean, plain.delta_mean, "mask.delta_mean", scope);
  idle->Check(!cppo, rule.position_floor, plain.position_floor, "mask.position_floor", scope);
  idle->Check(!cppo, rule.prefix_budget, plain.prefix_budget, "mask.prefix_budget", scope);
}

void CheckAlgorithm(const AlgorithmSection& a, Idle* idle) {
  const AlgorithmSection plain;
  const std::string loss = fmt::format("algorithm.loss is {}", NameOf(a.loss));
  const bool clips = a.loss == LossKind::kGspo || a.loss == LossKind::kCispo;
  idle->Check(a.loss != LossKind::kTis, a.tis_cap, plain.tis_cap, "algorithm.tis_cap", loss);
  idle->Check(!clips, a.loss_clip_high, plain.loss_clip_high, "algorithm.loss_clip_high", loss);
  idle->Check(a.loss != LossKind::kGspo, a.loss_clip_low, plain.loss_clip_low, "algorithm.loss_clip_low",
              loss);
  idle->Check(a.kl_coef == 0, a.kl_estimator, plain.kl_estimator, "algorithm.kl_estimator",
              "algorithm.kl_coef is 0");
  idle->Check(!a.dynamic_sampling, a.max_refills, plain.max_refills, "algorithm.max_refills",
              "algorithm.dynamic_sampling is false");
}

void CheckReward(const RewardSection& reward, Idle* idle) {
  const RewardSection plain;
  const bool verifies = reward.python.empty();
  constexpr std::string_view kNoFunction = "reward.python names no function";
  idle->Check(reward.overlong_buffer == 0, reward.overlong_penalty, plain.overlong_penalty,
              "reward.overlong_penalty", "reward.overlong_buffer is 0");
  idle->Check(verifies, reward.timeout_s, plain.timeout_s, "reward.timeout_s", kNoFunction);
  idle->Check(verifies, reward.interpreter, plain.interpreter, "reward.interpreter", kNoFunction);
  idle->Check(verifies, reward.workers, plain.workers, "reward.workers", kNoFunction);
}

void CheckLora(const LoraSection& lora, Idle* idle) {
  const LoraSection plain;
  const bool off = lora.rank == 0 && lora.adapter.empty();
  constexpr std::string_view kWhere = "lora.rank is 0, and every weight is trained";
  idle->Check(off, lora.alpha, plain.alpha, "lora.alpha", kWhere);
  idle->Check(off, lora.targets, plain.targets, "lora.targets", kWhere);
  idle->Check(off, lora.modules_to_save, plain.modules_to_save, "lora.modules_to_save", kWhere);
}

void CheckGradientDtype(const std::string& section, const OptimizerFields& optimizer, Shard shard,
                        Idle* idle) {
  if (optimizer.gradient_dtype != GradientDtype::kBf16 || !DividesState(shard)) return;
  idle->Note(fmt::format(
      "{}.gradient_dtype: bf16 does nothing where parallel.shard is {}: ranks add gradients in fp32", section,
      kNamesOf<Shard>[static_cast<size_t>(shard)]));
}

}  // namespace

std::vector<std::string> IdleSettings(const SftConfig& config) {
  Idle idle;
  CheckGradientDtype("sft", config.sft.optimizer, config.parallel.shard, &idle);
  return std::move(idle).lines();
}

std::vector<std::string> IdleSettings(const RlConfig& config, int ranks) {
  Idle idle;
  CheckMask(config.mask.rule, config.algorithm, &idle);
  CheckAlgorithm(config.algorithm, &idle);
  CheckReward(config.reward, &idle);
  CheckLora(config.lora, &idle);
  idle.Check(config.algorithm.kl_coef == 0, config.model.reference, std::string(), "model.reference",
             "algorithm.kl_coef is 0");
  const OptimizerFields& optimizer = config.train.optimizer;
  idle.Check(optimizer.schedule == Schedule::kConstant, optimizer.min_lr_ratio, 0.0, "train.min_lr_ratio",
             "train.schedule is constant");
  if (optimizer.schedule == Schedule::kConstant && optimizer.warmup_steps > config.train.steps) {
    idle.Note(fmt::format("train.warmup_steps is {}, more than all {} steps: train.lr is never reached",
                          optimizer.warmup_steps, config.train.steps));
  }
  idle.Check(ranks == 1, config.parallel.replicas, int64_t{1}, "parallel.replicas",
             "the run has one process");
  CheckGradientDtype("train", optimizer, config.parallel.shard, &idle);
  if (config.rollout.prompts < ranks) {
    idle.Note(
        fmt::format("rollout.prompts is {}, and there are {} processes: {} generate nothing in each step, "
                    "since one process "
                    "answers a prompt with all its responses",
                    config.rollout.prompts, ranks, ranks - config.rollout.prompts));
  }
  return std::move(idle).lines();
}

}  // namespace augur
