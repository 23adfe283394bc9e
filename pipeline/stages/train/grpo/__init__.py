"""GRPO with verifiable rewards: rounds of rollouts, their rewards, the update computed from them."""
