"""Distillations in plans: what the 16-bit model needs."""

from pathlib import Path

from plans import plan_json, write_params


def test_the_16_bit_model_answers_where_it_has_room(tmp_path: Path) -> None:
    write_params(
        tmp_path, quantize={"levels": ["Q4_K_M"], "distill": ["Q4_K_M"]}, evaluate={"models": ["F16"]}
    )
    for vram, on_cpu in (("8", True), ("24", False)):
        (found,) = plan_json("--vram", vram, "--root", tmp_path)["distill"]
        assert found["level"] == "Q4_K_M"
        assert found["teacher_on_cpu"] is on_cpu
        assert found["fits"] is (found["memory"] <= int(vram) << 30)
