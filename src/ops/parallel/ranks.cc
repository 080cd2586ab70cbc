#include "ops/parallel/ranks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "ops/parallel/heartbeat.h"
#include "ops/parallel/together.h"

namespace augur {
namespace {

std::exception_ptr failed_together;  // what Together threw last

template <typename Signature>
auto Operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

at::Tensor Wait(const at::Tensor& pending) {
  static const auto wait = Operator<at::Tensor(const at::Tensor&)>("_c10d_functional::wait_tensor");
  return wait.call(pending);
}

}  // namespace

bool FailedTogether() {
  const std::exception_ptr current = std::current_exception();
  if (current == failed_together) return true;
  try {
    std::rethrow_exception(current);
  } catch (const FailedElsewhere&) {
    return true;
  } catch (...) {
    return false;
  }
}

at::Tensor Ranks::Outgoing(const at::Tensor& tensor) const {
  return (group_.gpu ? tensor : tensor.cpu()).contiguous();
}

at::Tensor Ranks::Call(const std::function<at::Tensor()>& function) const {
  try {
    CountCall();
    return function();
  } catch (const std::exception& fault) {  // of torch, or of Gloo
    const auto* torch_fault = dynamic_cast<const c10::Error*>(&fault);
    const std::string why = torch_fault != nullptr ? torch_fault->what_without_backtrace() : fault.what();
    throw LostRank("process group",
                   fmt::format("{} ended or did not answer in time ({})", SilentRanks(), why),
                   kLostRankRemedy);
  }
}

at::Tensor Ranks::Reduce(const at::Tensor& tensor, const char* operation) const {
  static const auto reduce =
      Operator<at::Tensor(const at::Tensor&, std::string, std::string)>("_c10d_functional::all_reduce");
  return Call([&] { return Wait(reduce.call(tensor, operation, group_.name)); });
}

at::Tensor Ranks::Sum(const at::Tensor& tensor) const {
  if (alone()) return tensor;
  return Reduce(Outgoing(tensor), "sum").to(tensor.device());
}

void Ranks::Sum(double* values, size_t count) const {
  if (alone()) return;
  const at::Tensor sums = Reduce(at::from_blob(values, {static_cast<int64_t>(count)}, at::kDouble), "sum");
  std::copy_n(sums.const_data_ptr<double>(), count, values);
}

double Ranks::Max(double value) const {
  if (alone()) return value;
  return Reduce(at::full({1}, value, at::kDouble), "max").item<double>();
}

at::Tensor Ranks::Gather(const at::Tensor& mine) const {
  return alone() ? mine : Finish(StartGather(mine), mine.device());
}

Ranks::Started Ranks::StartGather(const at::Tensor& mine) const {
  // Into a tensor that is given, which torch calls ALLGATHER. What it calls ALLGATHER_COALESCED is too long a
  // name: each of Gloo's two threads writes the last one into a string that both share and no lock guards, so
  // that two gathers which end together free the longer text twice.
  static const auto gather = Operator<at::Tensor&(at::Tensor&, int64_t, const std::string&, at::Tensor&)>(
      "_c10d_functional::all_gather_into_tensor_out");
  at::Tensor sent = Outgoing(mine);
  std::vector<int64_t> sizes = sent.sizes().vec();
  sizes[0] *= size();
  at::Tensor all = at::empty(sizes, sent.options());
  Call([&] { return gather.call(sent, size(), group_.name, all); });  // torch may return `sent`
  return {sent, all};
}

Ranks::Started Ranks::StartScatterSum(const at::Tensor& all) const {
  static const auto scatter = Operator<at::Tensor(const at::Tensor&, std::string, int64_t, std::string)>(
      "_c10d_functional::reduce_scatter_tensor");
  const at::Tensor sent = Outgoing(all);
  return {sent, Call([&] { return scatter.call(sent, "sum", size(), group_.name); })};
}

at::Tensor Ranks::Finish(const Started& started, at::Device device) const {
  return Call([&] { return Wait(started.result); }).to(device);
}

std::vector<std::string> Ranks::GatherBytes(const std::string& mine) const {
  if (alone()) return {mine};
  const at::Tensor sizes = Gather(at::full({1}, static_cast<int64_t>(mine.size()), at::kLong));
  const auto* length = sizes.const_data_ptr<int64_t>();
  const int64_t most = std::max<int64_t>(1, *std::max_element(length, length + size()));
  const at::Tensor padded = at::zeros({most}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = Gather(padded);
  std::vector<std::string> found;
  for (int r = 0; r < size(); ++r) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + r * most;
    found.emplace_back(begin, begin + length[r]);
  }
  return found;
}

std::string Ranks::FromFirst(const std::string& mine) const {
  return GatherBytes(first() ? mine : std::string()).front();
}

void Ranks::Together(const std::function<void()>& work) const {
  if (alone()) return work();
  std::exception_ptr fault;
  try {
    work();
  } catch (...) {
    fault = std::current_exception();
  }
  // The first that failed has the largest number.
  const double mine = fault ? size() - rank() : 0, worst = Max(mine);
  if (worst == 0) return;
  if (fault && mine == worst) {
    failed_together = fault;
    std::rethrow_exception(fault);
  }
  throw FailedElsewhere();
}

void Ranks::OnFirst(const std::function<void()>& work) const {
  Together([&] {
    if (first()) work();
  });
}

int64_t Ranks::TakeNumber(const std::string& counter) const {
  return c10d::resolve_process_group(group_.name)->getStore()->add(counter, 1) - 1;
}

void Ranks::SetTimeout(double seconds) const {
  if (alone()) return;
  c10d::resolve_process_group(group_.name)
      ->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

}  // namespace augur
