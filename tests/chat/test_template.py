"""Foreign chat templates: what is tried takes little of time and memory, and is refused in a sentence."""

import resource

import pytest

from pipeline.chat.template import try_templates
from pipeline.core.errors import DataError

LOOP = "{% for i in range(99999) %}"
DEEP = 20_000
TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# templates that render, or refuse what they are shown, within the limits
SOUND = {
    "ChatML": TURN,
    "nothing": "",
    "text alone": "hello",
    "refuses all": "{{ raise_exception('no') }}",
    "refuses system turns": "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    + TURN,
    "an undefined name": "{{ nobody.nothing }}",
    "divides by zero": "{{ 1 // 0 }}",
    "no such key": "{{ messages[99]['x'] }}",
    "adds a number to a text": "{{ 'a' + 1 }}",
    "Python's classes": "{{ messages.__class__.__mro__ }}",
    "all of Python's classes": "{{ ''.__class__.__base__.__subclasses__() }}",
    "a function's globals": "{{ raise_exception.__globals__ }}",
    "a format's attribute": "{{ '{0.__class__}'.format(messages) }}",
    "changes what it is shown": "{{ messages.append(1) }}",
    "a longer range than Jinja's sandbox has": "{{ range(10**9)|list }}",
    "a loop that ends": LOOP + "{% if loop.index > 9 %}{% break %}{% endif %}{% endfor %}",
    "a large number in a text": "{{ (messages|length + 1) ** 100000 }}",
    "includes a file": "{% include '/etc/passwd' %}",
    "imports a file": "{% import '/etc/passwd' as x %}",
    "extends a file": "{% extends '/etc/passwd' %}",
    "the day": "{{ strftime_now('%Y') }}",
    "JSON": "{{ tools|tojson(indent=2) }}{{ messages|tojson }}",
    "marks of generation": "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "a namespace": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}",
    "1 MB of comment": "{#" + "x" * 1_000_000 + "#}" + TURN,
    "a zero byte and half a character": "\0\udc80" + TURN,
    "recursion that ends": "{% for m in [[[1]]] recursive %}{{ loop(m) if m != 1 }}{% endfor %}",
    "blind text": "{{ lipsum(n=3) }}",
}
BROKEN = {
    "an open print": "{{ messages",
    "an open block": "{% for m in messages %}",
    "an open comment": "{# hello",
    "an open text": "{{ 'a }}",
    "an end without a beginning": "{% endfor %}",
    "an unknown tag": "{% do x %}",
    "an unknown filter": "{{ messages|nothing }}",
    "an unknown test": "{{ messages is nothing }}",
    "no expression": "{{ ) }}",
    "a number of 5,000 digits": "{{ " + "9" * 5000 + " }}",
}
TOO_MUCH = {
    "a macro calls itself": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "blocks call each other": (
        "{% block a %}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}{% endblock %}"
    ),
    "a block shows itself": "{% block b %}{{ self.b() }}{% endblock %}",
    "a loop calls itself": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "a long text at once": "{{ messages[0].role * 10**12 }}",
    "a long list at once": "{{ messages * 10**10 }}",
    "a text that doubles": "{% set n = namespace(x='x') %}" + LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a list that doubles": "{% set n = namespace(x=[1]) %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
    "a text that doubles with each turn": (
        "{% set n = namespace(x='x') %}{% for m in messages %}{% set n.x = n.x ~ n.x %}{% endfor %}"
    ),
    "white space": "{{ 'x'|center(10**10) }}",
    "a format's width": "{{ '{:>9999999999}'.format(1) }}",
    "a number's width": "{{ '%09999999999d' % 1 }}",
    "JSON's indent": "{{ messages|tojson(indent=10**10) }}",
    "an output of 2 MB": "{{ messages[0].role * 2**19 }}",
}
# refused by Jinja, by Python's compiler behind it, or by its stack: that is each Python's own
NESTED = {
    "brackets": "{{ " + "(" * DEEP + "1" + ")" * DEEP + " }}",
    "lists": "{{ " + "[" * DEEP + "]" * DEEP + " }}",
    "signs": "{{ " + "-" * DEEP + "1 }}",
    "negations": "{{ " + "not " * DEEP + "x }}",
    "sums": "{{ x" + "+1" * DEEP + " }}",
    "attributes": "{{ x" + ".x" * DEEP + " }}",
    "filters": "{{ x" + "|upper" * DEEP + " }}",
    "conditions": "{% if x %}" * DEEP + "{% endif %}" * DEEP,
    "loops": "{% for x in messages %}" * 99 + "{% endfor %}" * 99,
}
ENDLESS = "{{ (messages|length + 9) ** (10 ** 8) }}"  # in C, where Python hears no signal


def refusal(template: str) -> tuple[str, int]:
    with pytest.raises(DataError) as refused:
        try_templates({"default": template}, "a model")
    return refused.value.id, refused.value.exit_code


def test_sound_templates_pass_together_in_a_second() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert try_templates(SOUND, "a model") is None
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1


@pytest.mark.parametrize("name", BROKEN)
def test_a_template_that_is_no_jinja(name: str) -> None:
    assert try_templates({"default": BROKEN[name]}, "a model")


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_template_that_takes_too_much(name: str) -> None:
    assert refusal(TOO_MUCH[name]) == ("Q-CHAT-008", 3)


@pytest.mark.parametrize("name", NESTED)
def test_a_template_that_nests_too_deeply(name: str) -> None:
    try:
        assert try_templates({"default": NESTED[name]}, "a model")
    except DataError as error:
        assert error.id == "Q-CHAT-008"


def test_a_template_that_does_not_end() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert refusal(ENDLESS) == ("Q-CHAT-008", 3)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 4  # of which it may take two


def test_any_of_several_templates_is_tried() -> None:
    templates = {"default": TURN, "tool_use": TOO_MUCH["a macro calls itself"]}
    with pytest.raises(DataError, match="Q-CHAT-008"):
        try_templates(templates, "a model")
