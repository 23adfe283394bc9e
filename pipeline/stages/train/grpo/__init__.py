"""GRPO with verifiable rewards: rounds of rollouts, their rewards, the update that they give."""
