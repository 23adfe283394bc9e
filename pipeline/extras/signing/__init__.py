"""`quench ship --sign` and `--check --key`: the signature of a bundle."""

from pipeline.core.extras import Extra

EXTRA = Extra(
    page="docs/shipping.md",
    provides={"ship --sign": "signature", "ship --key": "signature"},
    pip="signing",
    imports="model_signing",
)
