#include "analysis/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "analysis/statistics.h"

namespace augur {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kEcdfPoints = 200;
constexpr size_t kShownParts = 400;

int Sign(double x) { return (x > 0) - (x < 0); }

double Ratio(int64_t count, int64_t of) {
  return of > 0 ? static_cast<double>(count) / static_cast<double>(of) : kNan;
}

// Seeds in which a rate has no denominator are left out of its mean.
Json MeanAndError(const std::vector<double>& by_seed) {
  const std::vector<double> values = WithoutNan(by_seed);
  return {{"mean", Mean(values)}, {"se", StandardError(values)}, {"seeds", values.size()}};
}

Json Paired(const std::vector<double>& differences) {
  const PairedTest test = TestDifferences(WithoutNan(differences));
  return {{"mean", test.mean},   {"se", test.standard_error}, {"t", test.t},           {"p", test.p},
          {"below", test.below}, {"above", test.above},       {"sign_p", test.sign_p}, {"seeds", test.count}};
}

// Counts of one seed, or of all seeds together.
struct Rates {
  int64_t right = 0, counted = 0, zeros = 0;  // of signs
  int64_t disagree = 0;
  int64_t kept = 0, unsafe = 0, contracted = 0;                    // disagreement tokens this criterion keeps
  int64_t ratio_kept = 0, ratio_unsafe = 0, ratio_contracted = 0;  // and those the ratio keeps

