"""A worked example: one batch of sampled tokens under every mask, and one token looked at closely."""

import torch

import augur
from augur.masks import only_masks

torch.manual_seed(7)
TOKENS, VOCAB, K = 4096, 1000, 20

# The behaviour policy mu sampled the tokens; the policy pi has moved on since (other precision, older weights).
policy_logits = 3 * torch.randn(TOKENS, VOCAB)
behaviour = torch.log_softmax(policy_logits + 0.5 * torch.randn(TOKENS, VOCAB), -1)
sampled = torch.multinomial(behaviour.exp(), 1)

# What a rollout records: the sampled token first, then the top K without it; unused columns hold -1 and -inf.
top = behaviour.topk(K).indices
others = top.masked_fill(top == sampled, -1).sort(dim=1, descending=True, stable=True).values
ids = torch.cat([sampled, others], 1)
logprobs = behaviour.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
advantages = torch.where(torch.rand(TOKENS) < 0.5, 1.0, -1.0)

print(f"{TOKENS} tokens, vocabulary {VOCAB}, top {K} recorded\n")
print(f"{'mask':<26} {'outside':>8} {'masked':>8} {'disagree':>9} {'gradient kept':>14}")
for name in filter(lambda name: only_masks(augur.MaskRule.preset(name)), augur.MaskRule.presets()):
    logits = policy_logits.clone().requires_grad_()
    out = augur.policy_loss(name, logits, ids, logprobs, advantages)
    out.loss.backward()
    m = out.metrics
    live = (logits.grad.abs().sum(1) > 0).float().mean()
    print(
        f"{name:<26} {m['mask/outside'].value:>8.1%} {m['mask/masked'].value:>8.1%}"
        f" {m['mask/disagree'].value:>9.2%} {live:>14.1%}"
    )

# A token on which the two ways of telling "outward" disagree.
rule = augur.MaskRule.preset("predictive-kl-exact")
out = augur.policy_loss(rule, policy_logits, ids, logprobs, advantages)
t = int(out.decision.disagree.nonzero()[0])
local = (out.logprobs[t].exp() - logprobs[t, 0].exp()).item()
change = out.decision.direction[t].item()
side = "raise" if advantages[t] > 0 else "lower"
print(f"""
One token on which the criteria disagree (advantage {advantages[t]:+.0f}: the update would {side} it):
  mu = {logprobs[t, 0].exp():.4f}   pi = {out.logprobs[t].exp():.4f}   ratio = {out.decision.ratio[t]:.3f}
  D  = {out.decision.divergence[t]:.3f} > {rule.delta}: outside the trust region
  the ratio sees the local term {local:+.4f}; softmax coupling adds {change - local:+.4f}
  predicted change {change:+.4f}
  advantage x change = {advantages[t] * change:+.4f}: {"kept" if out.decision.keep[t] else "masked"} \
by the predictive mask, {"masked" if out.decision.keep[t] else "kept"} by the ratio""")
