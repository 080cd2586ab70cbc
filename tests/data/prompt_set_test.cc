#include "data/prompt_set.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/python.h"
#include "message_of.h"

namespace augur {
namespace {

Prompt Read(const char* row, const PromptColumns& columns = {}) {
  return PromptFromRow(Json::parse(row), columns, "f:1");
}

TEST(PromptRow, ReadsVerlsColumns) {
  const Prompt prompt = Read(R"({"data_source": "s", "prompt": [{"role": "system", "content": "a"},
      {"role": "user", "content": "b"}], "ability": "m", "reward_model": {"style": "rule", "ground_truth": "7"},
      "extra_info": {"index": 3}})");
  EXPECT_EQ(prompt.data_source, "s");
  ASSERT_EQ(prompt.messages.size(), 2);
  EXPECT_EQ(prompt.messages[1].role, "user");
  EXPECT_EQ(prompt.messages[1].content, "b");
  EXPECT_EQ(prompt.text, "");
  EXPECT_EQ(prompt.ground_truth, "7");
  EXPECT_EQ(prompt.extra_info["index"], 3);
}

TEST(PromptRow, ReadsSlimesAndTrlsColumnsAndBareProblems) {
  for (const char* row : {R"({"prompt": "p", "label": "7"})", R"({"prompt": "p", "answer": "7"})",
                          R"({"prompt": "p", "solution": "7"})", R"({"problem": "p", "answer": "7"})",
                          R"({"question": "p", "answer": "7", "solution": "so 7"})",
                          R"({"question": "p", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"})",
                          R"({"prompt": "p", "label": null, "answer": "7", "problem": "q"})"}) {
    const Prompt prompt = Read(row);
    EXPECT_EQ(prompt.text, "p") << row;
    EXPECT_EQ(prompt.ground_truth, "7") << row;
    EXPECT_TRUE(prompt.extra_info.is_null());
  }
}

TEST(PromptRow, ReadsTheColumnsThatTheConfigurationNames) {
  const Prompt prompt = Read(R"({"prompt": "no", "in": {"text": "p"}, "a.b": 7, "from": "s"})",
                             {.prompt = "in.text", .answer = "a.b", .data_source = "from"});
  EXPECT_EQ(prompt.text, "p");
  EXPECT_EQ(prompt.ground_truth, 7);
  EXPECT_EQ(prompt.data_source, "s");
}

TEST(PromptRow, PutsTheTemplateAroundPlainText) {
  EXPECT_EQ(Read(R"({"prompt": "p {prompt}", "answer": 1})", {.prompt_template = "<{prompt}>"}).text,
            "<p {prompt}>");
  EXPECT_NE(MessageOf([] {
              Read(R"({"prompt": "p", "answer": 1})", {.prompt_template = "x"});
            }).find("f:1: the prompt template does not contain {prompt}"),
            std::string::npos);
}

TEST(PromptRow, ReadsCountdownPuzzles) {
  const Prompt prompt = Read(R"({"numbers": [15, 5, 5], "target": 2})");
  EXPECT_NE(prompt.text.find("[15,5,5]"), std::string::npos);
  EXPECT_NE(prompt.text.find("equals 2."), std::string::npos);
  EXPECT_EQ(prompt.ground_truth, Json::parse(R"({"numbers": [15, 5, 5], "target": 2})"));
}

