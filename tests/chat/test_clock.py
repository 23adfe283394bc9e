"""clock: a template that prints today's date prints a fixed one, on every day and in every time zone."""

import time
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizer_folders import smollm_folder

from pipeline.chat.clock import CLOCKS, NotFixed, without_clock
from pipeline.chat.template import compiled
from pipeline.chat.tokens import load_tokenizer
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.curate.rules.template import ChatTemplate

DAY = date(2024, 7, 26)
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PRINTED = {
    "a text": ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
    "the other quotes": ('{{ "a" + strftime_now( "%B %d, %Y" ) + "b" }}', "aJuly 26, 2024b"),
    "over lines": ('{{ strftime_now(\n    "%Y-%m-%d",\n) }}', "2024-07-26"),
    "by keyword": ("{{ strftime_now(format='%A') }}", "Friday"),
    "the hour and the zone": ("{{ strftime_now('%H:%M:%S %Z') }}", "00:00:00 "),
    "quotes inside": (
        r"""{{ strftime_now("the \"%d\"th") }} {{ strftime_now('%d "x"') }}""",
        'the "26"th 26 "x"',
    ),
    "several": ("{{ strftime_now('%Y') }}/{{ strftime_now('%m') }}", "2024/07"),
    "a variable": ("{% set today = strftime_now('%d') %}{{ today }}", "26"),
    "in a macro": ("{% macro m() %}{{ strftime_now('%j') }}{% endmacro %}{{ m() }}", "208"),
    "if there is a clock": ("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", "2024"),
    "llama-server's date": ("{{ date_string }}", "26 Jul 2024"),
    "llama-server's other date": ("{{ datetime }}", "Jul 26 2024"),
    "Llama 3.1": (
        "{%- if not date_string is defined %}\n    {%- set date_string = '1 May 2020' %}\n{%- endif %}\n"
        "{{- 'Today Date: ' + date_string }}",
        "Today Date: 26 Jul 2024",
    ),
    "a line break first of all": ("\n  {{ date_string }}", "\n  26 Jul 2024"),
}
UNTOUCHED = {
    "no clock": TURNS,
    "a word in a text": "{{ 'it is no datetime' }}" + TURNS,
    "a date of its own": "{% set date_string = '1 May 2024' %}{{ date_string }}",
    "a loop's date": "{% for datetime in [1] %}{{ datetime }}{% endfor %}",
}
COMPUTED = {
    "a variable": "{% set form = '%Y' %}{{ strftime_now(form) }}",
    "a sum": "{{ strftime_now('%Y' + '-%m') }}",
    "another name": "{% set now = strftime_now %}{{ now('%Y') }}",
}
# llama-server's own variables, on a day that is none of those asked for
SERVER = {"date_string": "01 Jan 2030", "datetime": "Jan 01 2030"}


@pytest.mark.parametrize("name", PRINTED)
def test_the_fixed_date_is_printed_whoever_renders(name: str) -> None:
    template, expected = PRINTED[name]
    fixed = without_clock(template, DAY)
    assert compiled(fixed)(messages=[]) == expected
    assert compiled(fixed)(messages=[], **SERVER) == expected
    assert without_clock(fixed, date(1999, 1, 1)) == fixed


@pytest.mark.parametrize("name", UNTOUCHED)
def test_a_template_without_a_clock_keeps_every_letter(name: str) -> None:
    assert without_clock(UNTOUCHED[name], DAY) == UNTOUCHED[name]


@pytest.mark.parametrize("name", COMPUTED)
def test_a_format_that_is_computed_is_named(name: str) -> None:
    with pytest.raises(NotFixed, match="write the format as a text"):
        without_clock(COMPUTED[name], DAY)


def set_clock(patch: pytest.MonkeyPatch, moment: datetime, zone: str) -> None:
    """Give transformers another day, and this process another time zone."""

    class Faked(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return moment

    patch.setattr("transformers.utils.chat_template_utils.datetime", Faked)
    patch.setenv("TZ", zone)
    time.tzset()


def test_every_known_template_gives_the_same_tokens_on_two_days_and_in_two_zones(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(smollm_folder(tmp_path))
    templates = {
        file.name: file.read_text(encoding="utf-8")
        for file in (tools.source / "models" / "templates").glob("*.jinja")
    }
    dated = {name: text for name, text in templates.items() if any(word in text for word in CLOCKS)}
    different = 0
    for text in dated.values():
        tokens = {True: set[str](), False: set[str]()}
        for moment, zone in ((datetime(2025, 12, 31, 23), "UTC-14"), (datetime(2026, 1, 1, 3), "UTC+12")):
            set_clock(monkeypatch, moment, zone)
            server = {"date_string": f"{moment:%d %b %Y}", "datetime": f"{moment:%b %d %Y}"}
            for is_fixed in tokens:
                tokenizer.chat_template = without_clock(text, DAY) if is_fixed else text
                for variables in ({}, server):
                    with suppress(TemplateError):  # firefunction wants functions
                        ids = tokenizer.apply_chat_template(CHAT, return_dict=False, **variables)
                        tokens[is_fixed].add(str(ids))
        assert len(tokens[True]) <= 1
        different += len(tokens[False]) > 1
    assert different >= 7  # so many of llama.cpp's copies print the day for a plain chat
    monkeypatch.undo()
    time.tzset()


def test_our_own_renderer_prints_it_too(tmp_path: Path) -> None:
    folder = smollm_folder(tmp_path)
    text = "{{ strftime_now('%d %b %Y') }}\n" + TURNS
    (folder / "chat_template.jinja").write_text(without_clock(text, DAY), encoding="utf-8")
    expected = load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)
    assert ChatTemplate(folder).render(CHAT) == expected
    assert expected.startswith("26 Jul 2024\n")
