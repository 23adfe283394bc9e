"""`rope_parameters` of config.json from a header with YaRN, for the families that can have it."""

from pipeline.core.text import quoted
from pipeline.gguf import yarn
from pipeline.gguf.families.base import Family, Fields, Settings, Untrainable
from pipeline.gguf.header import FIRST_CONTEXT


def yarn_parameters(family: Family, values: Fields) -> Settings:
    """Return the keys of `rope_parameters` for YaRN; empty for positions that are not stretched. Raises
    `Untrainable` if the header has a YaRN setting that llama.cpp doesn't compute with.
    """
    computed = family.yarn_values(values)
    for header_field, value in computed.items():
        in_file = values.get(header_field, value)
        if not isinstance(in_file, int | float) or not yarn.is_close(in_file, value):
            raise Untrainable(
                f"has {family.name}.{header_field} {quoted(in_file)}, and llama.cpp computes with {value:g}"
            )
    if not computed:
        return {}
    return {
        "rope_type": "yarn",
        "factor": computed[yarn.FACTOR],
        "original_max_position_embeddings": computed[FIRST_CONTEXT],
        "beta_fast": computed[yarn.BETA_FAST],
        "beta_slow": computed[yarn.BETA_SLOW],
    }
