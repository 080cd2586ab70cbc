#include "rollout/generation.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop_signals.h"

namespace augur {
namespace {

// Prompts prefilled in one call hold about this many tokens together.
constexpr int64_t kPrefillTokens = 8192;
// How much more may be expected to be needed than there is: a preempted sample is soon prefilled again, while
// an empty place in the batch is lost at every step.
constexpr double kOvercommit = 1.5;
// One place in so many may stand empty until others are free as well.
constexpr int64_t kJoinShare = 32;

class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {}
  ~Stopwatch() { *seconds_ += SecondsSince(start_); }

 private:
  double* seconds_;
  Clock::time_point start_ = Clock::now();
};

// What is wrong with a prompt, or "".
std::string PromptFault(const GenerateRequest& request, const ModelConfig& config) {
  const auto length = static_cast<int64_t>(request.tokens.size());
  auto message = [&](std::string what, std::string_view remedy) {
    return std::string(Error(request.where, what, remedy).what());
  };
  if (length == 0) return message("the prompt is empty", "give at least one token");
  if (length >= config.max_positions) {
    return message(fmt::format("the prompt has {} tokens, which leaves no room in the model's context of {}",
                               length, config.max_positions),
                   "shorten it");
  }
  for (const int32_t token : request.tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return message(
          fmt::format("token id {} is outside the model's vocabulary of {}", token, config.vocab_size),
          "tokenize with this model's tokenizer");
    }
  }
  return "";
}

}  // namespace

int64_t PagesInFull(std::span<const GenerateRequest> requests, const SamplingOptions& options,
                    const ModelConfig& config, int64_t max_batch, int64_t page_tokens) {
  int64_t longest = 0;
  for (const GenerateRequest& request : requests) {
    longest = std::max(longest, static_cast<int64_t>(request.tokens.size()));
  }
  longest = std::min(longest + std::min(options.max_tokens, config.max_positions), config.max_positions);
  const int64_t sequences =
      std::min(max_batch, static_cast<int64_t>(requests.size()) * std::min(options.samples, max_batch));
  // One prompt's last page is held for each as well.
  return sequences * ((longest + page_tokens - 1) / page_tokens + 2);
}

Generation::Generation(const Setting& setting, std::span<const GenerateRequest> requests,
                       const SamplingOptions& options, const GenerateHooks& hooks)
    : setting_(setting),
      options_(options),
      hooks_(hooks),
      pool_(setting.pages),
      growth_(std::min(options.max_tokens, setting.config.max_positions), setting.backend.page_tokens()) {
  sampling_.vocab_size = options.vocab_size > 0 ? options.vocab_size : setting.config.vocab_size;
  sampling_.stride = setting.config.vocab_size;
  sampling_.temperature = static_cast<float>(options.temperature);
  sampling_.support = static_cast<int32_t>(options.support);
  sampling_.top_k = options.top_k;
  sampling_.top_p = static_cast<float>(options.top_p);
  sampling_.min_p = static_cast<float>(options.min_p);
  Enqueue(requests);
}

void Generation::Enqueue(std::span<const GenerateRequest> requests) {
  rollouts_.resize(requests.size() * options_.samples);
  progress_.total = static_cast<int64_t>(rollouts_.size());
  roomy_ = PagesInFull(requests, options_, setting_.config, setting_.max_batch,
                       setting_.backend.page_tokens()) <= pool_.pages();
  for (size_t r = 0; r < requests.size(); ++r) {
    const GenerateRequest& request = requests[r];
    Group& group = groups_.emplace_back();
    group.request = &request;
    group.unfinished = options_.samples;
    std::string fault = PromptFault(request, setting_.config);
    const auto length = static_cast<int64_t>(request.tokens.size());
    if (fault.empty() && PagesFor(length + 1) > pool_.pages()) {
      fault = Error(request.where,
                    fmt::format("the prompt has {} tokens, but the memory for keys and values holds {}",
                                length, pool_.pages() * setting_.backend.page_tokens()),
                    "shorten it or give the rollout more memory (rollout.memory_share, --memory-share)")
                  .what();
    }
    for (int64_t s = 0; s < options_.samples; ++s) {
      Rollout& rollout = rollouts_[r * options_.samples + s];
      rollout.prompt = request.key;
      rollout.sample = s;
      rollout.prompt_tokens = request.tokens;
      rollout.temperature = options_.temperature;
      rollout.weight_version = setting_.weight_version;
      rollout.support.columns = sampling_.columns();
      if (setting_.records_routing) {
        rollout.routing.layers = std::ranges::count(setting_.config.sparse, true);
        rollout.routing.experts_per_token = setting_.config.moe.experts_per_token;
      }
      Sample& sample = samples_.emplace_back();
      sample.group = &group;
      sample.rollout = &rollout;
      sample.limit = std::min(options_.max_tokens, setting_.config.max_positions - length);
      if (request.max_tokens > 0) sample.limit = std::min(sample.limit, request.max_tokens);
      if (fault.empty()) {
        if (!hooks_.next) waiting_.push_back(&sample);
      } else {
        Finish(&sample, FinishReason::kFailed, fault);
      }
    }
  }
}

