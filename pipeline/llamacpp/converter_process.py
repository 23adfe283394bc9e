"""Run a converter of llama.cpp with settings that it has no option for: the pre-tokenizer's name, metadata
fields to write, and whether there is a vocabulary.

    python -P pipeline/llamacpp/converter_process.py
    '{"pre": "qwen2", "fields": {"general.license": "mit"}, "vocabulary": true}'
    path/to/convert_hf_to_gguf.py ARGUMENTS…

The name is for vocabularies that the converter's list of hashes doesn't contain. The fields are written with
the header, because adding them later would mean writing the entire file again. The converter's folder must be
on PYTHONPATH; none of its files is changed.
"""

import json
import re
import runpy
import sys
from typing import Any


def main(argv: list[str]) -> None:
    """Set the name and the fields where the converter looks for them, then run it."""
    settings = json.loads(argv[0])
    script, *arguments = argv[1:]
    if settings["pre"]:
        from conversion.base import TextModel  # type: ignore[import-not-found]  # llama.cpp's package

        TextModel.get_vocab_base_pre = lambda _model, _tokenizer: settings["pre"]
    if not settings["vocabulary"]:
        leave_out_vocabulary()
    if settings["fields"]:
        write_more(settings["fields"])
    leave_out_missing_drafts()
    know_attention_by_both_names()
    know_width_of_heads()
    know_dense_nemotron()
    if script.endswith("convert_lora_to_gguf.py"):
        stack_each_projection()
        name_ministral()
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def leave_out_vocabulary() -> None:
    """Write the number of tokens in place of the vocabulary, for a folder without a tokenizer."""
    from conversion.base import TextModel

    prepare = TextModel.prepare_metadata

    def without_vocabulary(self: Any, *arguments: Any, **more: Any) -> None:
        def count_tokens() -> None:
            self._set_vocab_none()
            self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])

        self.set_vocab = count_tokens
        prepare(self, *arguments, **more)

    TextModel.prepare_metadata = without_vocabulary


def leave_out_missing_drafts() -> None:
    """Convert a Qwen3.5 without its layers for drafting (`mtp.*`) as a model that has none.

    llama.cpp's own converter stops with an assertion, or announces a layer that is not there if config.json
    does. transformers leaves these layers out when it saves a model.
    """
    from conversion.qwen import _QwenMtpMixin as WithDrafts  # type: ignore[import-not-found]

    index_tensors = WithDrafts.index_tensors

    def look(self: Any, *arguments: Any, **more: Any) -> Any:
        tensors = index_tensors(self, *arguments, **more)
        self.no_mtp = self.no_mtp or type(self).opt_num_mtp_layers == 0
        return tensors

    WithDrafts.index_tensors = look


def know_attention_by_both_names() -> None:
    """Find the attention layers of a Granite 4 whose config.json transformers saved.

    transformers writes `full_attention`; the published files have `attention`. llama.cpp's own converter
    expects the latter and otherwise treats all layers as state spaces.
    """
    from conversion.granite import GraniteHybridModel  # type: ignore[import-not-found]

    find = GraniteHybridModel.get_attn_layers

    def attention_layers(self: Any) -> Any:
        types = self.hparams.get("layer_types") or []
        numbers = [number for number, kind in enumerate(types) if kind in ("attention", "full_attention")]
        return numbers or find(self)

    GraniteHybridModel.get_attn_layers = attention_layers


def know_width_of_heads() -> None:
    """Convert a Falcon-H1 whose config.json has no `head_dim`. The width is then a head's share, as
    transformers assumes. llama.cpp's own converter stops with a KeyError.
    """
    from conversion.falcon_h1 import FalconH1Model  # type: ignore[import-not-found]

    write = FalconH1Model.set_gguf_parameters

    def with_width(self: Any) -> None:
        share = self.hparams["hidden_size"] // self.hparams["num_attention_heads"]
        self.hparams.setdefault("head_dim", share)
        write(self)

    FalconH1Model.set_gguf_parameters = with_width


def know_dense_nemotron() -> None:
    """Convert a Nemotron-H without experts as a dense model.

    transformers' configuration has experts' settings for every model of this class, and llama.cpp's own
    converter takes it for a mixture by these. It finds the layers of a dense one by letters alone.
    """
    from conversion.base import ModelBase
    from conversion.nemotron import NemotronHModel  # type: ignore[import-not-found]

    letters = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-"}
    make = NemotronHModel.__init__

    def without_experts(self: Any, folder: Any, *arguments: Any, **more: Any) -> None:
        settings = more.pop("hparams", None) or ModelBase.load_hparams(folder, False)
        kinds = settings.get("layers_block_type") or []
        if kinds and "moe" not in kinds:
            settings = {
                key: value
                for key, value in settings.items()
                if not re.search("expert|^moe_|^n_group$|^topk_group$", key)
            }
            settings["hybrid_override_pattern"] = "".join(letters[kind] for kind in kinds)
        make(self, folder, *arguments, hparams=settings, **more)

    NemotronHModel.__init__ = without_experts


def stack_each_projection() -> None:
    """Stack a layer's experts into one tensor, in order of number, once all of one projection are there.

    llama.cpp's own converter waits for all three projections of all experts. An adapter on `down_proj` only
    never has them.
    """
    from conversion.llama import LlamaModel  # type: ignore[import-not-found]  # llama.cpp's package
    from conversion.qwen import Qwen2MoeModel  # type: ignore[import-not-found]

    for kind in (LlamaModel, Qwen2MoeModel):
        stack_experts_of(kind)


def name_ministral() -> None:
    """Convert the adapter of a Ministral 3 by the class of its text model.

    llama.cpp's own class passes everything to an inner converter, which writes the base in place of the
    adapter.
    """
    from conversion.base import ModelBase  # type: ignore[import-not-found]
    from conversion.mistral3 import Mistral3Model  # type: ignore[import-not-found]

    ModelBase.register("Ministral3ForCausalLM")(Mistral3Model.Ministral3Model)


def stack_experts_of(kind: Any) -> None:
    """Stack experts as `stack_each_projection` does, for one of the converter's classes."""
    import torch

    held: dict[tuple[str, str], dict[int, Any]] = {}
    modify = kind.modify_tensors
    prepare_tensors = kind.prepare_tensors

    def with_experts(self: Any, data: Any, name: str, bid: int | None) -> Any:
        match = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)\.weight", name)
        if not match:
            yield from modify(self, data, name, bid)
            return
        stack = held.setdefault((match[1], match[3]), {})
        stack[int(match[2])] = data
        if len(stack) == self.find_hparam(["num_local_experts", "num_experts"]):
            stacked = torch.stack([stack[number] for number in sorted(stack)], dim=0)
            del held[match[1], match[3]]
            yield from super(kind, self).modify_tensors(stacked, f"{match[1]}.{match[3]}.weight", bid)

    def prepare(self: Any) -> None:
        prepare_tensors(self)
        if held:
            raise ValueError(f"experts are missing: {sorted(held)[:3]}")

    kind.modify_tensors = with_experts
    kind.prepare_tensors = prepare


def write_more(fields: dict[str, str | int | float]) -> None:
    """Add `fields` to every GGUF that this process writes. They override the converter's own."""
    from gguf import GGUFWriter

    write_header = GGUFWriter.write_header_to_file

    def with_fields(writer: Any, path: Any = None) -> None:
        for key, value in fields.items():
            writer.remove_key(key)
            kinds = {
                str: writer.add_string,
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
            }
            kinds[type(value)](key, value)
        write_header(writer, path)

    GGUFWriter.write_header_to_file = with_fields  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1:])
