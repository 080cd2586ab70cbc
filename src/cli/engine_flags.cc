#include "cli/engine_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/names.h"
#include "base/tell.h"
#include "cli/flag_checks.h"
#include "config/options.h"
#include "data/prompt_set.h"
#include "model/load.h"
#include "rollout/device.h"

namespace augur {
namespace {

// What config.json says the weights are stored in.
std::string StoredPrecision(const ModelConfig& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto found = config.source.find(key);
    if (found != config.source.end() && found->is_string()) return *found == "bfloat16" ? "bf16" : "fp32";
  }
  return "fp32";
}

// eos_token_id of generation_config.json and config.json, for a directory without a tokenizer.
std::vector<int32_t> EndTokensWithoutTokenizer(const std::filesystem::path& directory, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path file = directory / name;
    if (!std::filesystem::exists(file)) continue;
    const Json config = ParseJson(ReadFile(file), file.string());
    const auto given = config.find("eos_token_id");
    if (given == config.end() || given->is_null()) continue;
    for (const Json& id : given->is_array() ? *given : Json::array({*given})) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
        throw Error(file.string(),
                    fmt::format("the end-of-sequence token {} is not in the vocabulary", id.dump()),
                    "correct eos_token_id");
      }
      ids.push_back(id.get<int32_t>());
    }
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// How many rows of the head are tokens, where a tokenizer that can be read says so; 0 where none does.
int64_t VocabSizeOf(const std::filesystem::path& directory, int64_t rows) {
  if (!std::filesystem::exists(directory / "tokenizer.json")) return 0;
  try {
    const auto size = static_cast<int64_t>(Tokenizer::FromDirectory(directory).vocab_size());
    return size <= rows ? size : 0;
  } catch (const Error&) {
    return 0;  // token ids come in and go out: it is not needed
  }
}

}  // namespace

void AddEngineFlags(CLI::App* command, EngineFlags* flags) {
  command
      ->add_option("MODEL", flags->model,
                   "A Hugging Face directory (config.json, safetensors), or a model of the hub: Org/Name")
      ->transform(ModelPath())
      ->required();
  command->add_option("--device", flags->device, "auto (a GPU where there is one), cpu, cuda or cuda:N")
      ->capture_default_str();
  command
      ->add_option("--precision,--dtype", flags->precision,
                   "fp32, bf16, fp8, or auto: bf16 where the weights are stored in it, else fp32")
      ->capture_default_str();
  command
      ->add_option("--kv-precision", flags->kv_precision,
                   "What keys and values are kept as: bf16 (or fp32, as --precision says) or fp8")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "fp8"}));
  command->add_option("--threads", flags->threads, "CPU threads; 0 takes all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_option("--memory-share", flags->memory_share, "Share of the free memory for keys and values")
      ->capture_default_str();
  command
      ->add_option("--max-batch", flags->max_batch,
                   "Most sequences decoded at once; 0 takes what fits, 256 at most")
      ->capture_default_str();
}

LoadedEngine LoadEngine(const EngineFlags& flags) {
  SetThreads(flags.threads);
  const at::Device device =
      flags.device == "auto" ? RunDevice(RunSection{}) : UseDevice(flags.device, "--device");
  LoadedEngine loaded;
  loaded.precision =
      flags.precision == "auto" ? StoredPrecision(ReadModelConfig(flags.model)) : flags.precision;
  const RolloutPrecision precision = ParseRolloutPrecision(loaded.precision, "--precision");
  loaded.model =
      LoadModel(flags.model, precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16, device);
  loaded.engine = std::make_unique<Engine>(
      loaded.model,
      EngineOptions{.precision = precision,
                    .kv_precision = ParseKvPrecision(flags.kv_precision, "--kv-precision"),
                    .memory_share = flags.memory_share,
                    .max_batch = flags.max_batch,
                    .record_routing = flags.record_routing &&
                                      std::ranges::count(loaded.model.config.sparse, true) > 0 &&
                                      loaded.model.config.moe.experts <= 256});
  return loaded;
}

