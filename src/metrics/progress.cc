#include "metrics/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace augur {
namespace {

constexpr double kRedrawInterval = 0.1;

size_t TerminalWidth() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string ClockText(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(std::clamp(seconds, 0.0, 3.6e8)));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string ProgressLine(std::string_view title, int64_t done, int64_t total, std::string_view figures,
                         double seconds_left, size_t width) {
  constexpr size_t kLongestBar = 30, kShortestBar = 5;
  const std::string left = fmt::format("{} {}/{} ", title, done, total);
  std::string right = figures.empty() ? std::string() : fmt::format("  {}", figures);
  if (seconds_left >= 0) right += fmt::format("  {} left", ClockText(seconds_left));
  const size_t taken = left.size() + right.size();
  if (taken + kShortestBar > width) return (left + right).substr(0, width);
  const size_t bar = std::min(kLongestBar, width - taken);
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
      options_(options),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_draw_(start_) {}

Progress::~Progress() {
  if (!drawn_ || !terminal_) return;
  fmt::print(stderr, "\r\x1b[K{}\n", last_line_);
}

void Progress::Update(int64_t done, std::string_view figures) {
  if (!options_.shown) return;
  const double since = Seconds(Clock::now() - last_draw_);
  const bool due = since >= (terminal_ ? kRedrawInterval : options_.plain_interval);
  // The end is shown, but work that ended before its first plain line was due needs none.
  const bool end = done == total_ && (terminal_ || drawn_);
  if (due || end || (terminal_ && !drawn_)) Draw(done, figures);
}

void Progress::Draw(int64_t done, std::string_view figures) {
  last_draw_ = Clock::now();
  const int64_t made = done - options_.begin;
  const double spent = Seconds(last_draw_ - start_);
  const double left = made > 0 ? spent / static_cast<double>(made) * static_cast<double>(total_ - done) : -1;
  if (terminal_) {
    last_line_ = ProgressLine(title_, done, total_, figures, left, TerminalWidth());
    fmt::print(stderr, "\r\x1b[K{}", last_line_);
  } else {
    fmt::print(stderr, "{}: {} {}/{}{}{}{}\n", title_, unit_, done, total_, figures.empty() ? "" : "  ",
               figures, left > 0 ? fmt::format("  {} left", ClockText(left)) : "");
  }
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::Note(std::string_view line) {
  if (!options_.shown) return;
  const bool bar = drawn_ && terminal_;
  fmt::print(stderr, "{}{}\n{}", bar ? "\r\x1b[K" : "", line, bar ? last_line_ : "");
  std::fflush(stderr);
}

}  // namespace augur
