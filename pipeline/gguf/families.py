"""The families of models whose GGUF is known, one record each: what sets a family apart in the file.

The weights of a merged model are compared with its GGUF if the model's family is here, and an adapter can be
trained on its GGUF if the record says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family by its names and traits. If a trait has code of its own, the comment names the module."""

    # general.architecture of its GGUF
    name: str
    # `architectures` of its config.json; the first one is what a file without further signs is
    classes: tuple[str, ...]
    # an adapter or scales can be trained on its GGUF
    trained_on: bool = False
    # its feed-forward layers are experts
    experts: bool = False
    # its rotary embedding turns neighbors, so that the rows of q and k are in another order than in
    # transformers' model (`pipeline.models.gguf_names`)
    turns_neighbors: bool = False
    # model_type of a family whose header transformers can't read (`pipeline.models.header_config`)
    model_type: str | None = None
    # its rotary embedding may turn only the first part of a head
    partial_rotary: bool = False
    # its rotary positions may be stretched by factors that its file lists (`pipeline.gguf.rope`)
    listed_factors: bool = False
    # fields of its header that llama.cpp doesn't compute with
    ignored: tuple[str, ...] = ()
    # its norms multiply by one more than they hold; the file has the sum
    norms_add_one: bool = False
    # endings of the names, in the file, of norms that multiply by what they hold
    plain_norms: tuple[str, ...] = ()
    # layers whose number is a multiple of it attend to all tokens before, the others to a window
    # (`pipeline.gguf.attention`)
    full_every: int = 0
    # number of layers of its largest model, whose scores are scaled otherwise (`pipeline.gguf.attention`)
    largest: int | None = None
    # its layers with a window have a rotary base of their own
    local_rotary: bool = False
    # its file lists which layers attend to a window; without a list, those whose number is no multiple of it
    # (`pipeline.gguf.attention`)
    listed_windows: int = 0
    # the field of its header that no other family of its name has
    told_by: str | None = None
    # its rotary positions may be stretched by YaRN, those of layers with a window excepted
    # (`pipeline.gguf.yarn`)
    yarn: bool = False
    # llama.cpp reads more settings of YaRN from its header than the factor and the first context
    reads_yarn: bool = False
    # what its file is called if all layers are attention
    attention_only: str | None = None
    # the key of config.json that counts experts, of a family whose conversion is known only without any
    counts_experts: str | None = None
    # its activations are multiplied by settings of config.json; the file has the products with the weights
    # (`pipeline.gguf.multipliers`)
    multiplied: bool = False
    # type of its layers without attention, beside those of full attention
    recurrent: str | None = None
    # its file may have layers for drafting (MTP) behind its own, which no model of transformers' has
    drafts: bool = False
    # settings of config.json that are the same for every file of the family
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # factors that its model is computed with: {key of config.json: field of the header}
    factors: Mapping[str, str] = field(default_factory=dict)
    # the same of keys in `rope_parameters`, which are 0 if the header has no such field
    rope_factors: Mapping[str, str] = field(default_factory=dict)
    # settings of `rope_parameters` that are the same for every stretched file of the family
    fixed_rope: Mapping[str, Any] = field(default_factory=dict)

    def adds_one(self, tensor: str) -> bool:
        """Return True if this tensor of its GGUF holds one more than the model's."""
        is_norm = tensor.endswith("norm.weight") and not tensor.endswith(self.plain_norms)
        return self.norms_add_one and is_norm