void Generation::TakeRequests() {
  if (!hooks_.next) return;
  while (static_cast<int64_t>(waiting_.size() + running_.size()) < setting_.max_batch) {
    std::erase_if(taken_, [](const Group* group) { return group->unfinished == 0; });
    const std::optional<size_t> request = hooks_.next(static_cast<int64_t>(taken_.size()));
    if (!request) return;
    const size_t first = *request * static_cast<size_t>(options_.samples);
    taken_.push_back(samples_[first].group);
    for (int64_t s = 0; s < options_.samples; ++s) {
      Sample* sample = &samples_[first + static_cast<size_t>(s)];
      if (!sample->finished) waiting_.push_back(sample);
    }
  }
}

std::vector<Rollout> Generation::Run(EngineStats* stats) {
  stats_ = stats;
  const auto start = Clock::now();
  while (true) {
    TakeRequests();
    if (waiting_.empty() && running_.empty()) break;
    CheckStop();
    if (hooks_.cancelled && hooks_.cancelled()) {
      for (Sample& sample : samples_) {
        if (!sample.finished) Finish(&sample, FinishReason::kCancelled);
      }
      break;
    }
    const int64_t joining = CountJoining();
    const size_t before = running_.size();
    PrefillPrompts(joining);
    AdmitSamples(joining);
    // A step of all that can join takes hardly longer than one of those that have.
    const bool more_join = running_.size() > before && CountJoining() > 0;
    if (!more_join) {
      MakeRoom();
      TakeAhead();
      DecodeStep();
    }
    progress_.new_tokens = stats_->new_tokens;
    progress_.prefill_tokens = stats_->prefill_tokens;
    progress_.seconds = SecondsSince(start);
    if (hooks_.progress) hooks_.progress(progress_);
  }
  return std::move(rollouts_);
}

int64_t Generation::PagesFor(int64_t tokens) const {
  const int64_t size = setting_.backend.page_tokens();
  return (tokens + size - 1) / size;
}

// Pages a sample needs in addition to the whole ones of its prompt.
int64_t Generation::OwnPages(const Sample& sample) const {
  const int64_t prompt = PromptLength(*sample.group);
  return PagesFor(prompt + static_cast<int64_t>(sample.rollout->tokens.size()) + 1) -
         prompt / setting_.backend.page_tokens();
}

int64_t Generation::PromptLength(const Group& group) const {
  return static_cast<int64_t>(group.request->tokens.size());
}

int64_t Generation::KnownTokens(const Sample& sample) const {
  return PromptLength(*sample.group) + static_cast<int64_t>(sample.rollout->tokens.size()) - 1;
}

int64_t Generation::CountJoining() const {
  const auto waiting = static_cast<int64_t>(waiting_.size());
  const int64_t slots = std::min(waiting, setting_.max_batch - static_cast<int64_t>(running_.size()));
  // Whoever joins interrupts the others, so several do it together.
  const int64_t together = std::min(waiting, setting_.max_batch / kJoinShare);
  if (!running_.empty() && slots < together) return 0;
  if (roomy_ || slots == 0) return slots;
  const int64_t size = setting_.backend.page_tokens();
  PageForecast forecast(growth_);
  int64_t room = pool_.free_pages();
  for (const Sample* sample : running_) {
    forecast.Add(static_cast<int64_t>(sample->rollout->tokens.size()));
    room += static_cast<int64_t>(sample->pages.size()) - PromptLength(*sample->group) / size;
  }
  const Group* last = nullptr;
  for (int64_t joining = 0; joining < slots; ++joining) {
    const Sample& sample = *waiting_[joining];
    if (sample.group != last && sample.group->pages.empty()) room -= PagesFor(PromptLength(*sample.group));
    last = sample.group;
    forecast.Add(static_cast<int64_t>(sample.rollout->tokens.size()));
    const bool first = running_.empty() && joining == 0;
    if (forecast.most() > kOvercommit * static_cast<double>(room) && !first) return joining;
  }
  return slots;
}