TEST(PromptRow, SaysWhatIsMissingOrMistyped) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"text": "p", "answer": "7"})", "f:1: no prompt; the row has answer, text; name the column"},
      {R"({"prompt": "p"})", "f:1: no answer; the row has prompt"},
      {R"({"prompt": "p", "answer": null})",
       "f:1: no answer; the row has answer (null), prompt; fill it in or remove the row, or name the column"},
      {R"({"prompt": "p", "reward_model": null})",
       "f:1: no answer; the row has prompt, reward_model (null); fill it in or remove the row, or name the"},
      {R"({"prompt": "p", "reward_model": {"ground_truth": null}})",
       "f:1: no answer; the row has prompt, reward_model; fill it in or remove the row, or name the column"},
      {R"({"numbers": null, "target": 2})",
       "f:1: no prompt; the row has numbers (null), target; fill it in or remove the row, or name the"},
      {R"({"prompt": "p", "note": null})",
       "f:1: no answer; the row has note (null), prompt; name the column"},
      {R"({})", "f:1: no prompt; the row has no columns"},
      {R"({"prompt": "", "answer": "7"})", "f:1: the prompt is empty"},
      {R"({"prompt": [], "answer": "7"})", "f:1: the prompt has no messages"},
      {R"({"prompt": 5, "answer": "7"})", "f:1: the prompt is a number"},
      {R"({"prompt": [{"role": "user"}], "answer": "7"})",
       "message 1 of the prompt: the key \"content\" is missing"},
      {R"({"prompt": [{"role": "user", "content": [1]}], "answer": "7"})",
       "\"content\" is an array, not a string"},
      {R"({"prompt": ["p"], "answer": "7"})", "message 1 of the prompt: expected a JSON object"},
      {R"({"prompt": "p", "answer": "7", "data_source": 1})", "f:1: the data source is not text"},
      {R"({"prompt": "p", "reward_model": "7"})", "f:1: no answer"},
  };
  for (const auto& [row, expected] : cases) {
    const std::string message = MessageOf([&text = row] { Read(text); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
  EXPECT_NE(MessageOf([] {
              Read(R"({"prompt": "p", "answer": 1})", {.answer = "reward.x"});
            }).find("no answer in the column \"reward.x\""),
            std::string::npos);
  EXPECT_NE(MessageOf([] {
              Read(R"({"prompt": "p", "answer": 1})", {.data_source = "s"});
            }).find("no data source in the column \"s\""),
            std::string::npos);
}

class PromptFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path Write(const char* name, std::string_view content) {
    WriteFileAtomically(dir_ / name, content);
    return dir_ / name;
  }

  const std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / ("augur-data-" + std::to_string(getpid()));
};

TEST_F(PromptFileTest, CountsThroughFilesAndKeepsLines) {
  const std::filesystem::path files[] = {
      Write("a.jsonl",
            "\xEF\xBB\xBF{\"prompt\": \"p\", \"answer\": 1}\r\n \n{\"prompt\": \"q\", \"answer\": 2}"),
      Write("b.jsonl", "{\"prompt\": \"r\", \"answer\": 3, \"data_source\": \"s\"}\n")};
  const std::vector<Prompt> prompts = ReadPrompts(files, {});
  ASSERT_EQ(prompts.size(), 3);
  EXPECT_EQ(prompts[1].index, 1);
  EXPECT_EQ(prompts[1].line, 3);
  EXPECT_EQ(prompts[1].data_source, "a");
  EXPECT_EQ(prompts[2].index, 2);
  EXPECT_EQ(prompts[2].Where(), files[1].string() + ":1");
  EXPECT_EQ(prompts[2].data_source, "s");
}

TEST_F(PromptFileTest, NamesFileAndLineOfWhatItCannotRead) {
  const std::string good = "{\"prompt\": \"p\", \"answer\": 1}\n";
  const std::pair<std::string, const char*> cases[] = {
      {good + "{\"prompt\": \"p\", \"answer\"\n", "x.jsonl:2: not valid JSON"},
      {good + "\n[1]\n", "x.jsonl:3: expected a JSON object, found an array"},
      {good + "{\"prompt\": \"\xFF\", \"answer\": 1}\n", "x.jsonl:2: not valid JSON"},
      {good + good + "{\"answer\": 1}", "x.jsonl:3: no prompt"},
      {good + std::string(1000, '['), "x.jsonl:2: JSON nested deeper"},
      {good + std::string("\0\0", 2), "x.jsonl:2: not valid JSON"},
      {"", "x.jsonl: holds no prompts"},
      {"\n\n", "x.jsonl: holds no prompts"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "x.jsonl: is a git-lfs pointer"},
  };
  for (const auto& [content, message] : cases) {
    const std::filesystem::path file = Write("x.jsonl", content);
    const std::string got = MessageOf([&] { ReadPrompts({&file, 1}, {}); });
    EXPECT_NE(got.find(message), std::string::npos) << got;
  }
  const std::filesystem::path none = dir_ / "none.jsonl";
  EXPECT_NE(MessageOf([&] { ReadPrompts({&none, 1}, {}); }).find("No such file"), std::string::npos);
}

TEST_F(PromptFileTest, CountsRowsThatAreOddAndUsable) {
  const std::filesystem::path file =
      Write("x.jsonl",
            R"({"prompt": "a: \" {}", "answer": 1, "extra_info": {"a": [{"b": 1}]}}
{"prompt": "p", "answer": 1, "answer": 2}
{"prompt": "q", "answer": " ", "extra_info": {"a": [{"b": 1, "b": 1}]}}
{"prompt": [{"role": "user", "content": "r"}, {"role": "wizard", "content": "s"}], "answer": "1"}
{"prompt": [{"role": "tool", "content": "r"}], "answer": ""})");
  const std::vector<Prompt> prompts = ReadPrompts({&file, 1}, {});
  EXPECT_EQ(
      OddRows(prompts, /*need_answers=*/true),
      (std::vector<std::string>{
          file.string() + ":2: a key is given twice, and the last counts; 2 of 5 rows have such keys; "
                          "give each key once",
          file.string() + ":3: the answer is empty; 2 of 5 answers are; fill them in or remove the rows",
          file.string() + ":4: the role 'wizard' is none of system, user, assistant, tool; 1 of 5 "
                          "prompts have such roles; correct them"}));
  EXPECT_EQ(OddRows(prompts, /*need_answers=*/false).size(), 2);
  EXPECT_EQ(OddRows(std::span(prompts).first(1), /*need_answers=*/true).size(), 0);
}

TEST_F(PromptFileTest, ADamagedParquetFileIsAnErrorThatNamesIt) {
  SetPython({"python3", AUGUR_SOURCE_DIR "/python/augur"});
  const std::filesystem::path file = Write("x.parquet", "PAR1 and then nothing");
  const std::string got = MessageOf([&] { ReadPrompts({&file, 1}, {}); });
  EXPECT_NE(got.find("x.parquet: "), std::string::npos) << got;
  EXPECT_NE(got.find("Parquet"), std::string::npos) << got;
}

}  // namespace
}  // namespace augur
