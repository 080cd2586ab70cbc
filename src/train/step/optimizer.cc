#include "train/step/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/adamw.h"
#include "kernels/add_at_random.h"
#include "model/adapter.h"
#include "ops/device.h"
#include "train/parallel/shard_groups.h"

namespace augur {
namespace {

ElementType TypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat;
}

constexpr int64_t kBucketElements = 1 << 24;

bool IsMaster(const at::Tensor& parameter) { return parameter.scalar_type() == at::kFloat; }

void AddRounded(const at::Tensor& sum, const at::Tensor& added, RandomSum arrays) {
  arrays.sum = sum.mutable_data_ptr();
  arrays.added = added.const_data_ptr();
  arrays.added_type = TypeOf(added);
  arrays.size = sum.numel();
  if (sum.is_cuda()) {
    AddAtRandomCuda(arrays, CurrentStream(sum));
  } else {
    AddAtRandomCpu(arrays);
  }
}

}  // namespace

// Called by the backward when a parameter's gradient is whole.
struct Optimizer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(Optimizer& optimizer, size_t index) : optimizer_(optimizer), index_(index) {}
  void operator()(const at::Tensor& /*parameter*/) override { optimizer_.Take(index_); }

  Optimizer& optimizer_;
  const size_t index_;
};

OptimizerOptions MakeOptimizerOptions(const OptimizerFields& fields, const ParallelSection& parallel) {
  return {.beta1 = fields.beta1,
          .beta2 = fields.beta2,
          .eps = fields.eps,
          .weight_decay = fields.weight_decay,
          .clip = fields.grad_clip,
          .bf16_states = fields.optimizer_dtype == StateDtype::kBf16,
          .gradients = fields.gradient_dtype,
          .shard = parallel.shard};
}

Optimizer::Optimizer(const Model& model, const OptimizerOptions& options)
    : model_(model),
      options_(options),
      ranks_(DividesState(options.shard) ? CurrentShardGroups().within : Ranks::World()),
      across_(DividesState(options.shard) ? CurrentShardGroups().across : Ranks(ProcessGroup{})),
      parameters_(TrainedParameters(model)),
      gradients_(parameters_.size()),
      places_(PlacesOf(parameters_)) {
  const at::NoGradGuard no_grad;
  if (DividesState(options.shard)) {
    ShardParameters();
    std::vector<int64_t> pieces;
    for (const Bucket& bucket : buckets_) {
      pieces.push_back(places_[bucket.first] + ranks_.rank() * bucket.piece);
    }
    places_ = std::move(pieces);
  } else {
    for (const at::Tensor& parameter : parameters_) weights_.push_back(parameter.detach());
  }
  for (const at::Tensor& weight : weights_) {
    master_.push_back(IsMaster(weight) ? weight : weight.to(at::kFloat));
    const auto states = weight.options().dtype(options.bf16_states ? at::kBFloat16 : at::kFloat);
    first_.push_back(at::zeros_like(weight, states));
    second_.push_back(at::zeros_like(weight, states));
  }
  SetRequiresGrad(model, true);
  additions_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::make_unique<Hook>(*this, i));
  }
  reduced_.resize(buckets_.size());
  missing_.resize(buckets_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) bucket_of_.insert(bucket_of_.end(), buckets_[b].count(), b);
  BeginPass();
}

