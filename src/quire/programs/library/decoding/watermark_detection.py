"""Watermark detection: is this text marked with this key?

    quire run watermark_detection -- "1. yellow
    2. black
    3. orange
    4. purple
    5. pink
    6. brown
    7. gray
    8. mango
    9.despfric"
    quire run watermark_detection -- "1. yellow
    2. black
    3. orange
    4. purple
    5. pink
    6. brown
    7. gray
    8. mango
    9.despfric" another-key

It tokenizes the text and counts green tokens; the model computes nothing. ``z``: by how many
standard deviations they exceed chance; an unmarked text exceeds 4 once in 30,000. Trait: Tokenize.
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.library.decoding.watermarking import Watermark
from quire.programs.sdk import inferlet

PROOF = 4.0


@inferlet("watermark_detection", traits={"Tokenize": 1}, restartable=True)
async def watermark_detection(api: Api, text: str, key: str = "quire") -> dict[str, object]:
    """Report whether a text has the watermark of a key, and how certain that is."""
    tokens = api.tokenize(text)
    z = Watermark(key).z_score(tokens)
    return {"is_marked": z >= PROOF, "z": round(z, 2), "num_tokens": len(tokens)}
