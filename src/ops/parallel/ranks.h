// The processes that torchrun or srun started together, and what they say to each other over torch's process
// group: Gloo and NCCL alike. Every rank must make the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/process_group.h"

namespace augur {

// Another rank failed and says why; this one ends in silence.
class FailedElsewhere : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

// Another rank ended or no longer answers.
class LostRank : public Error {
 public:
  using Error::Error;
};

class Ranks {
 public:
  // All of them; this process alone where there is no group.
  static Ranks World() { return Ranks(ThisProcessGroup()); }
  explicit Ranks(ProcessGroup group) : group_(std::move(group)) {}

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  bool alone() const { return size() == 1; }
  bool first() const { return rank() == 0; }

  // The element-wise sum over all ranks, the same on each of them.
  at::Tensor Sum(const at::Tensor& tensor) const;
  void Sum(double* values, size_t count) const;
  double Max(double value) const;

  // mine [n] of every rank, one after the other: [size * n].
  at::Tensor Gather(const at::Tensor& mine) const;

  // Collectives in two parts, between which the data travels: on NCCL's own stream, or in Gloo's threads.
  // `sent` stays where it is until Finish, which returns the result on `device`.
  struct Started {
    at::Tensor sent, result;
  };
  Started StartGather(const at::Tensor& mine) const;
  // The sum of all ranks' tensors [size * n], of which each rank gets its own part [n].
  Started StartScatterSum(const at::Tensor& all) const;
  at::Tensor Finish(const Started& started, at::Device device) const;

  // Every rank's bytes, in the order of the ranks.
  std::vector<std::string> GatherBytes(const std::string& mine) const;
  // The first rank's.
  std::string FromFirst(const std::string& mine) const;

  // Runs `work`, in which no rank may wait for another, and waits for all. Where it throws on some ranks, the
  // first of those throws the same and all others FailedElsewhere.
  void Together(const std::function<void()>& work) const;
  // The same with `work` on the first rank alone.
  void OnFirst(const std::function<void()>& work) const;

  // 0, 1, 2, ...: the next number of a counter that all ranks share, each number given to one of them. Ranks
  // need not call it together.
  int64_t TakeNumber(const std::string& counter) const;

  // How long a rank waits for the others before it gives up.
  void SetTimeout(double seconds) const;

 private:
  // As the group takes it.
  at::Tensor Outgoing(const at::Tensor& tensor) const;
  at::Tensor Reduce(const at::Tensor& tensor, const char* operation) const;
  // Calls torch; a fault of it means that a rank is lost.
  at::Tensor Call(const std::function<at::Tensor()>& function) const;

  ProcessGroup group_;
};

}  // namespace augur
