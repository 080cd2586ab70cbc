#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/read.h"
#include "config/write.h"
#include "message_of.h"

namespace augur {
namespace {

constexpr const char* kSmall = "model:\n  path: m\ndata:\n  train: [a.jsonl]\n";

class ConfigTest : public testing::Test {
 protected:
  RlConfig Read(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return ReadRlConfig(Write(text), overrides);
  }
  std::string Fault(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return MessageOf([&] { Read(text, overrides); });
  }
  std::filesystem::path Write(const std::string& text) {
    const auto path = std::filesystem::path(testing::TempDir()) / "c.yaml";
    std::ofstream(path) << text;
    return path;
  }
};

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_F(ConfigTest, DefaultsHoldWhereNothingIsSaid) {
  const RlConfig config = Read(kSmall);
  EXPECT_EQ(config.train.optimizer.lr, 1e-6);
  EXPECT_EQ(config.rollout.support, 20);
  EXPECT_EQ(config.mask.rule, MaskRule{});
  EXPECT_EQ(config.run.dir, "runs/c");
}

TEST_F(ConfigTest, OverridesComeAfterTheFile) {
  const RlConfig config =
      Read(std::string(kSmall) + "train: {steps: 7, lr: 3e-4}\n",
           {"train.steps=9", "data.train=[x, 'y z']", "resume=never", "eval.files=e.jsonl"});
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.train.optimizer.lr, 3e-4);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"x", "y z"}));
  EXPECT_EQ(config.run.resume, "never");
  EXPECT_EQ(config.eval.files, std::vector<std::string>{"e.jsonl"});
}

TEST_F(ConfigTest, GspoClipsAsItsAuthorsDoUnlessToldOtherwise) {
  const auto clips = [&](const std::vector<std::string>& overrides) {
    const AlgorithmSection a = Read(kSmall, overrides).algorithm;
    return std::pair(a.loss_clip_low, a.loss_clip_high);
  };
  EXPECT_EQ(clips({}), std::pair(0.2, 0.28));
  EXPECT_EQ(clips({"algorithm.loss=cispo"}), std::pair(0.2, 0.28));
  EXPECT_EQ(clips({"algorithm.loss=gspo"}), std::pair(3e-4, 4e-4));
  EXPECT_EQ(clips({"algorithm.loss=gspo", "algorithm.loss_clip_low=0.2"}), std::pair(0.2, 4e-4));
  EXPECT_EQ(clips({"algorithm.loss=gspo", "algorithm.loss_clip_high=0.28"}), std::pair(3e-4, 0.28));
}

TEST_F(ConfigTest, AMaskIsAPresetOrFieldsOrBoth) {
  EXPECT_EQ(Read(std::string(kSmall) + "mask: clip\n").mask.rule, PresetRule("clip"));
  const RlConfig both = Read(std::string(kSmall) + "mask:\n  delta: 0.05\n  preset: dppo-topk-kl\n");
  MaskRule expected = PresetRule("dppo-topk-kl");
  expected.delta = 0.05;
  EXPECT_EQ(both.mask.rule, expected);
  EXPECT_EQ(Read(std::string(kSmall) + "mask: {delta: 0.05}\n", {"mask=predictive-tv-exact"}).mask.rule,
            PresetRule("predictive-tv-exact"));
  EXPECT_EQ(Read(std::string(kSmall) + "mask: clip\n", {"mask.clip_high=0.5"}).mask.rule.clip_high, 0.5);
  // The order of lines does not matter, although a budget needs a divergence.
  EXPECT_EQ(Read(std::string(kSmall) + "mask: {outside_budget: 0.1, proximity: tv, preset: none}\n")
                .mask.rule.outside_budget,
            0.1);
}

TEST_F(ConfigTest, APresetInAnExtendingFileTakesNoMaskFieldFromTheFileItExtends) {
  std::ofstream(std::filesystem::path(testing::TempDir()) / "base.yaml")
      << kSmall << "mask: {preset: clip, clip_low: 0.05, ratio_cap: 3, delta: 0.7}\ntrain: {lr: 1e-3}\n";
  const RlConfig preset = Read("extends: base.yaml\nmask: dppo-topk-kl\n");
  EXPECT_EQ(preset.mask.rule, PresetRule("dppo-topk-kl"));
  EXPECT_EQ(preset.train.optimizer.lr, 1e-3);
  MaskRule changed = PresetRule("clip");
  changed.clip_low = 0.05;
  changed.ratio_cap = 3;
  changed.delta = 0.1;
  EXPECT_EQ(Read("extends: base.yaml\nmask: {delta: 0.1}\n").mask.rule, changed);
}

