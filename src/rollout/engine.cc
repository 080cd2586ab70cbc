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
  int64_t reserved = 0, last_reserved = 0;
  int64_t version = 0;
  EngineStats stats;

  int64_t max_batch() const { return options.max_batch > 0 ? options.max_batch : kMostSequences; }
  int64_t AllowedPages() const;
  void Reserve(std::span<const GenerateRequest> requests, const SamplingOptions& sampling);
};

// As many as the memory allows now.
int64_t Engine::State::AllowedPages() const {
  const int64_t page = backend->page_bytes();
  const auto free = static_cast<double>(backend->FreeBytes() + reserved * page);
  const int64_t bytes =
      options.kv_bytes > 0 ? options.kv_bytes : static_cast<int64_t>(free * options.memory_share);
  if (bytes < page) {
    throw Error("rollout memory",
                fmt::format("{} bytes for keys and values, but {} tokens take {}", bytes,
                            backend->page_tokens(), page),
                "give the rollout more memory (rollout.memory_share, --memory-share)");
  }
  return bytes / page;
}

// As many pages as these requests can use at once, within what the memory allows.
void Engine::State::Reserve(std::span<const GenerateRequest> requests, const SamplingOptions& sampling) {
  const int64_t wanted =
      std::max<int64_t>(PagesInFull(requests, sampling, config, max_batch(), backend->page_tokens()), 1);
  if (wanted <= reserved) return;
  // With weights of its own the engine generates while training takes and gives back memory.
  if (!options.own_weights) most_pages = AllowedPages();
  int64_t pages = std::min(wanted, most_pages);
  // As many as before where that does, for any of the requests alone, too: the graphs on a GPU hold the
  // number.
  const int64_t alone = PagesInFull(requests, sampling, config, 1, backend->page_tokens());
  const int64_t enough = std::min(wanted, std::max(most_pages - most_pages / 8, alone));
  if (last_reserved <= most_pages && last_reserved >= std::min(enough, most_pages)) pages = last_reserved;
  reserved = 0;  // should there be no memory for them
  backend->ReservePages(pages);
  reserved = last_reserved = pages;
}

double EngineStats::idle_share() const {
  const auto places = static_cast<double>(decode_steps * decode_batch);
  return places > 0 ? 1 - static_cast<double>(decoded_tokens) / places : 0;
}

double EngineStats::mean_threads() const {
  return decode_steps > 0 ? static_cast<double>(decode_threads) / static_cast<double>(decode_steps) : 0;
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
  state_->most_pages = state_->AllowedPages();
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
