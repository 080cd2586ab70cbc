#include "rollout/rollout_bytes.h"

namespace augur {

void PutRollout(const Rollout& rollout, ByteWriter* out) {
  out->Put(rollout.prompt);
  out->Put(rollout.sample);
  out->Put(rollout.tokens);
  out->Put(rollout.logprobs);
  out->Put(rollout.support.columns);
  out->Put(rollout.support.ids);
  out->Put(rollout.support.logprobs);
  out->Put(rollout.routing.layers);
  out->Put(rollout.routing.experts_per_token);
  out->Put(rollout.routing.experts);
  out->Put(rollout.temperature);
  out->Put(rollout.weight_version);
  out->Put(rollout.finish);
  out->Put(rollout.error);
  out->Put(rollout.not_finite);
}

Rollout GetRollout(ByteReader* in) {
  Rollout rollout;
  in->Get(&rollout.prompt);
  in->Get(&rollout.sample);
  in->Get(&rollout.tokens);
  in->Get(&rollout.logprobs);
  in->Get(&rollout.support.columns);
  in->Get(&rollout.support.ids);
  in->Get(&rollout.support.logprobs);
  in->Get(&rollout.routing.layers);
  in->Get(&rollout.routing.experts_per_token);
  in->Get(&rollout.routing.experts);
  in->Get(&rollout.temperature);
  in->Get(&rollout.weight_version);
  in->Get(&rollout.finish);
  in->Get(&rollout.error);
  in->Get(&rollout.not_finite);
  return rollout;
}

}  // namespace augur