TEST_F(ConfigTest, RefusesFieldsThatNoRuleHas) {
  EXPECT_THROW(Read(std::string(kSmall) + "mask: {restore_strength: 1, delta: 0.05}\n"), Error);
  EXPECT_THROW(Read(std::string(kSmall) + "mask: {action: drop}\n"), Error);
}

TEST_F(ConfigTest, WhatIsPrintedReadsBackIdentically) {
  RlConfig config =
      Read(kSmall, {"mask=predictive-kl-exact", "train.lr=1.23456789012345e-07", "mask.delta=0.1",
                    "data.prompt_template=\"Q:\t{prompt}\n# 'x' \\n: -", "run.dir=null",
                    "rollout.stop=[\"a, b\", \"0\", \"\\n\", \"é\"]", "model.path= 12 "});
  const std::string text = ToYaml(FieldsOf(config));
  RlConfig again = Read(text);
  EXPECT_EQ(ToYaml(FieldsOf(again)), text);
  EXPECT_EQ(again.data.prompt_template, "\"Q:\t{prompt}\n# 'x' \\n: -");
  EXPECT_EQ(again.rollout.stop, (std::vector<std::string>{"a, b", "0", "\n", "é"}));
  EXPECT_EQ(again.model.path, " 12 ");
  EXPECT_EQ(again.run.dir, "null");
  EXPECT_EQ(again.mask.rule, config.mask.rule);
}

TEST_F(ConfigTest, FaultsNameTheLineAndTheKey) {
  const auto at_line_5 = [&](const std::string& line, std::string_view what) {
    const std::string fault = Fault(std::string(kSmall) + line);
    EXPECT_TRUE(Has(fault, "c.yaml:5: ")) << fault;
    EXPECT_TRUE(Has(fault, what)) << fault;
  };
  at_line_5("trian: {steps: 1}\n", "did you mean 'train'?");
  at_line_5("train: {stepz: 1}\n", "unknown key 'train.stepz'; did you mean 'train.steps'?");
  at_line_5("train: {steps: many}\n", "train.steps is 'many', which is not a whole number");
  at_line_5("train: {steps: 1.5}\n", "train.steps");
  at_line_5("train: {steps: -1}\n", "out of range");
  at_line_5("train: {steps: 99999999999999999999}\n", "train.steps");
  at_line_5("train: {steps: }\n", "train.steps has no value");
  at_line_5("train: {steps: [1, 2]}\n", "train.steps");
  at_line_5("train: {lr: nan}\n", "train.lr");
  at_line_5("train: {lr: 1e-3x}\n", "train.lr is '1e-3x', which is not a number");
  at_line_5("train: {schedule: cosin}\n", "did you mean 'cosine'?");
  at_line_5("rollout: {memory_share: 1.5}\n", "at most 1");
  at_line_5("log: {console: 1}\n", "true or false");
  at_line_5("mask: predictive\n", "did you mean");
  at_line_5("mask: {detla: 0.1}\n", "did you mean 'mask.delta'?");
  at_line_5("mask: {delta: x}\n", "mask.delta");
  at_line_5("mask: {delta: 0}\n", "mask.delta");
  at_line_5("mask: {delta: 0.1 tail=exact}\n", "mask.delta");
  at_line_5("train: 5\n", "'train' is a section");
  at_line_5("train.steps: 5\n", "section 'train'");
  at_line_5("model: {path: m}\n", "twice");
  at_line_5("train: {steps: 1, steps: 2}\n", "given twice");
  at_line_5("rollout: {top_p: 0.9}\n", "truncate the distribution");
  at_line_5("reward: {verifier: math}\n", "math_dapo");
  at_line_5("run: {device: gpu}\n", "run.device");
  at_line_5("train: {minibatch: 3}\n", "does not divide rollout.prompts (16)");
  at_line_5("rollout: {group: 1}\n", "rollout.group is 1");
  at_line_5("rollout: {support: 0}\n", "rollout.support is 0");
  at_line_5("data2: *x\n", "is not valid YAML");
  const std::vector<std::string> masked_tis = {"algorithm.loss=tis", "algorithm.anchor=recomputed"};
  EXPECT_TRUE(
      Has(Fault(std::string(kSmall) + "rollout: {support: 0}\n", masked_tis), "rollout.support is 0"));
  EXPECT_EQ(Fault(std::string(kSmall) + "rollout: {support: 0}\n", {"algorithm.loss=tis"}), "no error");
  EXPECT_TRUE(Has(Fault("train: [\n"), "is not valid YAML"));
  EXPECT_TRUE(Has(Fault(""), "model.path is missing"));
  EXPECT_TRUE(Has(Fault(kSmall, {"steps=5"}), "steps=5: unknown key 'steps'; did you mean 'train.steps'?"));
  EXPECT_TRUE(Has(Fault(kSmall, {"train=5"}), "'train' is a section"));
  EXPECT_TRUE(Has(Fault(kSmall, {"nonsense"}), "key=value"));
  EXPECT_TRUE(Has(Fault(kSmall, {"train.lr=-1"}), "train.lr=-1: train.lr is -1, out of range"));
}

