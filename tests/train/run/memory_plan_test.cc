// The memory plan of one rank, by the shape alone.
#include <gtest/gtest.h>

#include "base/process_group.h"
#include "model/shapes.h"
#include "train/run/memory_check.h"

namespace augur {
namespace {

constexpr double kGiB = 1 << 30;

class MemoryPlanOf32Ranks : public testing::Test {
 protected:
  void SetUp() override {
    ProcessGroup ranks;
    ranks.size = 32;
    ranks.local_size = 8;
    SetProcessGroup(ranks);
  }
  void TearDown() override { SetProcessGroup({}); }

  // The paper's setting: every weight of Qwen3-30B-A3B trained, responses of 20,480 tokens.
  MemoryPlan Plan(bool reference) {
    const ModelConfig shape = NamedShape("qwen3-30b-a3b", "shape");
    ModelSection section;
    section.path = "qwen3-30b-a3b";
    OptimizerFields optimizer;
    optimizer.checkpoint_activations = ActivationCheckpoint::kFull;
    const LoraSection lora;
    return PlanMemory({.model = shape,
                       .section = section,
                       .lora = lora,
                       .optimizer = optimizer,
                       .tokens = 20480,
                       .rollouts = true,
                       .reference = reference ? std::optional(shape) : std::nullopt,
                       .shard = Shard::kFull},
                      at::kMeta);
  }
};

TEST_F(MemoryPlanOf32Ranks, Qwen3Of30BFitsInto96GBInEveryPhase) {
  for (const bool reference : {false, true}) {
    const MemoryPlan plan = Plan(reference);
    const double whole = 30.53e9 * 2 / kGiB, own = 30.53e9 * (14 + (reference ? 2 : 0)) / 32 / kGiB;
    const auto sum = [&](MemoryPhase phase) { return plan.SumIn(phase, false) / kGiB; };
    EXPECT_NEAR(sum(MemoryPhase::kLoading), whole + own, 2);
    EXPECT_NEAR(sum(MemoryPhase::kGenerating), whole + own, 2);
    EXPECT_LT(sum(MemoryPhase::kUpdating), 60);
    EXPECT_LT(sum(MemoryPhase::kSaving), own + 9);
    // 96 GB are 89.4 GiB: as much as a tenth of them is left to keys and values, CUDA and NCCL.
    EXPECT_LT(plan.Sum(false) / kGiB, 0.9 * 89.4) << DescribeMemory(plan);
  }
}

TEST_F(MemoryPlanOf32Ranks, NamesThePhasesAndTheHostsShare) {
  const std::string text = DescribeMemory(Plan(true));
  for (const char* line :
       {"together while loading", "together while updating", "together while generating and evaluating",
        "together while saving the model", "host memory, GiB of", "copy of the training state"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace augur
