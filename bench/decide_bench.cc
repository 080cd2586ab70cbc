// Google Benchmark of the token-decision kernel on the CPU; `augur bench decide` compares it with eager
// torch.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/head/decide.h"

namespace augur {
namespace {

void BM_DecideCpu(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const int columns = 21;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(-4, 1);
  std::vector<float> behaviour(tokens * columns), policy(tokens * columns), advantage(tokens);
  for (float& x : behaviour) x = std::min(normal(random), -3.1f);
  for (float& x : policy) x = std::min(normal(random), -3.1f);
  for (float& x : advantage) x = normal(random);
  std::vector<float> ratio(tokens), divergence(tokens), direction(tokens);
  std::vector<uint8_t> flags(tokens);
  const MaskRule rule = PresetRule("predictive-kl-aggregated");
  const DecideInput<float> in{behaviour.data(), policy.data(), advantage.data(), nullptr,
                              nullptr,          tokens,        columns,          151936};
  const DecideOutput<float> out{ratio.data(), divergence.data(), direction.data(), flags.data()};
  for (auto _ : state) DecideCpu(rule, in, out);
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_DecideCpu)->Arg(1024)->Arg(16384)->Arg(65536)->UseRealTime();

}  // namespace
}  // namespace augur
