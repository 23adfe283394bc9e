"""Hunyuan, dense."""

from pipeline.gguf.families.base import Config, Family


class Hunyuan(Family):
    """Hunyuan, whose positions are stretched by a larger base."""

    def rope_base(self, config: Config) -> float | None:
        """Return the base with which `alpha` stretches the positions."""
        base = super().rope_base(config)
        if base is None or not config.get("alpha"):
            return base
        width = config["head_dim"]
        return float(base * config["alpha"] ** (width / (width - 2)))


HUNYUAN = Hunyuan("hunyuan-dense", ("HunYuanDenseV1ForCausalLM",), own_vocabulary=True)