Optimizer::~Optimizer() {
  for (const at::Tensor& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void Optimizer::Take(size_t i) {
  const at::NoGradGuard no_grad;
  at::Tensor& grad = parameters_[i].mutable_grad();
  if (!grad.defined()) return;
  Add(grad, i);
  grad.reset();
  if (!ScattersEarly()) return;
  --missing_[bucket_of_[i]];
  ScatterReady();
}

void Optimizer::Add(const at::Tensor& grad, size_t i) {
  at::Tensor& sum = gradients_[i];
  if (options_.gradients == GradientDtype::kBf16 && !sharded()) {
    if (!sum.defined() && grad.scalar_type() == at::kBFloat16) {
      sum = grad.contiguous();
    } else {
      if (!sum.defined())
        sum = at::zeros_like(grad, grad.options().dtype(at::kBFloat16), at::MemoryFormat::Contiguous);
      AddRounded(sum, grad.contiguous(),
                 {.key = i | static_cast<uint64_t>(Ranks::World().rank()) << 24 | ++additions_[i] << 40,
                  .step = static_cast<uint64_t>(updates_)});
    }
  } else if (!sum.defined()) {
    sum = grad.contiguous();
  } else {
    if (sum.scalar_type() != SumType()) sum = sum.to(SumType());
    sum.add_(grad);
  }
}

void Optimizer::ScatterReady() {
  while (unscattered_ > 0 && missing_[unscattered_ - 1] == 0) ScatterBucket(--unscattered_);
}

void Optimizer::BeginPass() {
  if (!ScattersEarly()) return;
  unscattered_ = buckets_.size();
  for (size_t b = 0; b < buckets_.size(); ++b) missing_[b] = buckets_[b].count();
}

// Whatever this backward has not reached has a gradient of zero. Of sharded layers the store has taken the
// gradients; the rest follows in the same order on every rank.
void Optimizer::EndPass() {
  if (ScattersEarly()) {
    std::ranges::fill(missing_, 0);
    ScatterReady();
    BeginPass();
  } else {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (!shards_->IsLayer(b)) ScatterBucket(b);
    }
  }
}

void Optimizer::Scatter(size_t b, const at::Tensor& flat) {
  scatters_.emplace_back(b, ranks_.StartScatterSum(flat));
  FinishScatters(1);
}

void Optimizer::FinishScatters(size_t most_left) {
  while (scatters_.size() > most_left) {
    const auto [b, started] = std::move(scatters_.front());
    scatters_.pop_front();
    const at::Tensor mine = ranks_.Finish(started, weights_[b].device());
    reduced_[b] = reduced_[b].defined() ? reduced_[b].add_(mine) : mine;
  }
}

// The parameters of a bucket become views of one buffer, which new weights are gathered into.
void Optimizer::ShardParameters() {
  if (ShardsLayers()) {
    shards_ = std::make_unique<LayerShards>(model_, ranks_);
    shards_->gradients = [this](size_t b, const std::vector<at::Tensor>& gradients) {
      Scatter(b, FlatGradient(buckets_[b], gradients));
    };
    buckets_ = shards_->buckets();
    flat_ = shards_->flat();
    weights_ = shards_->pieces();
    return;
  }
  buckets_ = MakeBuckets(parameters_, ranks_.size(), kBucketElements);
  for (const Bucket& bucket : buckets_) {
    flat_.push_back(MoveIntoBucket(bucket, ranks_.size(), &parameters_));
    weights_.push_back(PieceOf(bucket, flat_.back(), ranks_.rank()));
  }
}

void Optimizer::GatherWeights() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (KeepsWhole(b)) flat_[b].copy_(ranks_.Gather(weights_[b]));
  }
  if (shards_ != nullptr) shards_->ReleaseAll();  // what was gathered before is out of date
}

void Optimizer::Accumulate() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) Take(i);
  EndPass();
}

void Optimizer::PassWithoutGradient() {
  const at::NoGradGuard no_grad;
  EndPass();
}

void Optimizer::AccumulateZeros() {
  if (sharded()) return;  // ReduceGradient makes them
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients_[i].defined()) gradients_[i] = at::zeros_like(parameters_[i].detach());
  }
}

void Optimizer::ReduceGradient() {
  const at::NoGradGuard no_grad;
  if (!ranks_.alone()) SumOverRanks();
  RoundSums();
}

void Optimizer::RoundSums() {
  for (at::Tensor& sum : PieceGradients()) {
    if (sum.defined() && sum.scalar_type() == at::kDouble) sum = sum.to(at::kFloat);
  }
}

