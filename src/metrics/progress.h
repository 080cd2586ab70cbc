// How far long work has come: one bar redrawn on a terminal, plain lines elsewhere. Written to standard
// error, so that standard output stays the program's result.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace augur {

struct ProgressOptions {
  bool shown = true;
  // Where the work begins when it was resumed; the time left is reckoned from the speed since then.
  int64_t begin = 0;
  // Seconds between plain lines where there is no terminal, the first after two; 0 writes one for every
  // Update.
  double plain_interval = 10;
};

// What goes on inside a unit that takes long: "generating: 3/16 responses, 1204 tokens".
struct Stage {
  std::string_view name;  // "generating"; a literal, as is the unit
  int64_t done = 0, total = 0;
  std::string_view unit;  // of both: "responses"
  int64_t tokens = -1;    // next to them; -1: none to show
};

std::string StageText(const Stage& stage);

class Progress {
 public:
  // `title` opens the line ("train"), `unit` is what is counted ("step", "response").
  Progress(std::string title, std::string unit, int64_t total, ProgressOptions options = {});
  // Leaves the bar as it stands and goes to the next line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total`, and what else to show ("reward 0.41  masked 1.2%").
  void Update(int64_t done, std::string_view figures = "");
  // What the unit after those done is at. Shown after the figures of the last Update once the unit has taken
  // two seconds, although nothing more is heard of it; may be called often. `shown_done` is the count to show
  // where it is not that of Update: an evaluation belongs to the step before it, which is done.
  void Within(const Stage& stage, std::optional<int64_t> shown_done = {});
  // A line of its own above the bar.
  void Note(std::string_view line);

 private:
  double SecondsLeft() const;
  double SecondsLeftOfStage() const;
  void Draw();
  void DrawStageIfDue();
  void StartTimer();

  std::string title_, unit_;
  int64_t total_, done_, shown_done_;
  ProgressOptions options_;
  bool terminal_;
  bool drawn_ = false;
  std::string figures_, last_line_, last_stage_;
  Clock::time_point start_, unit_start_, stage_start_, last_draw_;
  std::optional<Stage> stage_;
  std::mutex mutex_;  // of all the above
  std::condition_variable end_;
  bool ended_ = false;
  std::thread timer_;  // draws a stage that takes long
};

// "0:07", "12:30", "2:05:09".
std::string ClockText(double seconds);

// The bar's line for a terminal `width` columns wide, never wider: title, count, bar, figures ("a 1  b 2"),
// stage, time left.
std::string ProgressLine(std::string_view title, int64_t done, int64_t total, std::string figures,
                         std::string_view stage, double seconds_left, size_t width);

}  // namespace augur
