"""Page of training labels: rows as colored tokens, trained against masked, and the statistics of the tokens.

`render_labels_page` fills `templates/labels.html.jinja`. The numbers come from `reports/labels.json`, the
rows from the tokens that stage `preprocess` wrote.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipeline.chat.tokens import IGNORED
from pipeline.config.methods import unused_sentences
from pipeline.core.text import count, percent, plural
from pipeline.pages.drawings import histogram
from pipeline.pages.templating import fill
from pipeline.stages.preprocess.rewards import sentences
from pipeline.stages.preprocess.tables import Written

if TYPE_CHECKING:
    from markupsafe import Markup

# kind of row: its title, and what to look for in it
KINDS = {
    "one exchange": ("One exchange", "The answer and its end of turn are trained, the question is not."),
    "several turns": ("Several turns", "Every answer is trained, each after the turns before it."),
    "reasoning": ("Reasoning", "What the model thinks is trained with what it says."),
    "tools": ("Tools", "Calls are trained; the tools' descriptions and their results are not."),
    "untrained turn": ("With an untrained turn", "A turn with train: false is read, not learned."),
    "unfolded": (
        "Unfolded",
        "The template shows earlier turns differently once more turns follow, so each answer is learned in "
        "a text of its own.",
    ),
    "text": ("Text", "Segments without a template; those to be trained are."),
    "preference": (
        "Preference",
        "Of a pair the chosen and the rejected answer are scored, the prompt is read.",
    ),
    "feedback": ("Feedback", "The last answer, which has a thumb up or down, is scored."),
}
LONGEST = 600  # tokens shown of a sequence
VISIBLE = str.maketrans({" ": "<u>·</u>", "\t": "<u>→</u>\t", "\n": "<u>↵</u>\n"})  # visible white space
LITTLE = 0.02  # Trained share of the tokens below which reading the rest is hardly worth it.


def render_labels_page(stats: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as one string of HTML."""
    train = stats["splits"]["train"]
    kinds = [
        {
            "title": title,
            "tells": tells,
            "rows": train["kinds"].get(kind, 0),
            "samples": [_shown(sample) for sample in samples if sample["kind"] == kind],
        }
        for kind, (title, tells) in KINDS.items()
        if train["kinds"].get(kind)
    ]
    return fill(
        "labels.html.jinja",
        stats=stats,
        splits=stats["splits"],
        train=train,
        kinds=kinds,
        title=f"{percent(stats['trained_share'])} of the tokens are trained",
        verdict=_verdict(stats),
        notes=_notes(stats),
        drawing=histogram("lengths", "Sequences by length in tokens", train["lengths"]),
        rewards=_rewards(train["rewards"]),
        rejects=_rejects(stats),
    )


def _verdict(stats: Mapping[str, Any]) -> str:
    """Return the outcome of the rows, in a sentence or two."""
    train = stats["splits"]["train"]
    sentences = [f"{plural(train['rows'], 'training row')} with {plural(train['tokens'], 'token')}"]
    if stats["packing"]:
        packed = plural(train["packed_rows"], "packed row")
        sentences[0] += (
            f" are in {packed} of up to {count(stats['max_length'])}, {percent(train['packing_density'])} "
            "full"
        )
    unfolded = train["kinds"].get("unfolded")
    if unfolded:
        sentences.append(
            f"{plural(unfolded, 'row is', 'rows are')} unfolded into one sequence for each answer"
        )
    left_out = sum(sum(split["rejected"].values()) for split in stats["splits"].values())
    sentences.append(
        f"{plural(left_out, 'row was', 'rows were')} left out" if left_out else "No row was left out"
    )
    sentences.append(
        "What was written was read back and decoded: in every row exactly the assistant's text and its ends "
        "of turn are trained"
    )
    return ". ".join(sentences) + "."