at::ScalarType Optimizer::SumType() const {
  return options_.gradients == GradientDtype::kFp64 ? at::kDouble : at::kFloat;
}

// A rank without samples has no gradients, and a parameter that no rank's loss reaches stays without one.
void Optimizer::SumOverRanks() {
  FinishScatters(0);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!reduced_[b].defined()) reduced_[b] = at::zeros_like(weights_[b], SumType());
    reduced_[b] = across_.Sum(reduced_[b]);
  }
  if (sharded()) return;
  std::vector<double> found;
  for (const at::Tensor& grad : gradients_) found.push_back(grad.defined() ? 1 : 0);
  ranks_.Sum(found.data(), found.size());
  for (const Bucket& bucket : MakeBuckets(parameters_, 1, kBucketElements)) ReduceBucket(bucket, found);
}

// `gradients` are those of the bucket's parameters.
at::Tensor Optimizer::FlatGradient(const Bucket& bucket, std::span<const at::Tensor> gradients) const {
  const int64_t pieces = sharded() ? ranks_.size() : 1;
  const at::Tensor flat = at::zeros(
      {pieces * bucket.piece}, parameters_[bucket.first].options().dtype(SumType()).requires_grad(false));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& grad = gradients[i];
    if (grad.defined()) ViewInBucket(bucket, bucket.first + i, flat, grad.sizes()).copy_(grad);
  }
  return flat;
}

// The same of what was accumulated, which is forgotten.
at::Tensor Optimizer::TakeFlatGradient(const Bucket& bucket) {
  const std::span<at::Tensor> here = std::span(gradients_).subspan(bucket.first, bucket.count());
  const at::Tensor flat = FlatGradient(bucket, here);
  for (at::Tensor& grad : here) grad.reset();
  return flat;
}

void Optimizer::ReduceBucket(const Bucket& bucket, std::span<const double> found) {
  const at::Tensor flat = ranks_.Sum(TakeFlatGradient(bucket));
  for (size_t i = bucket.first; i < bucket.first + bucket.count(); ++i) {
    if (found[i] > 0) gradients_[i] = ViewInBucket(bucket, i, flat, parameters_[i].sizes());
  }
}

void Optimizer::CorruptGradient() {
  for (at::Tensor& grad : PieceGradients()) {
    if (!grad.defined()) continue;
    grad.flatten()[0].fill_(std::numeric_limits<double>::quiet_NaN());
    return;
  }
}

void Optimizer::DropGradient() {
  FinishScatters(0);
  for (at::Tensor& grad : gradients_) grad.reset();
  std::ranges::fill(additions_, 0);
  for (at::Tensor& grad : reduced_) grad.reset();
}

double Optimizer::GradientNorm() {
  double squares = 0;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : PieceGradients()) {
    if (!grad.defined()) continue;
    if (grad.is_cuda()) {
      norms.push_back(at::linalg_vector_norm(grad, 2, std::nullopt, false, at::kFloat));
    } else {
      squares += SquaredNormCpu(grad.const_data_ptr(), TypeOf(grad), grad.numel());
    }
  }
  double norm = norms.empty() ? std::sqrt(squares)
                              : at::linalg_vector_norm(at::stack(norms).to(at::kDouble), 2).item<double>();
  if (!sharded()) return norm;
  squares = norm * norm;
  ranks_.Sum(&squares, 1);
  return std::sqrt(squares);
}

void Optimizer::UpdateParameter(size_t i, double lr, double grad_scale) {
  const at::Tensor& grad = PieceGradients()[i];
  const AdamWArrays arrays{
      .parameter = master_[i].mutable_data_ptr<float>(),
      .copy = IsMaster(weights_[i]) ? nullptr : weights_[i].mutable_data_ptr(),
      .gradient = grad.const_data_ptr(),
      .gradient_type = TypeOf(grad),
      .first = first_[i].mutable_data_ptr(),
      .second = second_[i].mutable_data_ptr(),
      .state_type = TypeOf(first_[i]),
      .size = grad.numel(),
  };
  const AdamWSettings settings{lr,
                               options_.beta1,
                               options_.beta2,
                               options_.eps,
                               options_.weight_decay,
                               updates_,
                               grad_scale,
                               static_cast<uint64_t>(places_[i])};
  if (grad.is_cuda()) {
    AdamWCuda(arrays, settings, CurrentStream(grad));
  } else {
    AdamWCpu(arrays, settings);
  }
}

