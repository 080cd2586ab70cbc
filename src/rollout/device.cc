#include "rollout/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/cores.h"
#include "base/process_group.h"
#include "base/tell.h"
#include "model/load.h"
#include "ops/device.h"

namespace augur {

at::Device RunDevice(const RunSection& run) {
  if (run.device != "auto") return UseDevice(run.device, "run.device");
  return UseDevice(HasUsableGpu() ? "cuda" : "cpu", "run.device");
}

at::ScalarType TrainerType(Precision precision) {
  return precision == Precision::kFp32 ? at::kFloat : at::kBFloat16;
}

ForwardOptions MakeForwardOptions(Precision precision, const OptimizerFields& fields) {
  ForwardOptions options;
  options.checkpoint_layers = fields.checkpoint_activations == ActivationCheckpoint::kFull;
  options.recompute_cheap = fields.checkpoint_activations == ActivationCheckpoint::kSelective;
  options.fp8 = precision == Precision::kFp8;
  return options;
}

bool Overlaps(const RlConfig& config, at::Device device) {
  // Two threads cannot share a process group.
  return device.is_cuda() && config.rollout.staleness > 0 && ThisProcessGroup().size == 1;
}

std::string SlowPrecisionWarning(at::Device device, std::string_view remedy) {
  if (!device.is_cuda()) return "";
  return fmt::format(
      "augur: warning: in fp32 a GPU generates many times slower than in bf16 (SmolLM2-135M on an H200: 14 "
      "times); set {}\n",
      remedy);
}

EngineOptions MakeEngineOptions(const RlConfig& config, at::Device device) {
  EngineOptions options;
  switch (config.model.precision) {
    case Precision::kFp32:
      options.precision = RolloutPrecision::kFp32;
      break;
    case Precision::kBf16:
      options.precision = RolloutPrecision::kBf16;
      break;
    default:
      options.precision = RolloutPrecision::kFp8;
  }
  options.kv_precision = config.rollout.kv_precision;
  options.memory_share = config.rollout.memory_share;
  options.max_batch = config.rollout.max_batch;
  options.record_routing = config.rollout.replay_routing;
  options.own_weights = Overlaps(config, device);
  return options;
}

int64_t SetThreads(int64_t threads) {
  if (threads == 0) threads = CoresPerProcess();
  if (threads > CoresPerProcess()) {
    Tell(
        "augur: warning: {} threads on {} cores wait for each other and take several times as long; set "
        "run.threads (--threads) to {} at most, or 0\n",
        threads, CoresPerProcess(), CoresPerProcess());
  }
  at::set_num_threads(static_cast<int>(threads));
  return threads;
}

void SetDeterministic(bool on) {
  // cuBLAS splits sums among streams' workspaces unless they are of a fixed size.
  if (on) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(on);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace augur
