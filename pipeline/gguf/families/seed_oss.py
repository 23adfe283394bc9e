"""Seed-OSS."""

from pipeline.gguf.families.base import Family

SEED_OSS = Family("seed_oss", ("SeedOssForCausalLM",))
