"""Measures redaction: hits per kind in a file of rows, microseconds a row, and recall on 500 planted secrets.

    python benchmarks/redaction.py FILE.jsonl …

Prints kinds and numbers, never a value: the hits in a file without secrets are the false positives to look
at.
"""

import base64
import json
import random
import re
import string
import sys
import time
from collections import Counter
from pathlib import Path

from pipeline.stages.curate.rules.redaction import Redactor
from pipeline.stages.curate.rules.secrets import PLACEHOLDER

PLANTED = 500
ALPHABETS = {
    "A": string.ascii_letters + string.digits,
    "l": string.ascii_letters,
    "d": string.digits,
    "D": "123456789",
    "h": "0123456789abcdef",
    "U": string.ascii_uppercase + "234567",
    "w": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
    "a": string.ascii_lowercase + string.digits,
    "P": string.ascii_letters + string.digits + "!*-_.~",
}
# <A36> is 36 random characters of alphabet A; forms as their vendors publish them, several of a kind where it
# has several
FORMS = """
aws_access_key AKIA<U16> | ASIA<U16>
aws_secret_key <b40>
azure_storage_key AccountKey=<b86>==
github_token ghp_<A36> | gho_<A36> | ghs_<A36> | github_pat_<A22>_<A59>
gitlab_token glpat-<w20> | gldt-<w20> | glpat-<w27>.01.<a9> | glrt-<w20> | GR1348941<w20>
openai_key sk-<A20>T3BlbkFJ<A20> | sk-proj-<w74>T3BlbkFJ<w74> | sk-svcacct-<w74>T3BlbkFJ<w74> | sk-or-v1-<h64>
anthropic_key sk-ant-api03-<w93>AA | sk-ant-admin01-<w93>AA
google_api_key AIza<w35>
google_oauth ya29.<w120> | GOCSPX-<w28>
huggingface_token hf_<l34>
groq_key gsk_<A52>
replicate_token r8_<A37>
nvidia_key nvapi-<w64>
perplexity_key pplx-<A48>
xai_key xai-<A80>
langsmith_key lsv2_pt_<h32>_<h10>
slack_token xoxb-<d12>-<d13>-<A24> | xoxp-<d12>-<d12>-<d12>-<h32> | xapp-1-A<U10>-<d13>-<h64>
slack_webhook https://hooks.slack.com/services/T<U8>/B<U10>/<A24>
discord_webhook https://discord.com/api/webhooks/<D1><d17>/<w68>
stripe_key sk_live_<A24> | sk_live_51<A97> | rk_live_<A24> | sk_test_<A24> | whsec_<A32>
square_token sq0csp-<w43> | EAAA<w60> | sq0atp-<w22>
twilio_key SK<h32> | AC<h32>
sendgrid_key SG.<w22>.<w43>
mailchimp_key <h32>-us<D1>
mailgun_key key-<h32>
brevo_key xkeysib-<h64>-<A16>
npm_token npm_<A36>
pypi_token pypi-AgEIcHlwaS5vcmc<w150>
rubygems_key rubygems_<h48>
docker_token dckr_pat_<w27>
telegram_token <D1><d9>:AA<w33>
digitalocean_token dop_v1_<h64> | doo_v1_<h64>
heroku_key HRKU-<w60>
flyio_token fm2_<b200>
databricks_token dapi<h32>
vault_token hvs.<w95>
terraform_token <A14>.atlasv1.<w67>
pulumi_token pul-<h40>
planetscale_token pscale_tkn_<w43>
supabase_token sbp_<h40>
shopify_token shpat_<h32> | shpss_<h32>
linear_key lin_api_<A40>
notion_token ntn_<d11><A35> | secret_<A43>
figma_token figd_<w40>
airtable_token pat<A14>.<h64>
atlassian_token ATATT3<w186>
postman_key PMAK-<h24>-<h34>
newrelic_key NRAK-<U27>
grafana_token glsa_<A32>_<h8>
sentry_token sntryu_<h64>
dynatrace_token dt0c01.<U24>.<U64>
doppler_token dp.pt.<A43>
age_key AGE-SECRET-KEY-1<U58>
alibaba_key LTAI<A20>
onepassword_token ops_eyJ<b300>
url_password <P16>
bearer_token <w40>
jwt JWT
discord_token DISCORD
private_key PEM
"""
PEM = ("RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK")
PLACES = {  # where people paste secrets; {} is the secret
    "code": 'import os\n\nclient = Client("{}", timeout=30)\nprint(client.me())\n',
    "env": "# .env\nDEBUG=0\nSERVICE_CREDENTIAL={}\nPORT=8080\n",
    "json": '{{"host": "db1", "value": "{}", "retries": 3}}',
    "prose": "I get a 401 when I use {}, what is wrong? It worked yesterday.",
    "sentence end": "My key is {}.",
    "url": "curl -s https://api.acme.dev/v1/items?limit=10&k={}&page=2",
    "yaml": "service:\n  enabled: true\n  value: {}\n",
    "shell": "export X={}; ./run.sh --fast",
    "markdown": "Use `{}` in the *second* field.",
    "escaped": 'print("first line\\n{}\\nlast line")',
}
OWN_PLACES = {  # these are secrets by their surroundings alone
    "url_password": (
        "postgres://app:{}@db.acme.dev:5432/main",
        "https://deploy:{}@git.acme.dev/x.git",
        "redis://:{}@cache:6379/0",
    ),
    "bearer_token": (
        "curl -H 'Authorization: Bearer {}' https://api.acme.dev",
        'headers = {{"Authorization": "Bearer {}"}}',
    ),
    "aws_secret_key": (
        "AWS_SECRET_ACCESS_KEY={}\n",
        'aws_secret_access_key = "{}"',
        '{{"SecretAccessKey": "{}", "Version": 1}}',
    ),
}


