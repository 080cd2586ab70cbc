#include "metrics/progress.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <utility>

#include "base/tell.h"

namespace augur {
namespace {

constexpr double kRedrawInterval = 0.1;
constexpr double kLongUnit = 2;  // seconds after which a unit shows what it is at
constexpr auto kTimerInterval = std::chrono::milliseconds(250);

size_t TerminalWidth() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void ClearLine() { std::fputs("\r\x1b[K", stderr); }

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string StageText(const Stage& stage) {
  std::string text = fmt::format("{}: {}/{} {}", stage.name, stage.done, stage.total, stage.unit);
  if (stage.tokens >= 0) text += fmt::format(", {} tokens", stage.tokens);
  return text;
}

std::string ClockText(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(std::clamp(seconds, 0.0, 3.6e8)));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string ProgressLine(std::string_view title, int64_t done, int64_t total, std::string figures,
                         std::string_view stage, double seconds_left, size_t width) {
  constexpr size_t kLongestBar = 30, kShortestBar = 5;
  const std::string left = fmt::format("{} {}/{} ", title, done, total);
  std::string end = stage.empty() ? "" : fmt::format("  {}", stage);
  if (seconds_left >= 0) end += fmt::format("  {} left", ClockText(seconds_left));
  // Where they do not all fit, the last of the figures are left out.
  const auto taken = [&] { return left.size() + (figures.empty() ? 0 : 2 + figures.size()) + end.size(); };
  while (!stage.empty() && !figures.empty() && taken() > width) {
    const size_t last = figures.rfind("  ");
    figures.resize(last == std::string::npos ? 0 : last);
  }
  const std::string right = (figures.empty() ? "" : "  " + figures) + end;
  if (taken() + kShortestBar > width) return (left + right).substr(0, width);
  const size_t bar = std::min(kLongestBar, width - taken());
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(bar));
  std::string line = left;
  for (size_t i = 0; i < bar; ++i) line += i < full ? "█" : "░";
  return line + right;
}

Progress::Progress(std::string title, std::string unit, int64_t total, ProgressOptions options)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      done_(options.begin),
      shown_done_(done_),
      options_(options),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      unit_start_(start_),
      last_draw_(start_) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  if (timer_.joinable()) timer_.join();
  if (!drawn_ || !terminal_) return;
  ClearLine();
  Tell("{}\n", last_line_);
}

void Progress::Update(int64_t done, std::string_view figures) {
  const std::lock_guard lock(mutex_);
  done_ = shown_done_ = done;
  unit_start_ = Clock::now();
  figures_ = figures;
  last_stage_.clear();
  stage_.reset();
  if (!options_.shown) return;
  const double since = Seconds(unit_start_ - last_draw_);
  const double plain = drawn_ ? options_.plain_interval : std::min(kLongUnit, options_.plain_interval);
  const bool due = since >= (terminal_ ? kRedrawInterval : plain);
  // The end is shown, but work that ended before its first plain line was due needs none.
  const bool end = done == total_ && (terminal_ || drawn_);
  if (due || end || (terminal_ && !drawn_)) Draw();
}

void Progress::Within(const Stage& stage, std::optional<int64_t> shown_done) {
  if (!options_.shown) return;
  const std::lock_guard lock(mutex_);
  shown_done_ = shown_done.value_or(done_);
  if (!stage_ || stage_->name != stage.name) stage_start_ = Clock::now();
  stage_ = stage;
  DrawStageIfDue();
  if (!timer_.joinable()) StartTimer();
}

// Signals are for the thread that works.
void Progress::StartTimer() {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  timer_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!end_.wait_for(lock, kTimerInterval, [this] { return ended_; })) {
      if (stage_) DrawStageIfDue();
    }
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// A plain line when the unit becomes long, when it has come to another stage, and every plain_interval.
void Progress::DrawStageIfDue() {
  const auto now = Clock::now();
  if (Seconds(now - unit_start_) < kLongUnit) return;
  const double since = Seconds(now - last_draw_);
  const bool another = last_stage_ != stage_->name;
  const bool due = terminal_ ? since >= kRedrawInterval
                             : since >= options_.plain_interval ||
                                   (another && (last_stage_.empty() || since >= kLongUnit));
  if (!due) return;
  last_stage_ = stage_->name;
  Draw();
}

// Seconds within which less than a hundredth of the work says little about the rest.
constexpr double kEarly = 30;

// As long as the units before took on average, less what the present one has taken; a unit that takes longer
// ends with its stage.
double Progress::SecondsLeft() const {
  const int64_t made = done_ - options_.begin;
  // A batch's first responses to end are its shortest.
  const bool early = 100 * made < total_ - options_.begin && Seconds(last_draw_ - start_) < kEarly;
  if (made <= 0 || early) return -1;
  const double each = Seconds(unit_start_ - start_) / static_cast<double>(made);
  const double spent = std::min(Seconds(last_draw_ - unit_start_), each);
  const double units = each * static_cast<double>(total_ - done_) - (done_ < total_ ? spent : 0);
  const double further = each * static_cast<double>(std::max<int64_t>(total_ - done_ - 1, 0));
  return std::max(units, further + SecondsLeftOfStage());
}

double Progress::SecondsLeftOfStage() const {
  if (!stage_ || stage_->done <= 0) return 0;
  const double share = static_cast<double>(stage_->done) / static_cast<double>(stage_->total);
  return Seconds(last_draw_ - stage_start_) * (1 - share) / share;
}

void Progress::Draw() {
  last_draw_ = Clock::now();
  const double left = SecondsLeft();
  const std::string stage = stage_ ? StageText(*stage_) : "";
  if (terminal_) {
    last_line_ = ProgressLine(title_, shown_done_, total_, figures_, stage, left, TerminalWidth());
    ClearLine();
    Tell("{}", last_line_);
  } else {
    Tell("{}: {} {}/{}{}{}{}{}{}\n", title_, unit_, shown_done_, total_, figures_.empty() ? "" : "  ",
         figures_, stage.empty() ? "" : "  ", stage,
         left > 0 ? fmt::format("  {} left", ClockText(left)) : "");
  }
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::Note(std::string_view line) {
  if (!options_.shown) return;
  const std::lock_guard lock(mutex_);
  const bool bar = drawn_ && terminal_;
  if (bar) ClearLine();
  Tell("{}\n{}", line, bar ? last_line_ : "");
  std::fflush(stderr);
}

}  // namespace augur
