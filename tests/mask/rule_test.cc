#include "mask/rule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "message_of.h"

namespace augur {
namespace {

TEST(RuleText, EveryPresetSurvivesFormattingAndParsing) {
  for (const std::string_view name : PresetNames()) {
    const MaskRule rule = PresetRule(name);
    EXPECT_EQ(ParseRule(FormatRule(rule)), rule) << name;
    EXPECT_EQ(ParseRule(name), rule) << name;
  }
}

TEST(RuleText, FieldsChangeAPreset) {
  const MaskRule rule = ParseRule("predictive-kl-exact delta=0.05,delta_negative=0.1 ratio_cap=2");
  EXPECT_EQ(rule.tail, TailModel::kExact);
  EXPECT_EQ(rule.delta, 0.05);
  EXPECT_EQ(rule.delta_negative, 0.1);
  EXPECT_EQ(rule.ratio_cap, 2);
}

TEST(RuleText, UnknownNamesAreErrorsThatNameTheNearest) {
  EXPECT_NE(
      MessageOf([] { ParseRule("predictive-kl-unifrom"); }).find("did you mean 'predictive-kl-uniform'"),
      std::string::npos);
  EXPECT_NE(
      MessageOf([] { ParseRule("tail=exat"); }).find("mask.tail: unknown tail 'exat'; did you mean 'exact'"),
      std::string::npos);
  EXPECT_NE(MessageOf([] { ParseRule("dleta=1"); }).find("did you mean 'delta'"), std::string::npos);
  EXPECT_NE(MessageOf([] { ParseRule("delta=much"); }).find("'much' is not a number"), std::string::npos);
  EXPECT_NE(MessageOf([] { ParseRule("delta=1 clip"); }).find("preset's name first"), std::string::npos);
}

TEST(RuleText, ThresholdsMustBeFiniteAndPositive) {
  for (const char* text :
       {"delta=0", "delta=-1", "delta=nan", "delta=inf", "delta_negative=-1", "clip_low=0", "clip_high=nan",
        "ratio_cap=-2", "dual_clip=1", "dual_clip=-3", "outside_budget=1", "outside_budget=-0.1"}) {
    const std::string message = MessageOf([&] { ParseRule(text); });
    const std::string field(text, std::string_view(text).find('='));
    EXPECT_NE(message.find("mask." + field + ": "), std::string::npos) << text << ": " << message;
  }
}

TEST(RuleText, EveryFieldCanBeReadAndSetByItsName) {
  for (const RuleField& field : RuleFields()) {
    MaskRule rule;
    const std::string before = RuleFieldText(rule, field.name);
    EXPECT_FALSE(field.description.empty()) << field.name;
    if (field.choices.empty()) {
      SetRuleField(field.name, field.range.above == 1 ? "1.5" : "0.25", &rule);
    } else if (field.choices.size() == 1) {
      continue;
    } else {
      const bool last = field.choices.back() == before;
      SetRuleField(field.name, last ? field.choices.front() : field.choices.back(), &rule);
    }
    EXPECT_NE(RuleFieldText(rule, field.name), before) << field.name;
    const bool alone =
        MessageOf([&] { CheckRule(rule); }) == "no error";  // some need another field changed, too
    if (alone) {
      EXPECT_EQ(ParseRule(FormatRule(rule)), rule) << field.name;
    }
  }
  EXPECT_EQ(MaskRule(), ParseRule(""));
}

TEST(RuleText, ARuleThatTheLossCannotFollowSaysWhichField) {
  EXPECT_NE(MessageOf([] { CheckRuleOfLoss(PresetRule("gspo")); }).find("mask.scope: "), std::string::npos);
  EXPECT_NE(MessageOf([] { CheckRuleOfLoss(PresetRule("predictive-kl-second-order")); }).find("mask.tail: "),
            std::string::npos);
  for (const char* rule : {"sapo", "ipo", "ripo", "icepop", "predictive-kl-second-order tail=uniform"}) {
    EXPECT_EQ(MessageOf([&] { CheckRuleOfLoss(ParseRule(rule)); }), "no error") << rule;
  }
}

TEST(RuleText, ABudgetNeedsADivergenceAndOneThreshold) {
  EXPECT_NE(MessageOf([] { ParseRule("clip outside_budget=0.1"); }).find("mask.outside_budget: sets delta"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { ParseRule("outside_budget=0.1 delta_negative=0.2"); }).find("delta_negative"),
            std::string::npos);
}

}  // namespace
}  // namespace augur
