#include "ops/parallel/fake_group.h"

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "base/process_group.h"

namespace augur {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class DoneWork : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// Unlike torch's fake backend it fills what it returns: an update from memory that nobody wrote would be
// skipped as not finite.
class OwnDataBackend : public c10d::Backend {
 public:
  explicit OwnDataBackend(int size) : Backend(0, size) {}
  const std::string getBackendName() const override { return "fake"; }

  WorkPointer allreduce(std::vector<at::Tensor>& /*tensors*/, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<DoneWork>();
  }
  WorkPointer _allgather_base(at::Tensor& all, at::Tensor& mine, const c10d::AllgatherOptions&) override {
    for (at::Tensor& part : all.chunk(getSize())) part.copy_(mine);
    return c10::make_intrusive<DoneWork>();
  }
  WorkPointer reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& mine, std::vector<at::Tensor>& all,
                                              const c10d::ReduceScatterOptions&) override {
    for (size_t i = 0; i < mine.size(); ++i) mine[i].copy_(all[i].narrow(0, 0, mine[i].size(0)));
    return c10::make_intrusive<DoneWork>();
  }
};

}  // namespace

void UseFakeGroup(int size) {
  const std::string name = "augur-fake";
  static c10::intrusive_ptr<c10d::ProcessGroup> group;  // torch's registry does not keep it alive
  group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, size);
  const auto backend = c10::make_intrusive<OwnDataBackend>(size);
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(name);
  c10d::register_process_group(name, group);
  SetProcessGroup({name, 0, size, /*gpu=*/true, 1});
}

}  // namespace augur
