"""What a prompt's recorded candidates stand for."""

from __future__ import annotations

from typing import Final

DRAWS: Final = {
    "without": "draws without replacement: a pool is a sample of the policy",
    "with": "draws with replacement: the pool is the policy",
}