  void Add(const Rates& other) {
    right += other.right, counted += other.counted, zeros += other.zeros, disagree += other.disagree;
    kept += other.kept, unsafe += other.unsafe, contracted += other.contracted;
    ratio_kept += other.ratio_kept, ratio_unsafe += other.ratio_unsafe,
        ratio_contracted += other.ratio_contracted;
  }
};

Rates CountRates(const SeedOutcome& seed, const CriterionOutcome& criterion) {
  const CriterionOutcome& ratio = seed.criteria.front();
  Rates rates;
  for (size_t i = 0; i < seed.outside.size(); ++i) {
    const int predicted = Sign(seed.outside[i].advantage * criterion.direction[i]);
    const int realized = Sign(seed.unmasked_change[i]);
    if (predicted == 0 || realized == 0) {
      ++rates.zeros;
    } else {
      ++rates.counted;
      rates.right += predicted == realized;
    }
    if (criterion.keep[i] == ratio.keep[i]) continue;
    ++rates.disagree;
    if (criterion.keep[i]) {
      ++rates.kept;
      rates.unsafe += criterion.change[i] > 0;
      rates.contracted += criterion.change[i] < 0;
    } else {
      ++rates.ratio_kept;
      rates.ratio_unsafe += ratio.change[i] > 0;
      rates.ratio_contracted += ratio.change[i] < 0;
    }
  }
  return rates;
}

Json EcdfJson(std::vector<double> values) {
  Json points = Json::array();
  for (const EcdfPoint& p : Ecdf(std::move(values), kEcdfPoints)) points.push_back({p.x, p.f});
  return points;
}

// Changes of the disagreement tokens that criterion (or, with `of_ratio`, the ratio) keeps, all seeds
// together.
std::vector<double> KeptDisagreements(std::span<const SeedOutcome> seeds, size_t c, bool of_ratio) {
  std::vector<double> changes;
  for (const SeedOutcome& seed : seeds) {
    const CriterionOutcome &criterion = seed.criteria[c], &ratio = seed.criteria.front();
    const CriterionOutcome& keeper = of_ratio ? ratio : criterion;
    for (size_t i = 0; i < seed.outside.size(); ++i) {
      if (criterion.keep[i] != ratio.keep[i] && keeper.keep[i]) changes.push_back(keeper.change[i]);
    }
  }
  return changes;
}

double MeanOver(const std::vector<double>& values) { return values.empty() ? kNan : Mean(values); }

// A figure of every seed.
std::vector<double> BySeed(std::span<const SeedOutcome> seeds,
                           const std::function<double(const SeedOutcome&)>& f) {
  std::vector<double> values;
  for (const SeedOutcome& seed : seeds) values.push_back(f(seed));
  return values;
}

Json Disagreements(std::span<const SeedOutcome> seeds, size_t c, const std::vector<Rates>& by_seed,
                   const Rates& all) {
  std::vector<double> count, unsafe, ratio_unsafe, difference;
  for (const Rates& r : by_seed) {
    count.push_back(static_cast<double>(r.disagree));
    unsafe.push_back(Ratio(r.unsafe, r.kept));
    ratio_unsafe.push_back(Ratio(r.ratio_unsafe, r.ratio_kept));
    difference.push_back(unsafe.back() - ratio_unsafe.back());
  }
  return {{"count", MeanAndError(count)},
          {"total", all.disagree},
          {"kept", all.kept},
          {"ratio_kept", all.ratio_kept},
          {"unsafe_keep", MeanAndError(unsafe)},
          {"ratio_unsafe_keep", MeanAndError(ratio_unsafe)},
          {"unsafe_keep_minus_ratio", Paired(difference)},
          {"contraction", Ratio(all.contracted, all.kept)},
          {"ratio_contraction", Ratio(all.ratio_contracted, all.ratio_kept)},
          {"ecdf", EcdfJson(KeptDisagreements(seeds, c, false))},
          {"ratio_ecdf", EcdfJson(KeptDisagreements(seeds, c, true))}};
}

Json Control(std::span<const SeedOutcome> seeds, size_t c) {
  const auto change = BySeed(seeds, [&](const auto& s) { return MeanOver(s.criteria[c].change); });
  const auto unmasked = BySeed(seeds, [](const auto& s) { return MeanOver(s.unmasked_change); });
  const auto ratio = BySeed(seeds, [](const auto& s) { return MeanOver(s.criteria[0].change); });
  std::vector<double> minus_unmasked, minus_ratio;
  for (size_t i = 0; i < seeds.size(); ++i) {
    minus_unmasked.push_back(change[i] - unmasked[i]);
    minus_ratio.push_back(change[i] - ratio[i]);
  }
  return {{"change", MeanAndError(change)},
          {"minus_unmasked", Paired(minus_unmasked)},
          {"minus_ratio", Paired(minus_ratio)},
          {"surrogate_kept",
           MeanAndError(BySeed(seeds, [&](const auto& s) { return s.criteria[c].surrogate_kept; }))}};
}

Json SummarizeCriterion(std::span<const SeedOutcome> seeds, size_t c) {
  Rates all;
  std::vector<Rates> by_seed;
  std::vector<double> accuracy;
  for (const SeedOutcome& seed : seeds) {
    by_seed.push_back(CountRates(seed, seed.criteria[c]));
    all.Add(by_seed.back());
    accuracy.push_back(Ratio(by_seed.back().right, by_seed.back().counted));
  }
  const auto masked = BySeed(seeds, [&](const SeedOutcome& s) {
    return Ratio(std::ranges::count(s.criteria[c].keep, false), static_cast<int64_t>(s.outside.size()));
  });
  Json json = {{"name", seeds.front().criteria[c].name},
               {"masked", MeanAndError(masked)},
               {"prediction",
                {{"sign_accuracy", MeanAndError(accuracy)},
                 {"pooled", Ratio(all.right, all.counted)},
                 {"counted", all.counted},
                 {"zeros", all.zeros}}},
               {"control", Control(seeds, c)}};
  if (c > 0) json["disagreements"] = Disagreements(seeds, c, by_seed, all);
  Json per_seed = Json::array();
  for (size_t i = 0; i < seeds.size(); ++i) {
    per_seed.push_back({{"seed", seeds[i].seed},
                        {"outside", seeds[i].outside.size()},
                        {"disagreements", by_seed[i].disagree},
                        {"unsafe_keep", Ratio(by_seed[i].unsafe, by_seed[i].kept)},
                        {"ratio_unsafe_keep", Ratio(by_seed[i].ratio_unsafe, by_seed[i].ratio_kept)},
                        {"sign_accuracy", accuracy[i]},
                        {"change", MeanOver(seeds[i].criteria[c].change)}});
  }
  json["per_seed"] = std::move(per_seed);
  return json;
}

// Which share of pairs of numbers have the same sign, zeros left out.
struct SignMatch {
  int64_t same = 0, counted = 0;
  void Add(double a, double b) {
    if (a == 0 || b == 0) return;
    ++counted;
    same += Sign(a) == Sign(b);
  }
  double Share() const { return Ratio(same, counted); }
};

Json SummarizeParts(std::span<const SeedOutcome> seeds) {
  std::vector<double> own, others, momentum, decay, cosines;
  SignMatch oracle;
  std::vector<SignMatch> own_sign(seeds.front().criteria.size());
  Json points = Json::array();
  for (const SeedOutcome& seed : seeds) {
    if (!seed.parts.empty()) cosines.push_back(seed.momentum_cosine);
    for (const ChangeParts& part : seed.parts) {
      own.push_back(std::abs(part.own));
      others.push_back(std::abs(part.others));
      momentum.push_back(std::abs(part.momentum));
      decay.push_back(std::abs(part.weight_decay));
      const double realized = seed.unmasked_change[part.token];
      oracle.Add(part.Total(), realized);
      for (size_t c = 0; c < own_sign.size(); ++c) {
        own_sign[c].Add(seed.outside[part.token].advantage * seed.criteria[c].direction[part.token],
                        part.own);
      }
      if (points.size() < kShownParts) {
        points.push_back({part.own, part.others, part.momentum, part.weight_decay, part.Total(), realized});
      }
    }
  }
  if (own.empty()) return nullptr;
  const auto median = [](std::vector<double>& values) {
    std::ranges::sort(values);
    return Quantile(values, 0.5);
  };
  Json signs = Json::object();
  for (size_t c = 0; c < own_sign.size(); ++c) signs[seeds.front().criteria[c].name] = own_sign[c].Share();
  const size_t count = own.size();
  return {{"tokens", count},
          {"median_size",
           {{"own", median(own)},
            {"others", median(others)},
            {"momentum", median(momentum)},
            {"weight_decay", median(decay)}}},
          {"momentum_cosine", MeanAndError(cosines)},
          {"oracle_sign_accuracy", oracle.Share()},
          {"own_effect_sign_accuracy", std::move(signs)},
          {"points", std::move(points)}};
}

}  // namespace

