#include "train/step/decision_log.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "kernels/head/decide.h"
#include "ops/parallel/ranks.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

constexpr int64_t kRecordedSteps = 20;  // about so many of a run
constexpr size_t kPointsPerStep = 400;

int PointFlags(uint8_t flags) {
  return ((flags & kOutside) ? kPointOutside : 0) | ((flags & (kKept | kMissing)) ? 0 : kPointMasked) |
         ((flags & kDisagrees) ? kPointDisagrees : 0);
}

std::vector<float> Copied(const at::Tensor& values, int64_t begin, int64_t count) {
  const float* data = ConstData<float>(values) + begin;
  return {data, data + count};
}

std::string ShownAnswer(const nlohmann::json& truth) {
  if (truth.is_null()) return "";  // a function scores without one
  return truth.is_string() ? truth.get<std::string>() : truth.dump();
}

std::vector<double> Widen(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace

DecisionLog::DecisionLog(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                         const StepLoss& loss)
    : config_(config), text_(text), prompts_(prompts), loss_(loss) {}

bool DecisionLog::Due(int64_t step) const {
  const int64_t every = std::max<int64_t>(1, config_.train.steps / kRecordedSteps);
  return !loss_.response_rule && (step % every == 0 || step == config_.train.steps);
}

void DecisionLog::Visit(const MicroBatch& batch, const PolicyLoss& out) {
  const at::Tensor ratio = out.ratio.cpu(), divergence = out.divergence.cpu();
  const at::Tensor direction = out.direction.cpu(), flags = out.flags.cpu();
  const at::Tensor policy = out.policy.support.cpu().contiguous();
  const at::Tensor tail_mass = out.policy.tail_mass.cpu(), tail_square = out.policy.tail_square.cpu();
  const int64_t columns = policy.size(1);
  int64_t t = 0;
  for (const TrainSample& sample : batch.samples) {
    Candidate candidate{sample, 0, Copied(policy, t * columns, sample.tokens() * columns),
                        Copied(tail_mass, t, sample.tokens()), Copied(tail_square, t, sample.tokens())};
    std::vector<TokenPoint>& points = points_[sample.place];
    for (int64_t i = 0; i < sample.tokens(); ++i, ++t) {
      const int bits = PointFlags(ConstData<uint8_t>(flags)[t]);
      points.push_back({ConstData<float>(ratio)[t], ConstData<float>(divergence)[t],
                        ConstData<float>(direction)[t], static_cast<float>(sample.advantage), bits});
      candidate.masked += (bits & kPointMasked) != 0;
    }
    candidates_.push_back(std::move(candidate));
  }
  KeepMostMasked();
}

void DecisionLog::KeepMostMasked() {
  std::ranges::sort(candidates_, [](const Candidate& a, const Candidate& b) {
    return a.masked != b.masked ? a.masked > b.masked : a.sample.place < b.sample.place;
  });
  const size_t count = std::min(candidates_.size(), static_cast<size_t>(config_.log.tokens));
  candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(count), candidates_.end());
}

std::string DecisionLog::ToBytes(const Experience& experience) const {
  ByteWriter out;
  out.Put(points_.size());
  for (const auto& [place, points] : points_) {
    out.Put(place);
    out.Put(points);
  }
  for (const Candidate& candidate : candidates_) {
    out.Put(static_cast<size_t>(candidate.sample.rollout - experience.rollouts.data()));
    out.Put(candidate.sample.advantage);
    out.Put(candidate.sample.anchor);
    out.Put(candidate.sample.place);
    out.Put(candidate.masked);
    out.Put(candidate.policy);
    out.Put(candidate.tail_mass);
    out.Put(candidate.tail_square);
  }
  return out.bytes();
}

void DecisionLog::AddBytes(const std::string& bytes, const Experience& experience) {
  ByteReader in(bytes);
  for (size_t left = in.Next<size_t>(); left > 0; --left) {
    const auto place = in.Next<size_t>();
    in.Get(&points_[place]);
  }
  while (!in.done()) {
    Candidate candidate;
    candidate.sample.rollout = &experience.rollouts.at(in.Next<size_t>());
    in.Get(&candidate.sample.advantage);
    in.Get(&candidate.sample.anchor);
    in.Get(&candidate.sample.place);
    in.Get(&candidate.masked);
    in.Get(&candidate.policy);
    in.Get(&candidate.tail_mass);
    in.Get(&candidate.tail_square);
    candidates_.push_back(std::move(candidate));
  }
}

void DecisionLog::GatherOnFirst(const Experience& experience) {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return;
  const std::vector<std::string> all = ranks.GatherBytes(ToBytes(experience));
  points_.clear();
  candidates_.clear();
  if (!ranks.first()) return;
  for (const std::string& bytes : all) AddBytes(bytes, experience);
  KeepMostMasked();
}

void DecisionLog::Describe(int64_t step, const Experience& experience) {
  GatherOnFirst(experience);
  const TokenText token_text = [this](int32_t id) { return std::string(text_.tokenizer.TokenBytes(id)); };
  const auto group = static_cast<size_t>(config_.rollout.group);
  for (const Candidate& chosen : candidates_) {
    const TrainSample& sample = chosen.sample;
    const Rollout& rollout = *sample.rollout;
    const auto place = static_cast<size_t>(&rollout - experience.rollouts.data());
    const Prompt& prompt = prompts_.prompts[experience.prompts[place / group]];
    ResponseRecord record;
    record.step = step;
    record.data_source = prompt.data_source;
    record.prompt = text_.tokenizer.Decode(rollout.prompt_tokens);
    record.answer = ShownAnswer(prompt.ground_truth);
    record.reward = experience.rewards[place];
    record.advantage = sample.advantage;
    record.finish = FinishReasonName(rollout.finish);
    record.rule = FormatRule(loss_.terms.rule);
    record.delta = loss_.terms.rule.delta;
    const auto columns = static_cast<size_t>(rollout.support.columns);
    const std::vector<float>& anchor = sample.anchor.empty() ? rollout.support.logprobs : sample.anchor;
    for (const Span& span : rollout.Spans()) {
      record.spans.push_back({span.begin, span.end, std::string(SpanSource(span)), span.weight_version});
    }
    const auto sampled = static_cast<size_t>(sample.tokens());
    for (size_t t = 0; t < sampled; ++t) {
      const std::vector<double> mu = Widen(std::span(anchor).subspan(t * columns, columns));
      const std::vector<double> pi = Widen(std::span(chosen.policy).subspan(t * columns, columns));
      const TokenView view{
          mu, pi, sample.advantage, loss_.logits.vocab_size, chosen.tail_square[t], chosen.tail_mass[t]};
      const std::span<const int32_t> ids = std::span(rollout.support.ids).subspan(t * columns, columns);
      record.tokens.push_back(DescribeToken(loss_.terms.rule, view, ids, token_text));
    }
    records_.push_back(std::move(record));
  }
  candidates_.clear();
}

void DecisionLog::Write(const std::filesystem::path& run, int64_t step) {
  if (!points_.empty()) {
    std::vector<TokenPoint> all;
    for (const auto& [place, points] : points_) all.insert(all.end(), points.begin(), points.end());
    AppendPoints(run, SamplePoints(step, all, kPointsPerStep, static_cast<uint64_t>(config_.run.seed)));
  }
  if (!records_.empty()) AppendTokenRecords(run, records_);
  points_.clear();
  records_.clear();
}

}  // namespace augur