WINDOW = "attention.sliding_window"
GRANITE = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
STATE_SPACE = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
# attention in layer_types of config.json: as published, and as transformers saves it
ATTENTION = {"attention", "full_attention"}
FAMILIES = (
    Family(
        "llama",
        ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
        trained_on=True,
        turns_neighbors=True,
    ),
    Family("qwen2", ("Qwen2ForCausalLM",), trained_on=True),
    Family("qwen3", ("Qwen3ForCausalLM",), trained_on=True),
    Family("qwen2moe", ("Qwen2MoeForCausalLM",), trained_on=True, experts=True),
    Family("qwen3moe", ("Qwen3MoeForCausalLM",), trained_on=True, experts=True),
    Family(
        "gemma2",
        ("Gemma2ForCausalLM",),
        trained_on=True,
        model_type="gemma2",
        norms_add_one=True,
        full_every=2,
        largest=46,
        factors={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
            "sliding_window": WINDOW,
        },
    ),
    Family(
        "gemma3",
        ("Gemma3ForCausalLM",),
        trained_on=True,
        model_type="gemma3_text",
        norms_add_one=True,
        full_every=6,
        largest=62,
        local_rotary=True,
        factors={"sliding_window": WINDOW},
    ),
    Family(
        "granite",
        ("GraniteForCausalLM",),
        trained_on=True,
        turns_neighbors=True,
        model_type="granite",
        factors=GRANITE,
    ),
    Family("olmo2", ("Olmo2ForCausalLM",), trained_on=True, model_type="olmo2"),
    Family(
        "phi3",
        ("Phi3ForCausalLM",),
        trained_on=True,
        model_type="phi3",
        partial_rotary=True,
        listed_factors=True,
        ignored=(WINDOW,),
    ),
    Family("smollm3", ("SmolLM3ForCausalLM",), trained_on=True, turns_neighbors=True, model_type="smollm3"),
    # OLMo 3, whose file is called as OLMo 2's, and has windows
    Family(
        "olmo2",
        ("Olmo3ForCausalLM",),
        trained_on=True,
        model_type="olmo3",
        listed_windows=4,
        told_by=WINDOW,
        yarn=True,
        factors={"sliding_window": WINDOW},
    ),
    Family(
        "mistral3",
        ("Ministral3ForCausalLM",),
        trained_on=True,
        turns_neighbors=True,
        model_type="ministral3",
        yarn=True,
        reads_yarn=True,
        rope_factors={
            "llama_4_scaling_beta": "attention.temperature_scale",
            "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
        },
        # which llama.cpp takes it for
        fixed_rope={"mscale": 1.0},
    ),
    Family("glm4", ("Glm4ForCausalLM",)),
    Family(
        "granitehybrid",
        ("GraniteMoeHybridForCausalLM",),
        turns_neighbors=True,
        attention_only="granite",
        counts_experts="num_local_experts",
        factors=GRANITE | STATE_SPACE,
    ),
    Family("falcon-h1", ("FalconH1ForCausalLM",), multiplied=True, factors=STATE_SPACE),
    Family(
        "lfm2",
        ("Lfm2ForCausalLM",),
        trained_on=True,
        model_type="lfm2",
        recurrent="conv",
        # its header has the width after the adjustment
        fixed={"block_auto_adjust_ff_dim": False},
        factors={"norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"},
    ),
    Family(
        "qwen35",
        ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        trained_on=True,
        model_type="qwen3_5_text",
        partial_rotary=True,
        recurrent="linear_attention",
        drafts=True,
        # sections of pictures' positions, which are the same in text
        ignored=("rope.dimension_sections",),
        norms_add_one=True,
        plain_norms=(".ssm_norm.weight",),
        factors={
            "linear_conv_kernel_dim": "ssm.conv_kernel",
            "linear_key_head_dim": "ssm.state_size",
            "linear_num_key_heads": "ssm.group_count",
            "linear_num_value_heads": "ssm.time_step_rank",
        },
    ),
)
# by the class in config.json
BY_CLASS = {name: family for family in FAMILIES for name in family.classes}
# by general.architecture; a file without further signs is the first one's
BY_NAME = {family.name: family for family in reversed(FAMILIES)}
# the names of those whose GGUF an adapter can be trained on, and of those without experts
TRAINED_ON = tuple(dict.fromkeys(family.name for family in FAMILIES if family.trained_on))
DENSE = tuple(dict.fromkeys(family.name for family in FAMILIES if family.trained_on and not family.experts))


def family_in(fields: Mapping[str, Any]) -> Family | None:
    """Return the family of a GGUF by the fields of its header; None for one that is not known."""
    name = str(fields.get("general.architecture"))
    for family in FAMILIES:
        if family.name == name and family.told_by and f"{name}.{family.told_by}" in fields:
            return family
    return BY_NAME.get(name)


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Return the family whose GGUF the model of a config.json becomes; None for one that is not known."""
    family = BY_CLASS.get((config.get("architectures") or ["none"])[0])
    if family is None or (family.counts_experts and config.get(family.counts_experts)):
        return None
    types = config.get("layer_types")  # without it, no layer is attention
    if family.attention_only and types and ATTENTION.issuperset(types):
        return BY_NAME[family.attention_only]
    return family