def planted(count: int, seed: int) -> list[tuple[str, str, str]]:
    """(kind, secret, text that holds it): kinds and places in turn, values at random from `seed`."""
    draw = random.Random(seed)  # noqa: S311
    forms = [line.split(" ", 1) for line in FORMS.strip().splitlines()]
    rows = []
    for number in range(count):
        kind, shapes = forms[number % len(forms)]
        secret = _secret(draw.choice(shapes.split(" | ")), draw)
        place = draw.choice(OWN_PLACES.get(kind) or tuple(PLACES.values()))
        rows.append((kind, secret, place.format(secret)))
    return rows


def _secret(shape: str, draw: random.Random) -> str:
    def fill(match: re.Match[str]) -> str:
        return "".join(draw.choices(ALPHABETS[match[1]], k=int(match[2])))

    def text(shape: str) -> str:
        return re.sub(r"<(\w)(\d+)>", fill, shape)

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    if shape == "JWT":
        header = encoded(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
        claims = {"sub": text("<d10>"), "name": text("<l8>"), "iat": 1516239022}
        payload = encoded(json.dumps(claims).encode())
        return f"{header}.{payload}.{text('<w43>')}"
    if shape == "DISCORD":
        return f"{encoded(text('<D1><d17>').encode())}.{text('G<w5>')}.{text('<w38>')}"
    if shape == "PEM":
        name = draw.choice(PEM)
        body = "\n".join(text("<b64>") for _ in range(12))
        return f"-----BEGIN {name}-----\n{body}\n-----END {name}-----"
    return text(shape)


def leaks(secret: str, redacted: str, fragment: int = 6) -> bool:
    """Does the text hold `fragment` characters in a row of the secret's end (the random 24 characters)?"""
    end, redacted = secret[-24:], PLACEHOLDER.sub("", redacted)
    return any(end[i : i + fragment] in redacted for i in range(len(end) - fragment + 1))


def chat(*contents: str) -> dict:
    """A canonical row of these turns."""
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)
    ]
    return {"id": "0" * 16, "source": "a.jsonl:1", "kind": "chat", "domain": "", "messages": messages}


def recall(count: int = PLANTED, seed: int = 0) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Per kind: planted, hidden, and hidden under their own kind's name."""
    total: Counter[str] = Counter()
    hidden: Counter[str] = Counter()
    named: Counter[str] = Counter()
    redactor = Redactor(personal=())
    for kind, secret, text in planted(count, seed):
        content = redactor.rule(chat(text, "Done."), [])["messages"][0]["content"]
        total[kind] += 1
        hidden[kind] += not leaks(secret, content)
        named[kind] += f"[{kind.upper()}_1]" in content
    return total, hidden, named


def main(files: list[str]) -> None:
    """Print what was found in each file, and the recall."""
    for file in files:
        lines = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        rows = [chat(*(value for value in line.values() if isinstance(value, str))) for line in lines]
        redactor = Redactor()
        hit: Counter[str] = Counter()
        start = time.perf_counter()
        for row in rows:
            redactor.rule(row, [])
            found = redactor.take_counts()
            hit.update(dict.fromkeys(found, 1))
            hit["any"] += bool(found)
        spent = time.perf_counter() - start
        size = sum(len(turn["content"]) for row in rows for turn in row["messages"]) / len(rows)
        print(
            f"{Path(file).name}: {len(rows)} rows of {size:.0f} characters, {spent / len(rows) * 1e6:.1f} "
            "µs a row; rows with a hit, per 1,000:"
        )
        for kind, count in sorted(hit.items()):
            print(f"  {kind:20} {count:5} {1000 * count / len(rows):8.2f}")
    total, hidden, named = recall()
    count = total.total()
    print(
        f"planted: {count} secrets of {len(total)} kinds, hidden {hidden.total() / count:.1%}, by their own "
        f"kind {named.total() / count:.1%}"
    )
    for kind in total:
        if min(hidden[kind], named[kind]) < total[kind]:
            print(
                f"  {kind:20} {total[kind]} planted, {hidden[kind]} hidden, {named[kind]} by their own kind"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
