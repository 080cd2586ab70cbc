#include "rollout/engine.h"

#include <algorithm>

#include "base/error.h"
#include "rollout/backend.h"
#include "rollout/generation.h"

namespace augur {
namespace {

constexpr int64_t kMostSequences = 256;

std::unique_ptr<Backend> MakeBackend(const Model& model, const EngineOptions& options) {
  return model.embedding.is_cuda() ? MakeCudaBackend(model, options) : MakeCpuBackend(model, options);
}

}  // namespace

struct Engine::State {
  ModelConfig config;
  EngineOptions options;
  std::unique_ptr<Backend> backend;
  int64_t most_pages = 0;  // that the memory allows
  int64_t reserved = 0;
  int64_t version = 0;
  EngineStats stats;

  int64_t max_batch() const { return options.max_batch > 0 ? options.max_batch : kMostSequences; }
  void Reserve(std::span<const GenerateRequest> requests, const SamplingOptions& sampling);
};

// As many pages as these requests can use at once, within what the memory allows.
void Engine::State::Reserve(std::span<const GenerateRequest> requests, const SamplingOptions& sampling) {
  const int64_t page = backend->page_tokens();
  int64_t longest = 0;
  for (const GenerateRequest& request : requests) {
    longest = std::max(longest, static_cast<int64_t>(request.tokens.size()));
  }
  longest = std::min(longest + std::min(sampling.max_tokens, config.max_positions), config.max_positions);
  const int64_t sequences =
      std::min(max_batch(), static_cast<int64_t>(requests.size()) * std::min(sampling.samples, max_batch()));
  // Each sequence in full, and one prompt's last page held beside each.
  const int64_t wanted = std::clamp<int64_t>(sequences * ((longest + page - 1) / page + 2), 1, most_pages);
  if (wanted <= reserved) return;
  backend->ReservePages(wanted);
  reserved = wanted;
}

Engine::Engine(const Model& model, const EngineOptions& options) : state_(std::make_unique<State>()) {
  if (!(options.memory_share > 0 && options.memory_share <= 1)) {
    throw Error("memory_share", fmt::format("{} is not a share", options.memory_share),
                "give more than 0 and at most 1");
  }
  if (options.max_batch < 0) {
    throw Error("max_batch", fmt::format("{} is negative", options.max_batch),
                "give a count, or 0 for what fits");
  }
  if (options.record_routing) CheckRecordsRouting(model.config, "rollout.replay_routing");
  state_->config = model.config;
  state_->options = options;
  state_->backend = MakeBackend(model, options);
  const double free = static_cast<double>(state_->backend->FreeBytes()) * options.memory_share;
  const int64_t bytes = options.kv_bytes > 0 ? options.kv_bytes : static_cast<int64_t>(free);
  state_->most_pages = bytes / state_->backend->page_bytes();
  if (state_->most_pages < 1) {
    throw Error("rollout memory",
                fmt::format("{} bytes for keys and values, but {} tokens take {}", bytes,
                            state_->backend->page_tokens(), state_->backend->page_bytes()),
                "give the rollout more memory");
  }
}

void CheckHasExperts(const ModelConfig& config, std::string_view where) {
  if (std::ranges::count(config.sparse, true) == 0) {
    throw Error(where, "the model has no experts", "leave it out");
  }
}

void CheckRecordsRouting(const ModelConfig& config, std::string_view where) {
  CheckHasExperts(config, where);
  if (config.moe.experts > 256) {
    throw Error(where, fmt::format("{} experts are more than a byte can name", config.moe.experts),
                "leave it out");
  }
}

Engine::~Engine() = default;

std::vector<Rollout> Engine::Generate(std::span<const GenerateRequest> requests,
                                      const SamplingOptions& options, const GenerateHooks& hooks) {
  CheckSamplingOptions(options, state_->config, static_cast<bool>(hooks.text));
  state_->stats = {};
  if (requests.empty()) return {};
  state_->Reserve(requests, options);
  const Generation::Setting setting{state_->config,      *state_->backend, state_->reserved,
                                    state_->max_batch(), state_->version,  state_->options.record_routing};
  return Generation(setting, requests, options, hooks).Run(&state_->stats);
}

void Engine::CheckOptions(const SamplingOptions& options, bool has_text) const {
  CheckSamplingOptions(options, state_->config, has_text);
}

void Engine::UpdateWeights(const Model& model, int64_t version) {
  state_->backend->UpdateWeights(model);
  state_->version = version;
}

int64_t Engine::weight_version() const { return state_->version; }

void Engine::ReleaseMemory() {
  state_->backend->ReservePages(0);
  state_->reserved = 0;
}

void Engine::ReleaseWeights() {
  ReleaseMemory();
  state_->backend->ReleaseWeights();
}

int64_t Engine::weight_bytes() const { return state_->backend->weight_bytes(); }

const EngineStats& Engine::stats() const { return state_->stats; }

}  // namespace augur
