// Conversations as the text a model was trained on, equal to transformers' apply_chat_template.
//
// Templates in model directories are programs in Jinja. Augur runs none: it knows the templates of the
// families it supports by their canonical form and renders these itself; any other template is an error that
// says what to do.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace augur {

struct ChatMessage {
  std::string role;     // system, user, assistant, tool
  std::string content;  // UTF-8
  // The thinking of an assistant apart from its content. Qwen3 renders it; elsewhere it must be absent.
  std::optional<std::string> reasoning = {};
};

struct RenderOptions {
  // End with the opening of an assistant's turn, for the model to continue.
  bool add_generation_prompt = false;
  // Qwen3's switch `enable_thinking`; false opens the turn with empty thoughts. Must be absent elsewhere.
  std::optional<bool> thinking = {};
  // "Today Date" of Llama 3.1 and 3.2, e.g. "26 Jul 2024". Empty: what the template says, which is the
  // current day for Llama 3.2; a run that must repeat sets it.
  std::string date = {};
};

class ChatFormat {
 public:
  // The format of a model directory: its chat_template.jinja, or `chat_template` of its
  // tokenizer_config.json; `raw` when it has neither. Throws Error when the template is not one of those
  // known.
  static ChatFormat FromDirectory(const std::filesystem::path& directory);

  // The format a Jinja template describes. `bos_token` is what the template writes for that name.
  static ChatFormat FromTemplate(std::string_view jinja, std::string_view bos_token, std::string_view where);

  // Of all formats; the list is in chat_format_read.cc.
  static std::span<const std::string_view> Names();
  // Throws Error at `where` for another name.
  static ChatFormat Named(std::string_view name, std::string_view where);

  const std::string& name() const { return name_; }
  // The token that ends a turn, as written in the vocabulary; "" for raw, which has none of its own.
  std::string_view end_token() const;
  // Whether it has a place for an assistant's reasoning.
  bool has_reasoning() const { return family_ == Family::kQwen3; }

  // Throws Error for an empty conversation and for a role the format has no place for. `raw` takes one user
  // message and gives its content back.
  std::string Render(std::span<const ChatMessage> messages, const RenderOptions& options = {}) const;
  // What the model writes where it answers so: from the opening of its turn to the token that ends it.
  std::string Reply(const ChatMessage& answer) const;

 private:
  enum class Family { kRaw, kChatMl, kQwen2, kQwen3, kLlama3, kLlama31 };
  struct Known;

  ChatFormat() = default;
  static std::span<const Known> All();
  void Check(std::span<const ChatMessage> messages, const RenderOptions& options) const;

  Family family_ = Family::kRaw;
  std::string name_ = "raw";
  std::string default_system_;  // the system line where a conversation has none; empty: no line
  std::string bos_token_ = "<|begin_of_text|>";
  bool dated_today_ = false;  // Llama 3.2
};

}  // namespace augur