void Generation::PrefillPrompts(int64_t joining) {
  int64_t budget = kPrefillTokens;
  std::vector<Group*> chosen;
  for (Sample* sample : waiting_) {
    if (joining-- <= 0) break;
    Group* group = sample->group;
    if (!group->pages.empty()) continue;
    const int64_t length = PromptLength(*group), pages = PagesFor(length);
    if (!chosen.empty() && length > budget) break;
    // A page for each running sample is left, so that what is admitted need not be preempted at once.
    const bool alone = running_.empty() && chosen.empty();
    const int64_t spare = OwnPages(*sample) + static_cast<int64_t>(running_.size() + chosen.size());
    if (pool_.free_pages() < pages + spare && !(alone && EnsureFreePages(pages, group))) break;
    for (int64_t i = 0; i < pages; ++i) group->pages.push_back(pool_.Take());
    chosen.push_back(group);
    budget -= length;
  }
  if (!chosen.empty()) RunPrefill(chosen);
}

void Generation::RunPrefill(const std::vector<Group*>& groups) {
  std::vector<PrefillSequence> sequences;
  std::vector<Sample*> drawn;
  draws_.clear();
  for (size_t row = 0; row < groups.size(); ++row) {
    Group* group = groups[row];
    sequences.push_back({group->request->tokens, group->pages});
    stats_->prefill_tokens += PromptLength(*group);
    const size_t first = static_cast<size_t>(group->request - groups_.front().request) * options_.samples;
    for (int64_t s = 0; s < options_.samples; ++s) {
      Sample* sample = &samples_[first + s];
      if (sample->finished || !sample->rollout->tokens.empty()) continue;
      draws_.push_back(DrawFor(*sample, static_cast<int64_t>(row)));
      drawn.push_back(sample);
    }
  }
  const SampleResults results = MakeResults(draws_.size());
  {
    const Stopwatch watch(&stats_->prefill_seconds);
    setting_.backend.Prefill(sequences, draws_, sampling_, results);
  }
  int64_t token = 0;
  for (const Group* group : groups) {
    for (Sample* sample : drawn) {
      if (sample->group == group) NoteRouting(sample, 0, token, PromptLength(*group));
    }
    token += PromptLength(*group);
  }
  for (size_t i = 0; i < drawn.size(); ++i) Append(drawn[i], static_cast<int64_t>(i));
  std::erase_if(waiting_, [](const Sample* sample) { return sample->finished; });
}

void Generation::AdmitSamples(int64_t joining) {
  std::vector<Sample*> returned;
  while (!waiting_.empty() && joining-- > 0) {
    Sample* sample = waiting_.front();
    if (sample->group->pages.empty() || !Attach(sample)) break;
    if (sample->rollout->tokens.size() > 1) returned.push_back(sample);
    waiting_.pop_front();
    running_.push_back(sample);
    ++sample->group->running;
  }
  for (size_t begin = 0, end = 0; begin < returned.size(); begin = end) {
    int64_t tokens = 0;
    while (end < returned.size() && (end == begin || tokens + returned[end]->cached <= kPrefillTokens)) {
      tokens += returned[end++]->cached;
    }
    PrefillReturned(std::span(returned).subspan(begin, end - begin));
  }
}

void Generation::PrefillReturned(std::span<Sample* const> samples) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<PrefillSequence> sequences;
  for (const Sample* sample : samples) {
    std::vector<int32_t>& known = tokens.emplace_back(sample->group->request->tokens);
    const std::vector<int32_t>& drawn = sample->rollout->tokens;
    known.insert(known.end(), drawn.begin(), drawn.end() - 1);  // the last one is decoded
    stats_->prefill_tokens += sample->cached;
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t whole = PromptLength(*samples[i]->group) / setting_.backend.page_tokens();
    sequences.push_back({tokens[i], samples[i]->pages, whole});
  }
  const Stopwatch watch(&stats_->prefill_seconds);
  setting_.backend.Prefill(sequences, {}, sampling_, {});
}

