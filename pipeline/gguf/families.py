"""The families of models with a known GGUF, one record each: the properties of the family's file.

The weights of a merged model are compared with its GGUF if the model's family is here. An adapter can be
trained on its GGUF if the record allows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """Family with its names and traits. If a trait has code of its own, the comment names the module."""

    # general.architecture of its GGUF
    name: str
    # `architectures` of its config.json. The first one is that of a file without further signs.
    classes: tuple[str, ...]
    # The converter reads its tokenizer by rules of its own.
    own_vocabulary: bool = False
    # An adapter or scales can be trained on its GGUF.
    trained_on: bool = False
    # Its feed-forward layers are experts.
    experts: bool = False
    # Its rotary embedding rotates neighbors, so the rows of q and k are in another order than in
    # transformers' model (`pipeline.models.gguf_names`).
    turns_neighbors: bool = False
    # model_type of a family whose header transformers can't read (`pipeline.models.header_config`)
    model_type: str | None = None
    # Its rotary embedding may rotate only the first part of a head.
    partial_rotary: bool = False
    # Its rotary positions may be stretched by factors that its file lists (`pipeline.gguf.rope`).
    listed_factors: bool = False
    # fields of its header that llama.cpp doesn't compute with
    ignored: tuple[str, ...] = ()
    # Its norms multiply by one more than their weight. The file contains the sum.
    norms_add_one: bool = False
    # Suffixes of the names, in the file, of norms that multiply by their weight.
    plain_norms: tuple[str, ...] = ()
    # Layers with a number that is a multiple of it attend to all tokens before, the others to a window
    # (`pipeline.gguf.attention`).
    full_every: int = 0
    # Number of layers of its largest model, whose scores are scaled differently (`pipeline.gguf.attention`).
    largest: int | None = None
    # Its layers with a window have a rotary base of their own.
    local_rotary: bool = False
    # Its file lists which layers attend to a window. Without a list, those do whose number is not a multiple
    # of it (`pipeline.gguf.attention`).
    listed_windows: int = 0
    # Field of its header that no other family of the same name has.
    told_by: str | None = None
    # Its rotary positions may be stretched by YaRN, except those of layers with a window
    # (`pipeline.gguf.yarn`).
    yarn: bool = False
    # llama.cpp reads more settings of YaRN from its header than the factor and the first context.
    reads_yarn: bool = False
    # general.architecture of its file if all layers are attention.
    attention_only: str | None = None
    # Key of config.json that counts experts, for a family whose conversion is known only without experts.
    counts_experts: str | None = None
    # Its activations are multiplied by settings of config.json. The file has the products with the weights
    # (`pipeline.gguf.multipliers`).
    multiplied: bool = False
    # Type of its layers without attention, in addition to those of full attention.
    recurrent: str | None = None
    # Its file may have layers for drafting (MTP) after its own. No model of transformers has them.
    drafts: bool = False
    # Settings of config.json that are the same for every file of the family.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # Factors that its model is computed with: {key of config.json: field of the header}.
    factors: Mapping[str, str] = field(default_factory=dict)
    # Factors in `rope_parameters`: {key: field of the header}; 0 if the header has no such field.
    rope_factors: Mapping[str, str] = field(default_factory=dict)
    # Settings of `rope_parameters` that are the same for every stretched file of the family.
    fixed_rope: Mapping[str, Any] = field(default_factory=dict)

    def adds_one(self, tensor: str) -> bool:
        """Return True if this tensor of its GGUF contains one more than the model's."""
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
COHERE = {"logit_scale": "logit_scale", "layer_norm_eps": "attention.layer_norm_epsilon"}
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
    # OLMo 3. Its file has the name of OLMo 2's, and windows.
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
        # llama.cpp assumes this value.
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
        # Its header has the width after the adjustment.
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
        # Sections of images' positions, which are the same in text.
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
    Family(
        "nemotron_h",
        ("NemotronHForCausalLM",),
        own_vocabulary=True,
        # The converter orders the rows all the same, though nothing is rotated.
        turns_neighbors=True,
        factors={
            "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
            "conv_kernel": "ssm.conv_kernel",
            "ssm_state_size": "ssm.state_size",
            "n_groups": "ssm.group_count",
            "mamba_num_heads": "ssm.time_step_rank",
        },
    ),
    Family("hunyuan-dense", ("HunYuanDenseV1ForCausalLM",), own_vocabulary=True),
    Family("seed_oss", ("SeedOssForCausalLM",)),
    Family("exaone4", ("Exaone4ForCausalLM",), factors={"sliding_window": WINDOW}),
    Family(
        "cohere2",
        ("Cohere2ForCausalLM",),
        full_every=4,
        factors={"sliding_window": WINDOW, **COHERE},
    ),
    Family("command-r", ("CohereForCausalLM",), factors=COHERE),
    Family("ernie4_5", ("Ernie4_5ForCausalLM",)),
    Family("arcee", ("ArceeForCausalLM",), turns_neighbors=True),
    Family("gemma", ("GemmaForCausalLM",), norms_add_one=True),
    Family(
        "gemma4",
        ("Gemma4ForCausalLM",),
        own_vocabulary=True,
        factors={
            "head_dim": "attention.key_length_swa",
            "sliding_window": WINDOW,
            "final_logit_softcapping": "final_logit_softcapping",
            "num_kv_shared_layers": "attention.shared_kv_layers",
        },
    ),
)
# {class in config.json: family}
BY_CLASS = {name: family for family in FAMILIES for name in family.classes}
# {general.architecture: family}; a file without further signs belongs to the first one.
BY_NAME = {family.name: family for family in reversed(FAMILIES)}
# Classes whose byte-level BPE the converter writes as it does everyone's.
PLAIN_VOCABULARY = frozenset(name for name, family in BY_CLASS.items() if not family.own_vocabulary)
# Names of the families whose GGUF an adapter can be trained on, and of those without experts.
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
    types = config.get("layer_types")  # Without it, no layer is attention.
    if family.attention_only and types and ATTENTION.issuperset(types):
        return BY_NAME[family.attention_only]
    return family
