#include "trajectory/trajectory_bytes.h"

namespace augur {

void PutTrajectory(const Trajectory& trajectory, ByteWriter* out) {
  out->Put(trajectory.prompt);
  out->Put(trajectory.sample);
  out->Put(trajectory.tokens);
  out->Put(trajectory.spans);
  out->Put(trajectory.logprobs);
  out->Put(trajectory.support.columns);
  out->Put(trajectory.support.ids);
  out->Put(trajectory.support.logprobs);
  out->Put(trajectory.routing.layers);
  out->Put(trajectory.routing.experts_per_token);
  out->Put(trajectory.routing.experts);
  out->Put(trajectory.temperature);
  out->Put(trajectory.weight_version);
  out->Put(trajectory.finish);
  out->Put(trajectory.error);
  out->Put(trajectory.not_finite);
}

Trajectory GetTrajectory(ByteReader* in) {
  Trajectory trajectory;
  in->Get(&trajectory.prompt);
  in->Get(&trajectory.sample);
  in->Get(&trajectory.tokens);
  in->Get(&trajectory.spans);
  in->Get(&trajectory.logprobs);
  in->Get(&trajectory.support.columns);
  in->Get(&trajectory.support.ids);
  in->Get(&trajectory.support.logprobs);
  in->Get(&trajectory.routing.layers);
  in->Get(&trajectory.routing.experts_per_token);
  in->Get(&trajectory.routing.experts);
  in->Get(&trajectory.temperature);
  in->Get(&trajectory.weight_version);
  in->Get(&trajectory.finish);
  in->Get(&trajectory.error);
  in->Get(&trajectory.not_finite);
  CheckTrajectory(trajectory, "a response");
  return trajectory;
}

}  // namespace augur
