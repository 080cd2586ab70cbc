#include "ops/parallel/heartbeat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "base/tell.h"

namespace augur {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr auto kBeat = std::chrono::milliseconds(1000);
constexpr auto kPatience = std::chrono::milliseconds(4000);  // several beats, on a machine that is busy
constexpr const char* kVerdict = "augur/silent";

std::atomic<int64_t> calls{0};

std::string BeatKey(int rank) { return fmt::format("augur/beat/{}", rank); }
std::string CallsKey(int rank) { return fmt::format("augur/calls/{}", rank); }

using KeyOf = std::string (*)(int rank);
std::vector<int64_t> Counts(const StorePointer& store, int size, KeyOf key) {
  std::vector<int64_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back(store->add(key(r), 0));
  return counts;
}

std::string FindSilent(const StorePointer& store, int size) {
  const std::vector<int64_t> before = Counts(store, size, BeatKey);
  std::this_thread::sleep_for(kPatience);
  const std::vector<int64_t> after = Counts(store, size, BeatKey), called = Counts(store, size, CallsKey);
  const int64_t most = std::ranges::max(called);
  std::vector<int> silent, behind;
  for (size_t r = 0; r < after.size(); ++r) {
    if (after[r] == before[r]) silent.push_back(static_cast<int>(r));
    if (called[r] < most) behind.push_back(static_cast<int>(r));
  }
  if (silent.empty()) silent = behind;  // alive, but at work on something else
  if (silent.empty()) return "another rank";
  return fmt::format("rank{} {}", silent.size() > 1 ? "s" : "", fmt::join(silent, ", "));
}

std::terminate_handler end_of_process = nullptr;

// NCCL's watchdog sees a broken connection, or a wait that took too long, and ends the process from its own
// thread: the rank that is gone is named before.
[[noreturn]] void TellWhyNcclEnds() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::exception& fault) {
    if (std::string_view(fault.what()).find("NCCL") != std::string_view::npos) {
      Tell("augur: rank {}: process group: {} ended or did not answer in time; {}\n", ThisProcessGroup().rank,
           SilentRanks(), kLostRankRemedy);
    }
  } catch (...) {
  }
  end_of_process();
  std::abort();
}

}  // namespace

void StartHeartbeat(const ProcessGroup& group) {
  static bool started = false;
  if (std::exchange(started, true)) return;
  const StorePointer store = c10d::resolve_process_group(group.name)->getStore();
  if (!store) return;
  if (group.gpu) end_of_process = std::set_terminate(TellWhyNcclEnds);
  std::thread([store, rank = group.rank] {
    try {
      for (int64_t told = 0; true;) {
        store->add(BeatKey(rank), 1);
        const int64_t now = calls;
        store->add(CallsKey(rank), now - std::exchange(told, now));
        std::this_thread::sleep_for(kBeat);
      }
    } catch (const std::exception&) {  // the store has gone, and with it whoever would ask
    }
  }).detach();
}

void CountCall() { ++calls; }

std::string SilentRanks() {
  const ProcessGroup& group = ThisProcessGroup();
  try {
    const StorePointer store = c10d::resolve_process_group(group.name)->getStore();
    if (!store) return "another rank";
    // Those that ask later find others gone that were there: what the first found out stands.
    if (!store->check({kVerdict})) {
      const std::string silent = FindSilent(store, group.size);
      if (!store->check({kVerdict})) store->set(kVerdict, silent);
    }
    const std::vector<uint8_t> verdict = store->get(kVerdict);
    return {verdict.begin(), verdict.end()};
  } catch (const std::exception&) {  // nobody answers who has the store: torchrun, or else the first rank
    const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    return agent != nullptr && std::string_view(agent) == "True" ? "another rank" : "rank 0";
  }
}

}  // namespace augur