def _notes(stats: Mapping[str, Any]) -> list[str]:
    """Return what the user should look at before training."""
    train = stats["splits"]["train"]
    rejected = sum(train["rejected"].values())
    notes = []
    if rejected * 5 > train["rows_read"]:
        notes.append(
            f"{percent(rejected / train['rows_read'])} of the training rows were left out: see why below."
        )
    notes += unused_sentences(unused(stats), stats["method"])
    if "never_packed" in stats:
        notes.append(f"rows are not packed: {stats['never_packed']}.")
    if stats["trained_share"] < LITTLE:
        notes.append(
            "hardly anything of what is read is trained: shorten what comes before the answers, or expect a "
            "slow start."
        )
    return notes


def unused(stats: Mapping[str, Any]) -> Counter[str]:
    """Count the rows of all splits that the method doesn't learn from, by kind."""
    return sum((Counter(split["untrained"]) for split in stats["splits"].values()), Counter[str]())


def _rewards(rewards: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the distribution of rewards and weights as drawings, or None if no row has a reward."""
    if not rewards["sequences"]:
        return None
    drawings = {
        name: histogram(name, f"Training sequences by {what}", rewards[name], ("g", ".3g"))
        for name, what in (("rewards", "reward"), ("weights", "weight"))
    }
    return {**rewards, "drawings": drawings, "sentences": sentences(rewards)}


def _rejects(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasons of all splits, commonest first, each with its number of rows and examples."""
    reasons: dict[str, dict[str, Any]] = {}
    for name, split in stats["splits"].items():
        for reason, rows in split["rejected"].items():
            reject = reasons.setdefault(reason, {"reason": reason, "rows": 0, "examples": []})
            reject["rows"] += rows
            reject["examples"] += [{"split": name, **example} for example in split["rejects"].get(reason, ())]
    return sorted(reasons.values(), key=lambda reject: (-reject["rows"], reject["reason"]))


def _shown(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with its tokens as HTML, and the number of tokens that are not shown."""
    return {
        **sample,
        "html": tokens_html(sample["pieces"]),
        "more": sample["tokens"] - sum(piece["tokens"] for piece in sample["pieces"]),
    }


def tokens_html(pieces: Sequence[Mapping[str, Any]]) -> "Markup":
    """Return tokens as escaped HTML.

    `<mark>` is trained, `<i>` a token, `<b>` a control token, `<u>` white space.
    """
    from markupsafe import Markup, escape

    def token(piece: Mapping[str, Any]) -> str:
        mark = "b" if piece["special"] else "i"
        title = f' title="{piece["tokens"]} tokens"' if piece["tokens"] > 1 else ""
        return f"<{mark}{title}>{str(escape(piece['text'])).translate(VISIBLE)}</{mark}>"

    stretches = groupby(pieces, key=lambda piece: piece["trained"])
    parts = ((trained, "".join(map(token, stretch))) for trained, stretch in stretches)
    html = "".join(f"<mark>{part}</mark>" if trained else part for trained, part in parts)
    return Markup(html)  # noqa: S704 (the text in it is escaped, the rest is ours)


def sample(kind: str, name: str, written: Written, plain: Any) -> dict[str, Any]:
    """Return this name's sequence, read back: kind, name, counts, pieces of its first `LONGEST` tokens."""
    sequence = written.take(name)
    assert sequence is not None, name
    ids, labels = (part.tolist() for part in sequence)
    trained = [label != IGNORED for label in labels]
    return {
        "kind": kind,
        "row": name,
        "tokens": len(ids),
        "trained": sum(trained),
        "pieces": pieces(ids[:LONGEST], trained[:LONGEST], plain),
    }


def pieces(ids: list[int], trained: list[bool], plain: Any) -> list[dict[str, Any]]:
    """Return {"text", "trained", "special", "tokens"} per token, or per several that make one character."""
    special = set(plain.get_added_tokens_decoder())
    start = 0
    texts = []
    for end in range(1, len(ids) + 1):
        text: str = plain.decode(ids[start:end], skip_special_tokens=False)
        if (
            end == len(ids)
            or trained[end] != trained[start]
            or ids[end] in special
            or "\N{REPLACEMENT CHARACTER}" not in text
        ):
            texts.append(
                {
                    "text": text,
                    "trained": trained[start],
                    "special": ids[start] in special,
                    "tokens": end - start,
                }
            )
            start = end
    return texts
