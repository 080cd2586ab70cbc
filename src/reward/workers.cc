#include "reward/workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop_signals.h"
#include "base/tell.h"

namespace augur {
namespace {

constexpr double kLoadSeconds = 120;     // a module may import a great deal
constexpr int kMostFailedStarts = 3;     // in a row, of one worker
constexpr int kTimeoutsOfWorker = 3;     // with no answer between them, after which the function hangs;
constexpr int kFewestTimeouts = 8;       // of all workers together at least
constexpr double kQueuedSeconds = 0.02;  // work that may wait in a worker while another is idle
constexpr size_t kMostQueued = 64;       // responses sent to a worker and not answered
constexpr uint32_t kLongestAnswer = 1 << 26;

std::string Frame(const std::string& body) {
  const auto size = static_cast<uint32_t>(body.size());
  std::string frame(sizeof size, '\0');
  std::memcpy(frame.data(), &size, sizeof size);
  return frame + body;
}

// The next answer of `bytes`, taken from it, or nothing while it is incomplete.
std::optional<Json> TakeAnswer(std::string* bytes) {
  uint32_t size = 0;
  if (bytes->size() < sizeof size) return std::nullopt;
  std::memcpy(&size, bytes->data(), sizeof size);
  if (size > kLongestAnswer) throw std::runtime_error("an answer of absurd length");
  if (bytes->size() < sizeof size + size) return std::nullopt;
  Json answer = Json::parse(std::string_view(*bytes).substr(sizeof size, size));
  bytes->erase(0, sizeof size + size);
  return answer;
}

}  // namespace

// One thread owns the processes and their sockets; callers hand it tasks.
class RewardWorkers::Pool {
 public:
  explicit Pool(RewardWorkerOptions options)
      : options_(std::move(options)),
        workers_(static_cast<size_t>(options_.workers)),
        wake_(::eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this] { Work(); });
    std::future<void> loaded = loaded_.get_future();
    try {
      while (loaded.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) CheckStop();
      loaded.get();
    } catch (...) {
      stop_ = true;
      Wake();
      thread_.join();
      ::close(wake_);
      CheckStop();  // a signal to the whole group may have ended a process before it had a session of its own
      throw;
    }
  }

  ~Pool() {
    stop_ = true;
    Wake();
    thread_.join();
    ::close(wake_);
  }

  std::vector<std::future<RewardOutcome>> Add(const std::vector<Json>& responses) {
    Task task;
    std::vector<std::future<RewardOutcome>> outcomes;
    for (const Json& response : responses) {
      task.bodies.push_back(response.dump(-1, ' ', false, Json::error_handler_t::replace));
      outcomes.push_back(task.results.emplace_back().get_future());
    }
    {
      const std::lock_guard lock(mutex_);
      added_.push_back(std::move(task));
    }
    Wake();
    return outcomes;
  }

  bool takes_groups() const { return takes_groups_; }
  int64_t restarts() const { return restarts_; }

 private:
  // A group whose call failed, while its responses are scored one by one to find those to blame.
  struct FailedGroup {
    size_t size = 0;
    std::string error;
    bool hung = false;  // as a group; alone none has so far
    bool ended_process = false;
    std::vector<std::pair<std::promise<RewardOutcome>, RewardOutcome>> scored = {};
  };

  struct Task {
    std::vector<std::string> bodies;  // one, or a group's
    std::vector<std::promise<RewardOutcome>> results = {};
    std::shared_ptr<FailedGroup> group = nullptr;  // that this response was split from

    size_t size() const { return bodies.size(); }
    std::string Request() const {
      return Frame(size() == 1 ? bodies[0] : fmt::format("{{\"group\":[{}]}}", fmt::join(bodies, ",")));
    }
  };

  enum class WorkerState { kLoading, kReady, kGone };

  struct Worker {
    WorkerState state = WorkerState::kGone;
    ChildProcess child;
    std::deque<Task> sent;    // the first of them is being scored
    std::string in, out;      // what has come of answers, what has yet to go of requests
    Clock::time_point since;  // when the first of `sent` began, or loading did
    int failed_starts = 0;
  };

  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  }

  void Work() {
    try {
      for (Worker& worker : workers_) Start(&worker);
      while (!stop_) {
        TakeAdded();
        Assign();
        Poll();
        ExpireTimes();
      }
    } catch (...) {
      if (!all_loaded_) loaded_.set_exception(std::current_exception());
    }
    for (Worker& worker : workers_) Retire(&worker);
    while (!stop_ && all_loaded_) {  // what starts processes is gone: nothing can be scored any more
      TakeAdded();
      Assign();
      Poll();
    }
    TakeAdded();
    FailQueue(NoWorker());
  }

  void Retire(Worker* worker) {
    for (Task& task : worker->sent) queue_.push_back(std::move(task));
    worker->sent.clear();
    if (std::exchange(worker->state, WorkerState::kGone) == WorkerState::kGone) return;
    try {
      options_.end(worker->child);
    } catch (const Error&) {
    }
  }

  void TakeAdded() {
    const std::lock_guard lock(mutex_);
    std::ranges::move(added_, std::back_inserter(queue_));
    added_.clear();
  }

  void Start(Worker* worker) {
    worker->child = options_.start();
    ::fcntl(worker->child.fd, F_SETFL, ::fcntl(worker->child.fd, F_GETFL) | O_NONBLOCK);
    worker->state = WorkerState::kLoading;
    worker->since = Clock::now();
    worker->in.clear();
    worker->out.clear();
  }

  // As much to each worker as it finishes in a moment, so that none is idle while another has a queue.
  void Assign() {
    const double quick = kQueuedSeconds / std::max(mean_seconds_, 1e-6);
    const auto most = static_cast<size_t>(std::clamp(quick, 1.0, static_cast<double>(kMostQueued)));
    for (size_t depth = 1; depth <= most && !queue_.empty(); ++depth) {
      for (Worker& worker : workers_) {
        if (queue_.empty()) break;
        if (worker.state != WorkerState::kReady || worker.sent.size() >= depth) continue;
        if (worker.sent.empty()) worker.since = Clock::now();
        worker.out += queue_.front().Request();
        worker.sent.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    const bool none_left =
        std::ranges::all_of(workers_, [](const Worker& w) { return w.state == WorkerState::kGone; });
    if (none_left) FailQueue(NoWorker());
  }

  std::string NoWorker() const { return fmt::format("{}: no worker could be started", options_.name); }

  void FailQueue(const std::string& error) {
    for (Task& task : queue_) {
      std::vector<RewardOutcome> outcomes(task.size(), {.failed = true, .error = error});
      outcomes[0].told = std::exchange(told_, "");
      Deliver(&task, std::move(outcomes));
    }
    queue_.clear();
  }

  void Poll() {
    std::vector<pollfd> fds = {{.fd = wake_, .events = POLLIN, .revents = 0}};
    for (const Worker& worker : workers_) {
      const short events = worker.out.empty() ? POLLIN : POLLIN | POLLOUT;
      fds.push_back(
          {.fd = worker.state == WorkerState::kGone ? -1 : worker.child.fd, .events = events, .revents = 0});
    }
    if (::poll(fds.data(), fds.size(), MillisecondsToDeadline()) <= 0) return;
    if ((fds[0].revents & POLLIN) != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      const short events = fds[i + 1].revents;
      if ((events & POLLOUT) != 0) Send(&workers_[i]);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) Receive(&workers_[i]);
    }
  }

  static void Send(Worker* worker) {
    const ssize_t sent = ::send(worker->child.fd, worker->out.data(), worker->out.size(), MSG_NOSIGNAL);
    if (sent > 0) worker->out.erase(0, static_cast<size_t>(sent));
  }

  void Receive(Worker* worker) {
    char buffer[65536];
    const ssize_t got = ::recv(worker->child.fd, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Replace(worker, "its process ended with ");
    worker->in.append(buffer, static_cast<size_t>(got));
    try {
      while (const std::optional<Json> answer = TakeAnswer(&worker->in)) {
        if (worker->state == WorkerState::kLoading) {
          Loaded(worker, *answer);
        } else {
          Finish(worker, *answer);
        }
      }
    } catch (const Error&) {
      throw;  // it cannot be loaded at all
    } catch (const std::exception&) {
      Replace(worker, "its answer cannot be read; ended with ");
    }
  }

  void Loaded(Worker* worker, const Json& answer) {
    if (!answer.contains("ready")) {
      if (all_loaded_) return Replace(worker, "it could not be loaded again; ended with ");
      if (answer.contains("traceback")) {
        TellAndKeep(fmt::format("augur: {}: {} cannot be loaded:\n{}", options_.key, options_.name,
                                answer["traceback"].get<std::string>()));
      }
      throw Error(
          options_.key,
          fmt::format("{} {}", options_.name,
                      answer.contains("unusable")
                          ? answer["unusable"].get<std::string>()
                          : fmt::format("cannot be loaded: {}", answer.at("error").get<std::string>())),
          "correct it");
    }
    takes_groups_ = answer.value("groups", false);
    worker->state = WorkerState::kReady;
    worker->failed_starts = 0;
    const bool all =
        std::ranges::all_of(workers_, [](const Worker& w) { return w.state != WorkerState::kLoading; });
    if (all && !all_loaded_) {
      all_loaded_ = true;
      loaded_.set_value();
    }
  }

  void Finish(Worker* worker, const Json& answer) {
    if (worker->sent.empty()) throw std::runtime_error("an answer to nothing");
    timeouts_in_row_ = 0;
    mean_seconds_ = 0.9 * mean_seconds_ + 0.1 * SecondsSince(worker->since);
    Task& task = worker->sent.front();
    if (task.size() == 1) {
      Deliver(&task, {Outcome(answer)});
    } else if (answer.contains("error")) {
      Show(fmt::format("raised an exception on a group of {} responses, which are scored one by one",
                       task.size()),
           answer.at("traceback").get<std::string>());
      Split(std::move(task), {.error = Raised(answer)});
    } else {
      std::vector<RewardOutcome> outcomes;
      for (const Json& one : answer.at("group")) outcomes.push_back(Outcome(one));
      if (outcomes.size() != task.size()) throw std::runtime_error("too few answers");
      Deliver(&task, std::move(outcomes));
    }
    worker->sent.pop_front();
    worker->since = Clock::now();
  }

  std::string Raised(const Json& answer) const {
    return fmt::format("{} raised {}", options_.name, answer.at("error").get<std::string>());
  }

  RewardOutcome Outcome(const Json& answer) {
    RewardOutcome outcome{.failed = answer.contains("error")};
    if (outcome.failed) {
      outcome.error = Raised(answer);
      Show("raised an exception", answer.at("traceback").get<std::string>());
      outcome.told = std::exchange(told_, "");
      return outcome;
    }
    if (answer.at("score").is_null()) {
      TellOfNone();
      outcome.score = std::nan("");
      outcome.told = std::exchange(told_, "");
      return outcome;
    }
    outcome.told = std::exchange(told_, "");
    outcome.score = answer.at("score").get<double>();
    for (const auto& [name, value] : answer.at("figures").items())
      outcome.figures[name] = value.get<double>();
    if (answer.at("answer").is_string()) outcome.answer = answer["answer"].get<std::string>();
    return outcome;
  }

  // Puts the responses of a group before all others, one by one.
  void Split(Task task, FailedGroup group) {
    group.size = task.size();
    const auto shared = std::make_shared<FailedGroup>(std::move(group));
    for (size_t i = task.size(); i-- > 0;) {
      Task& one = queue_.emplace_front(Task{{std::move(task.bodies[i])}, {}, shared});
      one.results.push_back(std::move(task.results[i]));
    }
  }

  void Deliver(Task* task, std::vector<RewardOutcome> outcomes) {
    if (task->group) return DeliverSplit(task, std::move(outcomes[0]));
    for (size_t i = 0; i < task->size(); ++i) task->results[i].set_value(std::move(outcomes[i]));
  }

  // A call that fails for a group and for none of its responses has failed for all of them: what the function
  // gives each alone may mean something else. The first that took too long was only slow.
  void DeliverSplit(Task* task, RewardOutcome outcome) {
    FailedGroup& group = *task->group;
    group.scored.emplace_back(std::move(task->results[0]), std::move(outcome));
    if (group.scored.size() < group.size) return;
    if (group.hung && !slow_groups_) TellOfSlowGroups(group.size);
    slow_groups_ |= group.hung;
    const bool blamed = std::ranges::any_of(group.scored, [](const auto& one) { return one.second.failed; });
    if (!blamed && !group.hung) {
      Show("did not come back", group.error + "\n");
      if (group.ended_process) ++restarts_;
      for (auto& [_, scored] : group.scored) {
        scored = {.failed = true, .error = group.error, .told = scored.told + std::exchange(told_, "")};
      }
    }
    for (auto& [result, scored] : group.scored) result.set_value(std::move(scored));
  }

  double Limit(const Worker& worker) const {
    if (worker.state == WorkerState::kLoading) return kLoadSeconds;
    // A group has the time of one response, so that one that hangs holds the others up no longer; more where
    // groups turned out to be slow and not to hang.
    const size_t share = slow_groups_ && !worker.sent.empty() ? worker.sent.front().size() : 1;
    return options_.timeout_s * static_cast<double>(share);
  }

  static bool Waits(const Worker& worker) {
    return worker.state == WorkerState::kLoading ||
           (worker.state == WorkerState::kReady && !worker.sent.empty());
  }

  int MillisecondsToDeadline() const {
    double least = 3600;
    for (const Worker& worker : workers_) {
      if (Waits(worker)) least = std::min(least, Limit(worker) - SecondsSince(worker.since));
    }
    return static_cast<int>(std::max(0.0, least) * 1000) + 1;
  }

  void ExpireTimes() {
    for (Worker& worker : workers_) {
      if (!Waits(worker) || SecondsSince(worker.since) < Limit(worker)) continue;
      const bool loading = worker.state == WorkerState::kLoading;
      Replace(&worker,
              loading
                  ? fmt::format("loading it took longer than {} s; ended with ", kLoadSeconds)
                  : fmt::format("took longer than reward.timeout_s ({} s); ended with ", options_.timeout_s),
              /*hung=*/true);
      if (!loading && ++timeouts_in_row_ >= MostTimeoutsInRow()) FailHung();
    }
  }

  int64_t MostTimeoutsInRow() const {
    return std::max<int64_t>(kFewestTimeouts, kTimeoutsOfWorker * static_cast<int64_t>(workers_.size()));
  }

  // The function answers nothing: what waits would take its time one by one. From here on a single call that
  // takes too long fails what waits then, until one is answered.
  void FailHung() {
    const std::string reason = fmt::format(
        "{} calls in a row took longer than reward.timeout_s ({} s), in {} worker{}, and none was answered",
        timeouts_in_row_, options_.timeout_s, workers_.size(), workers_.size() == 1 ? "" : "s");
    if (!std::exchange(told_of_hanging_, true)) {
      TellAndKeep(
          fmt::format("augur: {}: {}: {}; responses that wait are errors without a call until one is\n",
                      options_.key, options_.name, reason));
    }
    FailQueue(fmt::format("{}: not called: {}", options_.name, reason));
  }

  // Ends a worker; the response it was at has failed, those behind it go to others, and another takes its
  // place.
  void Replace(Worker* worker, const std::string& reason, bool hung = false) {
    const std::string how = reason + options_.end(worker->child);
    const bool was_loading = worker->state == WorkerState::kLoading;
    worker->state = WorkerState::kGone;
    if (!all_loaded_)
      throw Error(options_.key, fmt::format("{} cannot be loaded: {}", options_.name, how), "correct it");
    const bool give_up = was_loading && ++worker->failed_starts >= kMostFailedStarts;
    const bool costs_response = worker->sent.empty() || worker->sent.front().size() == 1;
    if (!give_up && costs_response) ++restarts_;  // before the response's result is seen
    if (!was_loading) FailFirst(worker, how, hung);
    if (give_up) return;
    try {
      Start(worker);
    } catch (const Error& error) {
      Show("cannot be started again", error.what() + std::string("\n"));
    }
  }

  void FailFirst(Worker* worker, const std::string& how, bool hung) {
    std::deque<Task> sent = std::exchange(worker->sent, {});
    for (; sent.size() > 1; sent.pop_back()) queue_.push_front(std::move(sent.back()));
    const std::string error = fmt::format("{}: {}", options_.name, how);
    if (!sent.empty() && sent.front().size() > 1) {
      // Once groups have their time, one that takes longer hangs.
      return Split(std::move(sent.front()),
                   {.error = error, .hung = hung && !slow_groups_, .ended_process = true});
    }
    Show("did not come back", how + "\n");
    if (sent.empty()) return;
    Task& one = sent.front();
    if (one.group && hung) one.group->hung = false;
    Deliver(&one, {{.failed = true, .error = error, .told = std::exchange(told_, "")}});
  }

  // For the outcome that follows, too: of several ranks the first alone is heard.
  void TellAndKeep(const std::string& text) {
    Tell("{}", text);
    told_ += text;
  }

  // The first fault, whole; those that follow are counted.
  void Show(std::string_view what, const std::string& details) {
    if (std::exchange(shown_, true)) return;
    TellAndKeep(
        fmt::format("augur: {}: {} {}; this first time in full, from now on such responses are only "
                    "counted (reward/errors):\n{}",
                    options_.key, options_.name, what, details));
  }

  void TellOfSlowGroups(size_t size) {
    TellAndKeep(
        fmt::format("augur: {}: {} took longer than reward.timeout_s ({} s) for a group of {} responses, "
                    "which were scored "
                    "one by one; from now on a group has that time for each of its responses\n",
                    options_.key, options_.name, options_.timeout_s, size));
  }

  void TellOfNone() {
    if (std::exchange(told_of_none_, true)) return;
    TellAndKeep(fmt::format(
        "augur: {}: {} returned None: such a response is not scored, has no part in its group's mean "
        "and advantage 0, and counts as not right in evaluations (reward/unscored)\n",
        options_.key, options_.name));
  }

  const RewardWorkerOptions options_;
  std::vector<Worker> workers_;
  std::deque<Task> queue_;
  double mean_seconds_ = 1;      // that a response took lately
  int64_t timeouts_in_row_ = 0;  // of calls, since the last answer
  bool shown_ = false, told_of_none_ = false, told_of_hanging_ = false, all_loaded_ = false,
       slow_groups_ = false;
  std::string told_;  // since the last outcome
  std::atomic<bool> takes_groups_ = false;
  std::promise<void> loaded_;
  std::atomic<int64_t> restarts_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::deque<Task> added_;  // guarded by mutex_
  const int wake_;
  std::thread thread_;
};

RewardWorkers::RewardWorkers(RewardWorkerOptions options)
    : pool_(std::make_unique<Pool>(std::move(options))) {}
RewardWorkers::~RewardWorkers() = default;
bool RewardWorkers::takes_groups() const { return pool_->takes_groups(); }
std::vector<std::future<RewardOutcome>> RewardWorkers::Score(const std::vector<Json>& responses) {
  return pool_->Add(responses);
}
int64_t RewardWorkers::restarts() const { return pool_->restarts(); }

}  // namespace augur
