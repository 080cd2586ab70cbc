// Which format a model directory asks for.
#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/names.h"
#include "text/chat_format.h"
#include "text/chat_template.h"

namespace augur {
namespace {

constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
constexpr std::string_view kQwen25System =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// A token in tokenizer_config.json: text, or an object with its text as "content".
std::string TokenText(const Json& config, const char* key, std::string_view fallback) {
  if (!config.is_object() || !config.contains(key)) return std::string(fallback);
  const Json& value =
      config[key].is_object() && config[key].contains("content") ? config[key]["content"] : config[key];
  return value.is_string() ? value.get<std::string>() : std::string(fallback);
}

// `chat_template` is a text, or a list of named ones of which "default" counts.
std::string TemplateOf(const Json& config, std::string_view where) {
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null())
    return "";
  const Json& value = config["chat_template"];
  if (!value.is_array()) return RequireString(config, "chat_template", where);
  for (const Json& item : value) {
    if (RequireString(item, "name", where) == "default") return RequireString(item, "template", where);
  }
  throw Error(where, "chat_template is a list without one named \"default\"",
              "choose the chat format by name");
}

}  // namespace

// A format Augur renders.
struct ChatFormat::Known {
  std::string_view name;
  Family family;
  std::optional<uint64_t> fingerprint = {};  // of its published template (IdentifyTemplate)
  std::string_view default_system = {};      // as published
  bool dated_today = false;
};

std::span<const ChatFormat::Known> ChatFormat::All() {
  static constexpr Known kFormats[] = {
      {"chatml", Family::kChatMl, 0x5B1D053AF44B609E},  // without a system line of its own
      // SmolLM2-Instruct; also Qwen2, which differs in the line
      {"smollm2", Family::kChatMl, 0xB2F41CD0952F7055, kSmolLm2System},
      // Qwen2.5, Coder and Math, which differ in the line
      {"qwen2.5", Family::kQwen2, 0x9FA91CD9491AF3E5, kQwen25System},
      {"qwen3", Family::kQwen3, 0x3A368A29E6DE643C},                                 // dense and MoE
      {"qwen3-instruct", Family::kQwen2, 0x18A3379155C647A8},                        // Qwen3-Instruct-2507
      {"llama3", Family::kLlama3, 0x4B856F730B55F8BE},                               // Meta-Llama-3-Instruct
      {"llama3.1", Family::kLlama31, 0x0D609FE1FB837A0D},                            // Llama-3.1-Instruct
      {"llama3.2", Family::kLlama31, 0xF9BA8E9A69B05CBC, "", /*dated_today=*/true},  // Llama-3.2-Instruct
      {"raw", Family::kRaw},
  };
  return kFormats;
}

std::span<const std::string_view> ChatFormat::Names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Known& known : All()) all.push_back(known.name);
    return all;
  }();
  return names;
}

ChatFormat ChatFormat::Named(std::string_view name, std::string_view where) {
  const Known& known = All()[IndexOfName(where, "chat format", name, Names())];
  ChatFormat format;
  format.name_ = name;
  format.family_ = known.family;
  format.default_system_ = known.default_system;
  format.dated_today_ = known.dated_today;
  return format;
}

ChatFormat ChatFormat::FromTemplate(std::string_view jinja, std::string_view bos_token,
                                    std::string_view where) {
  const TemplateIdentity identity = IdentifyTemplate(jinja);
  for (const Known& known : All()) {
    if (known.fingerprint != identity.fingerprint) continue;
    ChatFormat format = Named(known.name, where);
    format.default_system_ = identity.default_system;
    format.bos_token_ = bos_token;
    return format;
  }
  std::vector<std::string_view> named(Names().begin(), Names().end());
  std::erase(named, "raw");
  throw Error(where, "the chat template is not one Augur knows",
              fmt::format("choose the format it writes by name ({}), or raw with prompts rendered beforehand",
                          fmt::join(named, ", ")));
}

ChatFormat ChatFormat::FromDirectory(const std::filesystem::path& directory) {
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  const std::filesystem::path template_path = directory / "chat_template.jinja";
  Json config;
  if (std::filesystem::exists(config_path)) config = ParseJson(ReadFile(config_path), config_path.string());
  const bool own_file = std::filesystem::exists(template_path);
  const std::string where = (own_file ? template_path : config_path).string();
  const std::string jinja = own_file ? ReadFile(template_path) : TemplateOf(config, where);
  if (jinja.empty()) return Named("raw", where);
  return FromTemplate(jinja, TokenText(config, "bos_token", ""), where);
}

}  // namespace augur