TEST_F(ConfigTest, APathMayBeginAtHome) {
  const std::string home = std::getenv("HOME");
  EXPECT_EQ(Read(kSmall, {"run.dir=~/x"}).run.dir, home + "/x");
  EXPECT_EQ(Read(kSmall, {"data.train=[~/a, b~/c]"}).data.train,
            (std::vector<std::string>{home + "/a", "b~/c"}));
  EXPECT_EQ(Read(kSmall, {"reward.interpreter=~/python"}).reward.interpreter, home + "/python");
  EXPECT_EQ(Read(kSmall, {"data.prompt_template=~/{prompt}"}).data.prompt_template, "~/{prompt}");
}

TEST_F(ConfigTest, NoTextMakesTheReaderCrash) {
  for (const char* text :
       {"- a\n- b\n", "x", "? [a]\n: b\n", "train: &a {steps: *a}\n", "--- a\n--- b\n", "{",
        "\t\t:", "? {a: b}\n: c\n", "train:\n  ? [x]\n  : 1\n", "!!binary abc", "\xff\xfe"}) {
    EXPECT_NE(Fault(text), "no error") << text;
  }
  EXPECT_NE(Fault(std::string(100000, '[')), "no error");
}

TEST_F(ConfigTest, ResumeComparesOnlyWhatDecidesTheResult) {
  const RlConfig config = Read(kSmall);
  const auto changed = [&](const std::vector<std::string>& overrides) {
    const RlConfig other = Read(kSmall, overrides);
    return ChangedKeys(config, other);
  };
  EXPECT_EQ(changed({"run.dir=x", "log.console=false", "checkpoint.every=1", "train.steps=5", "eval.every=1"})
                .size(),
            0);
  EXPECT_EQ(changed({"train.lr=2e-6", "mask.delta=0.05"}),
            (std::vector<std::string>{"mask.delta: 0.15 -> 0.05", "train.lr: 1.0e-06 -> 2.0e-06"}));
  EXPECT_EQ(changed({"train.steps=5", "train.schedule=cosine"}).size(), 1);
  EXPECT_EQ(ScheduleChange(config, Read(kSmall, {"train.steps=5"})), "");
  EXPECT_EQ(ScheduleChange(Read(kSmall, {"train.steps=4"}),
                           Read(kSmall, {"train.steps=5", "train.schedule=cosine"})),
            "train.steps: 4 -> 5");
}

TEST_F(ConfigTest, TheSectionMaskHasTheFieldsOfARule) {
  RlConfig config;
  std::string mask;
  const FieldList fields = FieldsOf(config);
  for (const std::string_view key : fields.Keys()) {
    if (key.starts_with("mask.") && key != "mask.preset") {
      mask += (mask.empty() ? "" : " ") + std::string(key.substr(5)) + "=" + fields.Find(key)->Yaml();
    }
  }
  EXPECT_EQ(mask, FormatRule(config.mask.rule));
}

