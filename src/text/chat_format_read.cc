// Which format a model directory asks for.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat_format.h"
#include "text/chat_template.h"

namespace augur {
namespace {

constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
constexpr std::string_view kQwen25System =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// Fingerprints of the published templates (IdentifyTemplate), by the name of the format they ask for.
struct KnownTemplate {
  uint64_t fingerprint;
  std::string_view format;
};
constexpr KnownTemplate kTemplates[] = {
    {0x5B1D053AF44B609E, "chatml"},          // without a system line of its own
    {0xB2F41CD0952F7055, "smollm2"},         // SmolLM2-Instruct; also Qwen2, which differs in the line
    {0x9FA91CD9491AF3E5, "qwen2.5"},         // Qwen2.5, Coder and Math, which differ in the line
    {0x3A368A29E6DE643C, "qwen3"},           // Qwen3, dense and MoE
    {0x18A3379155C647A8, "qwen3-instruct"},  // Qwen3-Instruct-2507
    {0x4B856F730B55F8BE, "llama3"},          // Meta-Llama-3-Instruct
    {0x0D609FE1FB837A0D, "llama3.1"},        // Llama-3.1-Instruct
    {0xF9BA8E9A69B05CBC, "llama3.2"},        // Llama-3.2-Instruct
};
constexpr std::string_view kNames[] = {"chatml", "smollm2",  "qwen2.5",  "qwen3", "qwen3-instruct",
                                       "llama3", "llama3.1", "llama3.2", "raw"};

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

ChatFormat ChatFormat::Named(std::string_view name, std::string_view where) {
  if (std::ranges::find(kNames, name) == std::end(kNames))
    throw UnknownName(where, "chat format", name, kNames);
  ChatFormat format;
  format.name_ = name;
  if (name == "chatml" || name == "smollm2") format.family_ = Family::kChatMl;
  if (name == "qwen2.5" || name == "qwen3-instruct") format.family_ = Family::kQwen2;
  if (name == "qwen3") format.family_ = Family::kQwen3;
  if (name == "llama3") format.family_ = Family::kLlama3;
  if (name == "llama3.1" || name == "llama3.2") format.family_ = Family::kLlama31;
  format.dated_today_ = name == "llama3.2";
  if (name == "smollm2") format.default_system_ = kSmolLm2System;
  if (name == "qwen2.5") format.default_system_ = kQwen25System;
  return format;
}

ChatFormat ChatFormat::FromTemplate(std::string_view jinja, std::string_view bos_token,
                                    std::string_view where) {
  const TemplateIdentity identity = IdentifyTemplate(jinja);
  for (const KnownTemplate& known : kTemplates) {
    if (known.fingerprint != identity.fingerprint) continue;
    ChatFormat format = Named(known.format, where);
    format.default_system_ = identity.default_system;
    format.bos_token_ = bos_token;
    return format;
  }
  throw Error(where, "the chat template is not one Augur knows",
              "choose the format it writes by name (chatml, smollm2, qwen2.5, qwen3, qwen3-instruct, llama3, "
              "llama3.1, "
              "llama3.2), or raw with prompts rendered beforehand");
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