bool Generation::Attach(Sample* sample) {
  Group* group = sample->group;
  const int64_t length = PromptLength(*group), whole = length / setting_.backend.page_tokens();
  const int64_t own = OwnPages(*sample), known = KnownTokens(*sample);
  if (pool_.free_pages() < own + static_cast<int64_t>(running_.size())) {
    if (!running_.empty()) return false;
    if (!EnsureFreePages(own, group)) {
      // Nothing else holds memory: the prompt's pages become the sample's.
      sample->pages.swap(group->pages);
    }
  }
  const bool shares = !group->pages.empty();
  if (shares) {
    sample->pages.assign(group->pages.begin(), group->pages.begin() + whole);
    for (const int32_t page : sample->pages) pool_.Share(page);
  }
  while (static_cast<int64_t>(sample->pages.size()) < PagesFor(known)) sample->pages.push_back(pool_.Take());
  if (shares && known == length && length > whole * setting_.backend.page_tokens()) {
    const std::pair<int32_t, int32_t> copy{group->pages.back(), sample->pages.back()};
    setting_.backend.CopyPages({&copy, 1});
  }
  sample->cached = known;
  return true;
}

// Drops prompts that no running sample uses, other than `needed`, until `count` pages are free.
bool Generation::EnsureFreePages(int64_t count, const Group* needed) {
  for (Group& group : groups_) {
    if (pool_.free_pages() >= count) return true;
    if (&group != needed && group.running == 0) pool_.DropAll(&group.pages);
  }
  return pool_.free_pages() >= count;
}

void Generation::MakeRoom() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sample* sample = running_[i];
    if (PagesFor(sample->cached + 1) <= static_cast<int64_t>(sample->pages.size())) continue;
    while (!EnsureFreePages(1, nullptr) && running_.size() > i + 1) Preempt(running_.back());
    if (pool_.free_pages() == 0 && i > 0) {
      Preempt(sample);
      return;
    }
    if (pool_.free_pages() == 0) pool_.DropAll(&sample->group->pages);
    if (pool_.free_pages() > 0) {
      sample->pages.push_back(pool_.Take());
      continue;
    }
    Finish(sample, FinishReason::kFailed,
           Error(sample->group->request->where,
                 fmt::format("the memory for keys and values is full at {} tokens", sample->cached),
                 "ask for fewer tokens or give the rollout more memory (rollout.memory_share, "
                 "--memory-share)")
               .what());
    running_.erase(running_.begin());
    return;
  }
}

void Generation::TakeAhead() {
  for (Sample* sample : running_) {
    if (pool_.free_pages() <= static_cast<int64_t>(running_.size())) return;
    if (PagesFor(sample->cached + 2) > static_cast<int64_t>(sample->pages.size())) {
      sample->pages.push_back(pool_.Take());
    }
  }
}

void Generation::Preempt(Sample* sample) {
  pool_.DropAll(&sample->pages);
  sample->cached = 0;
  --sample->group->running;
  std::erase(running_, sample);
  waiting_.push_front(sample);
  ++stats_->preemptions;
}

void Generation::DecodeStep() {
  if (running_.empty()) return;
  decodes_.clear();
  draws_.clear();
  for (size_t row = 0; row < running_.size(); ++row) {
    const Sample& sample = *running_[row];
    const int64_t index = sample.cached - PromptLength(*sample.group);
    decodes_.push_back(
        {sample.rollout->tokens[index], static_cast<int32_t>(sample.cached), std::span(sample.pages)});
    draws_.push_back(DrawFor(sample, static_cast<int64_t>(row)));
  }
  const SampleResults results = MakeResults(draws_.size());
  stats_->decode_batch = std::max(stats_->decode_batch, static_cast<int64_t>(running_.size()));
  stats_->decoded_tokens += static_cast<int64_t>(running_.size());
  ++stats_->decode_steps;
  {
    const Stopwatch watch(&stats_->decode_seconds);
    setting_.backend.Decode(decodes_, draws_, sampling_, results);
  }
  stats_->decode_threads += setting_.backend.threads();
  for (size_t row = 0; row < running_.size(); ++row) {
    Sample* sample = running_[row];
    NoteRouting(sample, sample->cached, static_cast<int64_t>(row), 1);
    ++sample->cached;
    Append(sample, static_cast<int64_t>(row));
  }
  std::erase_if(running_, [](const Sample* sample) { return sample->finished; });
}

