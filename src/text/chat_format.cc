#include "text/chat_format.h"

#include <ctime>

#include "base/error.h"
#include "text/unicode_class.h"

namespace augur {
namespace {

constexpr std::string_view kCutoff = "Cutting Knowledge Date: December 2023\nToday Date: ";
constexpr std::string_view kDateOfLlama31 = "26 Jul 2024";

std::string ChatMlTurn(std::string_view role, std::string_view content) {
  return fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
}

std::string Llama3Turn(std::string_view role, std::string_view content) {
  return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", role, content);
}

std::string_view StripNewlinesLeft(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view StripNewlinesRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// Python's str.strip().
std::string_view Strip(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t offset = 0; offset < text.size();) {
    const size_t start = offset;
    const char32_t c = DecodeValid(text, &offset);
    if (CharClasses()[c] == CharClass::kSpace || (c >= 0x1C && c <= 0x1F)) continue;
    begin = std::min(begin, start);
    end = offset;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%d %b %Y", &local)};
}

// Consecutive tool results share one user turn.
std::string QwenToolTurn(std::span<const ChatMessage> messages, size_t i) {
  std::string text;
  if (i == 0 || messages[i - 1].role != "tool") text += "<|im_start|>user";
  text += "\n<tool_response>\n" + messages[i].content + "\n</tool_response>";
  if (i + 1 == messages.size() || messages[i + 1].role != "tool") text += "<|im_end|>\n";
  return text;
}

// The thoughts and the answer of an assistant's message.
struct Reply {
  std::string_view reasoning, answer;
};

Reply SplitReply(const ChatMessage& message) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const std::string_view content = message.content;
  if (message.reasoning) return {*message.reasoning, content};
  const size_t first = content.find(kClose);
  if (first == std::string_view::npos) return {"", content};
  std::string_view reasoning = StripNewlinesRight(content.substr(0, first));
  if (const size_t open = reasoning.rfind(kOpen); open != std::string_view::npos) {
    reasoning.remove_prefix(open + kOpen.size());
  }
  return {StripNewlinesLeft(reasoning),
          StripNewlinesLeft(content.substr(content.rfind(kClose) + kClose.size()))};
}

// The last message that is a user's own words; thoughts before it are forgotten.
size_t LastQuery(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string_view content = messages[i].content;
    const bool tool_result = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !tool_result) return i;
  }
  return messages.size() - 1;
}

std::string Qwen3Reply(std::span<const ChatMessage> messages, size_t i, size_t last_query) {
  const Reply reply = SplitReply(messages[i]);
  const bool last = i + 1 == messages.size();
  if (i <= last_query || (!last && reply.reasoning.empty())) return ChatMlTurn("assistant", reply.answer);
  return ChatMlTurn("assistant", fmt::format("<think>\n{}\n</think>\n\n{}",
                                             StripNewlinesLeft(StripNewlinesRight(reply.reasoning)),
                                             StripNewlinesLeft(reply.answer)));
}

std::string ChatMl(std::span<const ChatMessage> messages, std::string_view default_system) {
  std::string text;
  if (!default_system.empty() && messages[0].role != "system") text += ChatMlTurn("system", default_system);
  for (const ChatMessage& message : messages) text += ChatMlTurn(message.role, message.content);
  return text;
}

std::string Qwen(std::span<const ChatMessage> messages, std::string_view default_system, bool thinks) {
  std::string text;
  if (!default_system.empty() && messages[0].role != "system") text += ChatMlTurn("system", default_system);
  const size_t last_query = LastQuery(messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "tool") {
      text += QwenToolTurn(messages, i);
    } else if (messages[i].role == "assistant" && thinks) {
      text += Qwen3Reply(messages, i, last_query);
    } else {
      text += ChatMlTurn(messages[i].role, messages[i].content);
    }
  }
  return text;
}

std::string Llama3(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) text += Llama3Turn(message.role, Strip(message.content));
  return text;
}

std::string Llama31(std::span<const ChatMessage> messages, std::string_view date) {
  std::string_view system;
  if (messages[0].role == "system") {
    system = Strip(messages[0].content);
    messages = messages.subspan(1);
  }
  return Llama3Turn("system", fmt::format("{}{}\n\n{}", kCutoff, date, system)) + Llama3(messages);
}

}  // namespace

std::string_view ChatFormat::end_token() const {
  if (family_ == Family::kRaw) return "";
  return family_ == Family::kLlama3 || family_ == Family::kLlama31 ? "<|eot_id|>" : "<|im_end|>";
}

void ChatFormat::Check(std::span<const ChatMessage> messages, const RenderOptions& options) const {
  if (messages.empty()) throw Error("chat", "the conversation has no messages", "give at least one");
  if (options.thinking && family_ != Family::kQwen3) {
    throw Error("chat", fmt::format("the format {} has no thinking switch", name_), "leave it out");
  }
  for (const ChatMessage& message : messages) {
    const std::string_view role = message.role;
    const bool known = role == "system" || role == "user" || role == "assistant";
    const bool qwen = family_ == Family::kQwen2 || family_ == Family::kQwen3;
    if ((qwen && !known && role != "tool") ||
        (family_ == Family::kLlama31 && (role == "tool" || role == "ipython"))) {
      throw Error("chat", fmt::format("the format {} has no place for the role \"{}\"", name_, role),
                  "use system, user and assistant");
    }
    if (message.reasoning && !has_reasoning()) {
      throw Error("chat", fmt::format("the format {} has no place for reasoning", name_),
                  "put it into the content");
    }
  }
  if (family_ == Family::kRaw && (messages.size() != 1 || messages[0].role != "user")) {
    throw Error("chat", "the format raw takes one user message and nothing else",
                "choose a chat format, e.g. chatml, or join the messages beforehand");
  }
}

std::string ChatFormat::Render(std::span<const ChatMessage> messages, const RenderOptions& options) const {
  Check(messages, options);
  const std::string_view chatml_opening = options.add_generation_prompt ? "<|im_start|>assistant\n" : "";
  const std::string_view llama_opening =
      options.add_generation_prompt ? "<|start_header_id|>assistant<|end_header_id|>\n\n" : "";
  switch (family_) {
    case Family::kChatMl:
      return ChatMl(messages, default_system_).append(chatml_opening);
    case Family::kQwen2:
      return Qwen(messages, default_system_, false).append(chatml_opening);
    case Family::kQwen3: {
      const bool silent = options.add_generation_prompt && !options.thinking.value_or(true);
      return Qwen(messages, "", true).append(chatml_opening).append(silent ? "<think>\n\n</think>\n\n" : "");
    }
    case Family::kLlama3:
      return bos_token_ + Llama3(messages).append(llama_opening);
    case Family::kLlama31: {
      const std::string date = !options.date.empty() ? options.date
                               : dated_today_        ? Today()
                                                     : std::string(kDateOfLlama31);
      return bos_token_ + Llama31(messages, date).append(llama_opening);
    }
    default:
      return messages[0].content;
  }
}

std::string ChatFormat::Reply(const ChatMessage& answer) const {
  const ChatMessage turns[] = {{"user", ""}, answer};
  const size_t opening = Render({turns, 1}, {.add_generation_prompt = true}).size();
  const std::string whole = Render(turns);
  return whole.substr(opening, whole.rfind(end_token()) - opening);
}

}  // namespace augur