Json SummarizeStudy(std::string_view divergence, double delta, std::span<const SeedOutcome> seeds) {
  Json criteria = Json::array();
  for (size_t c = 0; c < seeds.front().criteria.size(); ++c) criteria.push_back(SummarizeCriterion(seeds, c));
  int64_t tokens = 0, outside = 0;
  for (const SeedOutcome& seed : seeds) {
    tokens += seed.tokens;
    outside += static_cast<int64_t>(seed.outside.size());
  }
  return {{"divergence", divergence},
          {"delta", delta},
          {"tokens", tokens},
          {"outside_total", outside},
          {"outside",
           MeanAndError(BySeed(seeds, [](const auto& s) { return static_cast<double>(s.outside.size()); }))},
          {"unmasked_change",
           MeanAndError(BySeed(seeds, [](const auto& s) { return MeanOver(s.unmasked_change); }))},
          {"criteria", std::move(criteria)},
          {"decomposition", SummarizeParts(seeds)}};
}

std::string StudyCsv(std::string_view divergence, std::span<const SeedOutcome> seeds, bool with_header) {
  std::string csv;
  if (with_header) {
    csv =
        "divergence,seed,sequence,position,token,advantage,ratio,d_before,unmasked_change,criterion,"
        "direction,"
        "keep,change\n";
  }
  for (const SeedOutcome& seed : seeds) {
    for (size_t i = 0; i < seed.outside.size(); ++i) {
      const OutsideToken& t = seed.outside[i];
      for (const CriterionOutcome& c : seed.criteria) {
        csv += fmt::format("{},{},{},{},{},{:.8g},{:.8g},{:.8g},{:.8g},{},{:.8g},{},{:.8g}\n", divergence,
                           seed.seed, t.sequence, t.position, t.id, t.advantage, t.ratio, t.divergence,
                           seed.unmasked_change[i], c.name, c.direction[i], c.keep[i] ? 1 : 0, c.change[i]);
      }
    }
  }
  return csv;
}

}  // namespace augur
