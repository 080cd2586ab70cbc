#include "train/parallel/buckets.h"

#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "base/round_up.h"

namespace augur {
namespace {

constexpr int64_t kAlignment = 64;  // elements, so that every parameter may be read by wide loads

}  // namespace

std::vector<Bucket> MakeBuckets(std::span<const at::Tensor> parameters, int ranks, int64_t most) {
  std::vector<Bucket> buckets;
  int64_t filled = 0;
  const auto close = [&] {
    if (!buckets.empty()) buckets.back().piece = RoundUp(RoundUp(filled, ranks) / ranks, kAlignment);
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t size = RoundUp(parameters[i].numel(), kAlignment);
    const bool other_type = i > 0 && parameters[i].scalar_type() != parameters[i - 1].scalar_type();
    if (buckets.empty() || other_type || filled + size > most) {
      close();
      buckets.push_back({i, {}, 0});
      filled = 0;
    }
    buckets.back().offsets.push_back(filled);
    filled += size;
  }
  close();
  return buckets;
}

std::vector<Bucket> MakeBuckets(std::span<const at::Tensor> parameters, int ranks,
                                std::span<const size_t> counts) {
  std::vector<Bucket> buckets;
  size_t first = 0;
  for (const size_t count : counts) {
    Bucket bucket =
        MakeBuckets(parameters.subspan(first, count), ranks, std::numeric_limits<int64_t>::max()).front();
    bucket.first = first;
    buckets.push_back(std::move(bucket));
    first += count;
  }
  return buckets;
}

std::vector<int64_t> PlacesOf(std::span<const at::Tensor> parameters) {
  std::vector<int64_t> places;
  int64_t place = 0;
  for (const at::Tensor& parameter : parameters) {
    places.push_back(place);
    place += RoundUp(parameter.numel(), kAlignment);
  }
  return places;
}

at::Tensor MoveIntoBucket(const Bucket& bucket, int ranks, std::vector<at::Tensor>* parameters) {
  const at::Tensor flat =
      at::zeros({ranks * bucket.piece}, (*parameters)[bucket.first].options().requires_grad(false));
  for (size_t i = bucket.first; i < bucket.first + bucket.count(); ++i) {
    at::Tensor& parameter = (*parameters)[i];
    const at::Tensor view = ViewInBucket(bucket, i, flat, parameter.sizes());
    view.copy_(parameter);
    parameter.set_data(view);
  }
  return flat;
}

at::Tensor PieceOf(const Bucket& bucket, const at::Tensor& flat, int rank) {
  return flat.narrow(0, rank * bucket.piece, bucket.piece);
}

at::Tensor ViewInBucket(const Bucket& bucket, size_t parameter, const at::Tensor& flat,
                        at::IntArrayRef shape) {
  const int64_t size = c10::multiply_integers(shape);
  return flat.narrow(0, bucket.offsets[parameter - bucket.first], size).view(shape);
}

}  // namespace augur