void WarnOfSlowPrecision(const LoadedEngine& loaded) {
  if (loaded.precision != "fp32") return;
  Tell("{}", SlowPrecisionWarning(loaded.model.embedding.device(), "--precision bf16"));
}

void AddSamplingFlags(CLI::App* command, SamplingFlags* flags) {
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens in a response")->capture_default_str();
  command->add_option("--samples", flags->samples, "Responses to each prompt")->capture_default_str();
  CLI::Option* temperature =
      command->add_option("--temperature", flags->temperature, "0 is greedy")->capture_default_str();
  command
      ->add_flag("--greedy", flags->greedy, "The most likely token at each step; the same as --temperature 0")
      ->excludes(temperature);
  command->add_option("--top-k", flags->top_k, "Sample from this many most likely tokens; 0 is off")
      ->capture_default_str();
  command
      ->add_option("--top-p", flags->top_p,
                   "Sample from the most likely tokens that hold this mass; 1 is off")
      ->capture_default_str();
  command
      ->add_option("--min-p", flags->min_p,
                   "Sample from tokens at least this likely, relative to the most likely one; 0 is off")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Every draw follows from it")
      ->capture_default_str()
      ->check(Seed());
  command->add_flag("--ignore-eos", flags->ignore_eos,
                    "Go on to --max-tokens, past tokens that end a response");
  command->add_option("--stop", flags->stop, "Text that ends a response; may be given several times")
      ->allow_extra_args(false);
}

SamplingOptions MakeSamplingOptions(const SamplingFlags& flags, const std::optional<ModelText>& text,
                                    const EngineFlags& engine, const ModelConfig& config) {
  SamplingOptions options;
  options.temperature = flags.greedy ? 0 : flags.temperature;
  options.top_k = flags.top_k;
  options.top_p = flags.top_p;
  options.min_p = flags.min_p;
  options.max_tokens = flags.max_tokens;
  options.samples = flags.samples;
  options.seed = flags.seed;
  options.stop_texts = flags.stop;
  options.vocab_size = text ? text->vocab_size() : VocabSizeOf(engine.model, config.vocab_size);
  if (!flags.ignore_eos) {
    options.end_tokens = text ? text->end_tokens : EndTokensWithoutTokenizer(engine.model, config.vocab_size);
  }
  return options;
}

void AddPromptFlags(CLI::App* command, PromptFlags* flags) {
  DataSection& data = flags->data;
  command->add_option("--prompt-key", data.prompt_key,
                      "Column of the prompt (default: prompt, problem, question or messages)");
  command->add_option("--answer-key", data.answer_key,
                      "Column of the answer (default: reward_model.ground_truth, label, answer or solution)");
  command->add_flag("--cut-answer", data.cut_answer,
                    "Cut the assistant's message off conversations that end with one");
  command->add_option("--data-source-key", data.data_source_key,
                      "Column of the data source (default: data_source, else the file's name)");
  command->add_option("--template", data.prompt_template,
                      "Text around prompts that are plain text, with {prompt} in their place");
  command->add_flag(
      "--chat", flags->chat,
      "Put plain text through the model's chat format as a user's message; conversations always are");
  command
      ->add_option("--chat-format", data.chat_format, "Instead of the model's: " + OneOf(ChatFormat::Names()))
      ->capture_default_str();
  command->add_option("--thinking", flags->thinking, "Qwen3's enable_thinking: true or false");
}

DataSection MakeDataSection(const PromptFlags& flags) {
  DataSection data = flags.data;
  if (flags.chat) data.chat = ChatUse::kAlways;
  if (flags.thinking) data.thinking = *flags.thinking ? Thinking::kOn : Thinking::kOff;
  if (!TakesPrompt(data.prompt_template)) {
    throw Error("--template", "has no {prompt} in it", "write it where the prompt belongs");
  }
  return data;
}

}  // namespace augur