void Generation::NoteRouting(Sample* sample, int64_t position, int64_t from, int64_t count) {
  if (!setting_.records_routing) return;
  RecordedRouting& routing = sample->rollout->routing;
  const int64_t width = routing.width();
  const auto known = setting_.backend.routing().subspan(from * width, count * width);
  if (static_cast<int64_t>(routing.experts.size()) < (position + count) * width) {
    routing.experts.resize((position + count) * width);
  }
  std::ranges::copy(known, routing.experts.begin() + position * width);
}

SampleDraw Generation::DrawFor(const Sample& sample, int64_t row) const {
  return MakeSampleDraw(static_cast<int32_t>(row), options_.seed, sample.rollout->prompt,
                        static_cast<uint32_t>(sample.rollout->sample),
                        static_cast<uint32_t>(sample.rollout->tokens.size()));
}

SampleResults Generation::MakeResults(size_t draws) {
  const size_t columns = static_cast<size_t>(sampling_.columns());
  tokens_.resize(draws);
  logprobs_.resize(draws);
  finite_.resize(draws);
  support_ids_.resize(draws * columns);
  support_logprobs_.resize(draws * columns);
  return {tokens_.data(), logprobs_.data(), support_ids_.data(), support_logprobs_.data(), finite_.data()};
}

void Generation::Append(Sample* sample, int64_t draw) {
  Rollout& rollout = *sample->rollout;
  if (finite_[draw] == 0) {
    rollout.not_finite = true;
    Finish(sample, FinishReason::kFailed,
           Error(sample->group->request->where,
                 fmt::format("the model's logits are not finite after {} tokens of the response: its weights "
                             "hold NaN, or overflow in this precision",
                             rollout.tokens.size()),
                 "take another checkpoint, or fp32")
               .what());
    return;
  }
  const int32_t token = tokens_[draw];
  const int64_t columns = sampling_.columns();
  rollout.tokens.push_back(token);
  growth_.Grown(static_cast<int64_t>(rollout.tokens.size()));
  rollout.logprobs.push_back(logprobs_[draw]);
  RecordedSupport& support = rollout.support;
  const auto ids = support_ids_.begin() + draw * columns;
  const auto logprobs = support_logprobs_.begin() + draw * columns;
  support.ids.insert(support.ids.end(), ids, ids + columns);
  support.logprobs.insert(support.logprobs.end(), logprobs, logprobs + columns);
  ++stats_->new_tokens;
  if (hooks_.token) {
    hooks_.token(static_cast<size_t>(sample->group->request - groups_.front().request), rollout.sample,
                 token);
  }
  if (std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end()) {
    Finish(sample, FinishReason::kEos);
  } else if (!options_.stop_texts.empty() && sample->stop.Add(hooks_.text(token), options_.stop_texts)) {
    Finish(sample, FinishReason::kStopText);
  } else if (static_cast<int64_t>(rollout.tokens.size()) >= sample->limit) {
    Finish(sample, FinishReason::kLength);
  }
}

void Generation::Finish(Sample* sample, FinishReason reason, std::string error) {
  sample->finished = true;
  sample->rollout->finish = reason;
  sample->rollout->error = std::move(error);
  sample->rollout->spans = sample->rollout->Spans();
  const bool ended = reason != FinishReason::kFailed && reason != FinishReason::kCancelled;
  if (ended) growth_.Ended(static_cast<int64_t>(sample->rollout->tokens.size()));
  Group* group = sample->group;
  if (sample->cached > 0) --group->running;  // it was in the batch
  pool_.DropAll(&sample->pages);
  if (--group->unfinished == 0) pool_.DropAll(&group->pages);
  ++progress_.finished;
  if (hooks_.finished) {
    hooks_.finished(static_cast<size_t>(sample->rollout - rollouts_.data()), *sample->rollout);
  }
}

}  // namespace augur