UpdateResult Optimizer::Update(double lr) {
  const at::NoGradGuard no_grad;
  RoundSums();
  UpdateResult result{.grad_norm = GradientNorm()};
  result.skipped = !std::isfinite(result.grad_norm);
  if (!result.skipped) {
    ++updates_;
    // torch.nn.utils.clip_grad_norm_ adds the same millionth.
    const double scale = options_.clip > 0 ? std::min(1.0, options_.clip / (result.grad_norm + 1e-6)) : 1.0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (PieceGradients()[i].defined()) UpdateParameter(i, lr, scale);
    }
    GatherWeights();
    if (model_.lora) MergeAdapters(model_);
  }
  DropGradient();
  return result;
}

std::vector<StateTensor> Optimizer::State() const {
  std::vector<StateTensor> state;
  for (const StoredTensor& stored : TrainedTensors(model_)) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].is_same(stored.parameter)) continue;
      if (sharded()) {
        AddShardedState(stored, i, &state);
        continue;
      }
      for (const auto& [kind, tensors] :
           {std::pair("master.", &master_), {"first.", &first_}, {"second.", &second_}}) {
        const at::Tensor part = stored.Part((*tensors)[i]);
        state.push_back({kind + stored.name, part, 0, part.numel()});
      }
    }
  }
  return state;
}

// What the tensor's place in the bucket and this rank's piece of it have in common.
void Optimizer::AddShardedState(const StoredTensor& stored, size_t parameter,
                                std::vector<StateTensor>* state) const {
  size_t b = 0;
  while (b + 1 < buckets_.size() && buckets_[b + 1].first <= parameter) ++b;
  const Bucket& bucket = buckets_[b];
  const at::Tensor& whole = parameters_[parameter];
  const at::Tensor part = stored.Part(whole);
  const int64_t tensor_begin =
      bucket.offsets[parameter - bucket.first] + part.storage_offset() - whole.storage_offset();
  const int64_t piece_begin = ranks_.rank() * bucket.piece;
  const int64_t begin = std::max(tensor_begin, piece_begin);
  const int64_t end = std::min(tensor_begin + part.numel(), piece_begin + bucket.piece);
  if (begin >= end) return;
  for (const auto& [kind, tensors] :
       {std::pair("master.", &master_), {"first.", &first_}, {"second.", &second_}}) {
    state->push_back({kind + stored.name, (*tensors)[b].narrow(0, begin - piece_begin, end - begin),
                      begin - tensor_begin, part.numel()});
  }
}

std::vector<at::Tensor> Optimizer::StateTensors() const {
  std::vector<at::Tensor> tensors;
  for (const std::vector<at::Tensor>* kind : {&master_, &first_, &second_}) {
    tensors.insert(tensors.end(), kind->begin(), kind->end());
  }
  return tensors;
}

int64_t Optimizer::ResidentBytes() const {
  int64_t bytes = 0;
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  add(first_);
  add(second_);
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!IsMaster(weights_[i])) bytes += static_cast<int64_t>(master_[i].nbytes());
  }
  if (!sharded()) add(parameters_);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    bytes += static_cast<int64_t>(KeepsWhole(b) ? flat_[b].nbytes() : weights_[b].nbytes());
  }
  return bytes;
}

void Optimizer::Restored(int64_t updates) {
  const at::NoGradGuard no_grad;
  updates_ = updates;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!IsMaster(weights_[i])) weights_[i].copy_(master_[i]);
  }
  GatherWeights();
  if (model_.lora) MergeAdapters(model_);
}

}  // namespace augur
