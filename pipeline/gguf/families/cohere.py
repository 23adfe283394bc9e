"""Command R and Aya (Cohere), and Command R7B (Cohere 2), most of whose layers attend to a window."""

from pipeline.gguf.families.base import Config, Family, Settings
from pipeline.gguf.windows import WINDOW, every

SETTINGS = {"logit_scale": "logit_scale", "layer_norm_eps": "attention.layer_norm_epsilon"}


class Cohere2(Family):
    """Cohere 2."""

    def assumed_settings(self, config: Config) -> Settings:
        """Return the layers with a window."""
        return {"layer_types": every(4, config["num_hidden_layers"])}


COMMAND_R = Family("command-r", ("CohereForCausalLM",), settings=SETTINGS)
COHERE2 = Cohere2("cohere2", ("Cohere2ForCausalLM",), settings={"sliding_window": WINDOW, **SETTINGS})
