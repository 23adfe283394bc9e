"""Chat templates without a clock: one that prints today's date is rewritten to print a fixed one.

Tokens would otherwise depend on the day and the time zone in which they are made, and a model would be
served with another date than it was trained with. The date is written into the template itself, so that
transformers, our own renderer and llama-server, which all have a clock of their own, print the same.
"""

import re
from datetime import date, datetime

from pipeline.chat.template import environment

# what llama-server tells every template of its clock, as it writes it (common_chat_extra_context in
# common/chat.cpp); transformers tells nothing
SERVER_VARIABLES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
CALL = "strftime_now"
CLOCKS = (CALL, *SERVER_VARIABLES)  # words of which one is in every template that asks for the date
# a call whose only argument is a text: its quote, and the format between the quotes
LITERAL_CALL = re.compile(
    rf"""\b{CALL}\s*\(\s*(?:format\s*=\s*)?(["'])((?:\\.|(?!\1)[^\\])*)\1\s*,?\s*\)""", re.DOTALL
)


class NotFixed(ValueError):
    """A template asks for the time in a way that can't be replaced by a text."""


def without_clock(template: str, day: date) -> str:
    """Return the template with `day` wherever it asks for today's date; the same text if it asks nowhere.

    A format that is written as a text becomes the date; the variables in which llama-server gives its date
    are set first of all. Raises `NotFixed` for a format that is computed.
    """
    moment = datetime(day.year, day.month, day.day)
    fixed = LITERAL_CALL.sub(lambda found: f"{found[1]}{moment.strftime(found[2])}{found[1]}", template)
    names, calls = _asked_for(fixed)
    if calls:
        raise NotFixed(
            f"{CALL} is called with a format that is computed, so its date can't be fixed: write the format "
            "as a text into the call"
        )
    # each on a line of its own, whose line break belongs to the tag: the template begins as it did
    lines = [
        f'{{%- set {name} = "{moment.strftime(form)}" %}}\n'
        for name, form in SERVER_VARIABLES.items()
        if name in names
    ]
    return "".join([*lines, fixed])


def _asked_for(template: str) -> tuple[set[str], bool]:
    """Return the variables that the template reads before it sets them, and whether it calls the clock."""
    from jinja2 import meta, nodes

    tree = environment().parse(template)
    tested = {id(test.node) for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")}
    calls = any(name.name == CALL and id(name) not in tested for name in tree.find_all(nodes.Name))
    return meta.find_undeclared_variables(tree), calls
