// The memory plan of one rank, by the shape alone.
#include <gtest/gtest.h>

#include "base/process_group.h"
#include "message_of.h"
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

TEST_F(MemoryPlanOf32Ranks, TheBaseOfAdaptersIsRefusedWhereTheMachineCannotHoldItForEachProcess) {
  const ModelConfig shape = NamedShape("qwen3-30b-a3b", "shape");
  const ModelSection section;
  const OptimizerFields optimizer;
  LoraSection lora;
  lora.rank = 8;
  const MemoryUse use{
      .model = shape, .section = section, .lora = lora, .optimizer = optimizer, .shard = Shard::kFull};
  MemoryPlan plan = PlanMemory(use, at::kCUDA);
  plan.total = 0;
  // 54 GiB of linear layers; torch rounds pinned tensors up to powers of two.
  EXPECT_GT(plan.HostSum(true) / kGiB, 60);
  EXPECT_LT(plan.HostSum(true) / kGiB, 108);
  plan.host_total = 256 * kGiB;
  EXPECT_EQ(MessageOf([&] { RequireMemory(plan, use, "train", false); }), "no error");
  plan.host_total = 32 * kGiB;
  const std::string message = MessageOf([&] { RequireMemory(plan, use, "train", false); });
  EXPECT_NE(message.find("of host memory for each of 8 processes of a machine, and there are 32.0"),
            std::string::npos)
      << message;
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