TEST_F(ConfigTest, EveryAdvantageEstimatorCanBeChosen) {
  for (const std::string_view name : AdvantageNames()) {
    const RlConfig config = Read(kSmall, {fmt::format("algorithm.advantage={}", name)});
    EXPECT_EQ(config.algorithm.advantage, name);
  }
  EXPECT_TRUE(Has(MessageOf([&] { Read(kSmall, {"algorithm.advantage=gpro"}); }), "did you mean 'grpo'"));
  EXPECT_EQ(Read(kSmall, {"algorithm.advantage=reinforce_pp", "rollout.group=1"}).rollout.group, 1);
  EXPECT_TRUE(Has(MessageOf([&] { Read(kSmall, {"algorithm.advantage=rloo", "rollout.group=1"}); }),
                  "rloo compares the responses of a group"));
}

TEST_F(ConfigTest, SftHasItsOwnSections) {
  const SftConfig config = ReadSftConfig(Write(std::string(kSmall) + "sft: {batch: 4}\n"),
                                         std::vector<std::string>{"sft.lr=1e-3"});
  EXPECT_EQ(config.sft.batch, 4);
  EXPECT_EQ(config.sft.optimizer.lr, 1e-3);
  EXPECT_TRUE(Has(MessageOf([&] { ReadSftConfig(Write("rollout: {group: 2}\n")); }),
                  "'rollout' belongs to a file of augur train"));
}

TEST_F(ConfigTest, BoundsAreWhereTheyAreSaidToBe) {
  const auto accepted = [&](const std::vector<std::string>& overrides) {
    EXPECT_EQ(MessageOf([&] { Read(kSmall, overrides); }), "no error");
  };
  const auto refused = [&](const std::vector<std::string>& overrides, std::string_view key) {
    EXPECT_TRUE(Has(Fault(kSmall, overrides), fmt::format("{}: {} ", overrides[0], key)))
        << overrides[0] << ": " << Fault(kSmall, overrides);
  };
  accepted({"reward.overlong_buffer=1024"});
  refused({"reward.overlong_buffer=1025"}, "reward.overlong_buffer");
  accepted({"rollout.prompts=524288", "rollout.group=2"});
  refused({"rollout.prompts=524289", "rollout.group=2"}, "rollout.prompts");
  refused({"rollout.group=524289", "rollout.prompts=2"}, "rollout.group");
  accepted({"algorithm.loss_clip_low=1"});
  accepted({"algorithm.loss_clip_low=0.999", "algorithm.loss=gspo"});
  refused({"algorithm.loss_clip_low=1", "algorithm.loss=gspo"}, "algorithm.loss_clip_low");
  accepted({"train.minibatch=16"});
  accepted({"train.minibatch=8"});
  refused({"train.minibatch=32"}, "train.minibatch");
  refused({"algorithm.horizon=5"}, "algorithm.horizon");
  accepted({"algorithm.horizon=5", "algorithm.aggregation=seq-mean-token-sum-norm"});
  accepted({"train.warmup_steps=100", "train.schedule=cosine"});
  refused({"train.warmup_steps=101", "train.schedule=cosine"}, "train.warmup_steps");
  accepted({"train.warmup_steps=101"});
  accepted({"run.device=cuda:12"});
  for (const char* device : {"cuda:", "cuda:x", "cuda0"}) {
    refused({fmt::format("run.device={}", device)}, "run.device");
  }
  refused({"lora.dropout=0.1"}, "lora.dropout");
  accepted({"lora.targets=[]"});
  refused({"lora.targets=[]", "lora.rank=4"}, "lora.targets");
  accepted({"rollout.support=1024"});
  refused({"rollout.support=1025"}, "rollout.support");
  accepted({"rollout.memory_share=1"});
  refused({"rollout.memory_share=0"}, "rollout.memory_share");
  accepted({"rollout.group=1", "algorithm.advantage=reinforce_pp"});
  accepted({"rollout.support=0", "mask=clip"});
  refused({"rollout.support=0", "mask=predictive-kl-exact"}, "rollout.support");
  accepted({"rollout.support=0", "mask=dppo-binary-kl"});
}

}  // namespace
}  // namespace augur
