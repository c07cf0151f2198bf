"""The one path from a prompt to a released answer: reserve, draw, score, select, settle, respond.

Order is what makes it private: the worst case is debited before the first score is read, a query is released only after
its debit is settled, and whatever goes wrong once a score may have been read leaves the debit spent. Errors after that
point are one generic line: why a scorer failed may depend on the protected data. The clock tells no more than they do
(`clock`), and nothing that is raised leads back to a score (`failures`).
"""

from privalign.aligner.admission import Admission, How
from privalign.aligner.aligner import Aligner
from privalign.aligner.async_ledger import AnsweredElsewhere
from privalign.aligner.candidates import NothingToSelect
from privalign.aligner.failures import Part, ScorerPaused, ScoringFailed
from privalign.aligner.model import Performance, ServedModel

__all__ = [
    "Admission",
    "Aligner",
    "AnsweredElsewhere",
    "How",
    "NothingToSelect",
    "Part",
    "Performance",
    "ScorerPaused",
    "ScoringFailed",
    "ServedModel",
]
