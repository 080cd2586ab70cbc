#include <fmt/format.h>

#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/names.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/json_lines.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace augur {
namespace {

struct TokenizeFlags {
  std::string model;
  bool decode = false;
  bool skip_special = false;
  bool add_special = false;
  std::string chat_format;
  bool stats = false;
};

constexpr const char* kTokenizeFooter = R"(Lines of standard input and what they become:
  {"text":"Hello"}                          {"ids":[9707]}
  {"messages":[{"role":"user","content":"Hello"}],"add_generation_prompt":true}
                                            {"ids":[...],"text":"<|im_start|>user\nHello..."}
  with --decode: {"ids":[9707]}             {"text":"Hello"}

Special tokens written in the text are recognised; none are added unless --add-special-tokens is given.
A line with "messages" is rendered by the model's chat format; "enable_thinking" (Qwen3), "date_string" (Llama 3.1
and 3.2) and "reasoning_content" within a message are as in transformers' apply_chat_template.)";

std::vector<int32_t> ReadIds(const Json& line) {
  const Json& list = RequireKey(line, "ids", "");
  if (!list.is_array()) throw Error("", "\"ids\" is not a list", "write {\"ids\":[1,2,3]}");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<double>() < INT32_MIN || id.get<double>() > INT32_MAX) {
      throw Error("", fmt::format("\"ids\" holds {}, which is no token id", id.dump()),
                  "write whole numbers");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::optional<bool> ReadFlag(const Json& line, const char* key) {
  if (!line.contains(key) || line[key].is_null()) return std::nullopt;
  if (!line[key].is_boolean()) throw Error("", fmt::format("\"{}\" is not true or false", key), "correct it");
  return line[key].get<bool>();
}

std::vector<ChatMessage> ReadMessages(const Json& list) {
  if (!list.is_array()) throw Error("", "\"messages\" is not a list", "write [{\"role\":…,\"content\":…}]");
  std::vector<ChatMessage> messages;
  for (const Json& item : list) {
    ChatMessage& message = messages.emplace_back();
    if (const auto calls = item.find("tool_calls"); calls != item.end() && !calls->empty()) {
      throw Error("messages", "tool_calls are not rendered", "write them into the message's content");
    }
    message.role = RequireString(item, "role", "messages");
    message.content = RequireString(item, "content", "messages");
    if (item.contains("reasoning_content"))
      message.reasoning = RequireString(item, "reasoning_content", "messages");
  }
  return messages;
}

std::string Render(const Json& line, const ChatFormat& format) {
  RenderOptions options;
  if (line.contains("tools") && !line["tools"].empty()) {
    throw Error("tools", "are not rendered", "write them into the system message");
  }
  if (ReadFlag(line, "continue_final_message").value_or(false)) {
    throw Error("continue_final_message", "is not supported", "cut the end of the message off the tokens");
  }
  options.add_generation_prompt = ReadFlag(line, "add_generation_prompt").value_or(false);
  options.thinking = ReadFlag(line, "enable_thinking");
  if (line.contains("date_string")) options.date = RequireString(line, "date_string", "");
  return format.Render(ReadMessages(line["messages"]), options);
}

class Converter {
 public:
  explicit Converter(const TokenizeFlags& options)
      : options_(options), tokenizer_(Tokenizer::FromDirectory(options.model)) {
    if (!options.chat_format.empty()) format_ = ChatFormat::Named(options.chat_format, "--chat-format");
  }

  Json operator()(const Json& line) {
    if (options_.decode) return {{"text", tokenizer_.Decode(ReadIds(line), options_.skip_special)}};
    if (!line.contains("messages")) return {{"ids", Encode(RequireString(line, "text", ""))}};
    if (!format_) format_ = ChatFormat::FromDirectory(options_.model);
    std::string text = Render(line, *format_);
    return {{"ids", tokenizer_.Encode(text)}, {"text", std::move(text)}};
  }

  Json Stats() const { return {{"bytes", bytes_}, {"tokens", tokens_}, {"seconds", seconds_}}; }

 private:
  std::vector<int32_t> Encode(const std::string& text) {
    const auto start = Clock::now();
    auto ids = options_.add_special ? tokenizer_.EncodeWithSpecialTokens(text) : tokenizer_.Encode(text);
    seconds_ += SecondsSince(start);
    bytes_ += text.size();
    tokens_ += ids.size();
    return ids;
  }

  const TokenizeFlags& options_;
  Tokenizer tokenizer_;
  std::optional<ChatFormat> format_;
  double seconds_ = 0;  // spent encoding
  size_t bytes_ = 0;
  size_t tokens_ = 0;
};

}  // namespace

void AddTokenizeCommand(CLI::App& app) {
  auto* command =
      app.add_subcommand("tokenize", "Turn text or conversations into token ids, or ids into text");
  auto options = std::make_shared<TokenizeFlags>();
  command
      ->add_option("MODEL", options->model,
                   "A Hugging Face directory with a tokenizer.json, or a model of the hub: Org/Name")
      ->transform(ModelPath())
      ->required();
  auto* decode = command->add_flag("--decode", options->decode, "Read ids and write text");
  command
      ->add_flag("--skip-special-tokens", options->skip_special, "Leave special tokens out of decoded text")
      ->needs(decode);
  command
      ->add_flag("--add-special-tokens", options->add_special,
                 "Add what the tokenizer's post-processor adds, e.g. <|begin_of_text|> of Llama 3")
      ->excludes(decode);
  command
      ->add_option("--chat-format", options->chat_format,
                   "Render messages by this format instead of the model's: " + OneOf(ChatFormat::Names()))
      ->excludes(decode);
  command
      ->add_flag("--stats", options->stats,
                 "At the end write {\"bytes\",\"tokens\",\"seconds\"} of encoding text to standard error")
      ->excludes(decode);
  command->footer(kTokenizeFooter);
  command->callback([options] {
    std::ios::sync_with_stdio(false);
    Converter convert(*options);
    ConvertJsonLines(std::cin, std::cout, [&convert](const Json& line) { return convert(line); });
    if (options->stats) Tell("{}\n", convert.Stats().dump());
  });
}

}  // namespace augur
