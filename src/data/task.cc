#include "data/task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace augur {
namespace {

constexpr std::string_view kPrefix = "task:";
constexpr std::string_view kTasks[] = {"sort", "arithmetic"};
constexpr std::string_view kSortFields[] = {"numbers", "largest", "count", "seed"};
constexpr std::string_view kArithmeticFields[] = {"terms", "largest", "count", "seed"};
constexpr int64_t kMostPrompts = 1 << 24, kLargestNumber = 999'999;
constexpr uint64_t kTaskStream = 0x736F727400000000;        // "sort": apart from other uses of the same seed
constexpr uint64_t kArithmeticStream = 0x6172697400000000;  // "arit"

struct Range {
  int64_t least, most;
};

// The fields "key=value" after the task's name, defaults where absent.
class Fields {
 public:
  Fields(std::string_view text, std::span<const std::string_view> known, const std::string& where)
      : where_(where) {
    while (!text.empty()) {
      const size_t colon = std::min(text.find(':'), text.size());
      const std::string_view field = text.substr(0, colon);
      text.remove_prefix(std::min(colon + 1, text.size()));
      const size_t equals = field.find('=');
      if (equals == std::string_view::npos) {
        throw Error(where_, fmt::format("'{}' is not of the form field=value", field), "e.g. count=4096");
      }
      const std::string_view key = field.substr(0, equals);
      if (std::ranges::find(known, key) == known.end()) throw UnknownName(where_, "field", key, known);
      values_[std::string(key)] = field.substr(equals + 1);
    }
  }

  int64_t Get(const std::string& key, int64_t otherwise, Range range) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return otherwise;
    const std::string& text = found->second;
    int64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = fault == std::errc() && end == text.data() + text.size();
    if (!whole || value < range.least || value > range.most) {
      throw Error(where_, fmt::format("{} is '{}'", key, text),
                  fmt::format("give a whole number from {} to {}", range.least, range.most));
    }
    return value;
  }

 private:
  const std::string& where_;
  std::map<std::string, std::string> values_;
};

// `count` different numbers from 0 to largest: the first places of Fisher and Yates's shuffle.
std::vector<int64_t> DifferentNumbers(int64_t count, int64_t largest, uint64_t seed, uint64_t prompt) {
  std::vector<int64_t> all(largest + 1);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i) {
    const Philox random = Philox::At(seed, static_cast<uint64_t>(i), kTaskStream + prompt);
    const uint64_t word = uint64_t{random.word[0]} << 32 | random.word[1];
    const auto left = static_cast<uint64_t>(largest + 1 - i);
    std::swap(all[i], all[i + static_cast<int64_t>((static_cast<unsigned __int128>(word) * left) >> 64)]);
  }
  all.resize(count);
  return all;
}

std::vector<Prompt> MakeSort(const Fields& fields, const std::string& name) {
  const int64_t largest = fields.Get("largest", 255, {1, kLargestNumber});
  const int64_t numbers = fields.Get("numbers", 10, {2, std::min<int64_t>(largest + 1, 1000)});
  const int64_t count = fields.Get("count", 4096, {1, kMostPrompts});
  const auto seed = static_cast<uint64_t>(fields.Get("seed", 0, {0, INT64_MAX}));
  std::vector<Prompt> prompts(count);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t> list = DifferentNumbers(numbers, largest, seed, static_cast<uint64_t>(i));
    Prompt& prompt = prompts[i];
    prompt.data_source = "sort";
    prompt.text = fmt::format("{} =", fmt::join(list, " "));
    std::ranges::sort(list);
    prompt.ground_truth = fmt::format("{}", fmt::join(list, " "));
    prompt.file = name;
    prompt.line = i + 1;
  }
  return prompts;
}

std::vector<Prompt> MakeArithmetic(const Fields& fields, const std::string& name) {
  const int64_t terms = fields.Get("terms", 2, {2, 16});
  const int64_t largest = fields.Get("largest", 99, {1, kLargestNumber});
  const int64_t count = fields.Get("count", 4096, {1, kMostPrompts});
  const auto seed = static_cast<uint64_t>(fields.Get("seed", 0, {0, INT64_MAX}));
  std::vector<Prompt> prompts(count);
  for (int64_t i = 0; i < count; ++i) {
    std::string sum;
    int64_t value = 0;
    for (int64_t t = 0; t < terms; ++t) {
      const Philox random =
          Philox::At(seed, static_cast<uint64_t>(t), kArithmeticStream + static_cast<uint64_t>(i));
      const auto term = static_cast<int64_t>(random.word[0] % static_cast<uint64_t>(largest + 1));
      const bool minus = t > 0 && (random.word[1] & 1) != 0;
      sum += t == 0 ? fmt::format("{}", term) : fmt::format(" {} {}", minus ? '-' : '+', term);
      value += minus ? -term : term;
    }
    Prompt& prompt = prompts[i];
    prompt.data_source = "arithmetic";
    prompt.text = fmt::format("What is {}? Answer with the number alone.", sum);
    prompt.ground_truth = fmt::format("{}", value);
    prompt.file = name;
    prompt.line = i + 1;
  }
  return prompts;
}

}  // namespace

bool IsTask(std::string_view name) { return name.starts_with(kPrefix); }

std::vector<Prompt> MakeTask(const std::string& name) {
  std::string_view rest = std::string_view(name).substr(kPrefix.size());
  const size_t colon = std::min(rest.find(':'), rest.size());
  const std::string_view task = rest.substr(0, colon);
  rest.remove_prefix(std::min(colon + 1, rest.size()));
  if (std::ranges::find(kTasks, task) == std::end(kTasks)) throw UnknownName(name, "task", task, kTasks);
  if (task == "sort") return MakeSort(Fields(rest, kSortFields, name), name);
  return MakeArithmetic(Fields(rest, kArithmeticFields, name), name);
}

}  // namespace augur
