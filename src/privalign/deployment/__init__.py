"""The deployment file: TOML, parsed once into frozen objects.

`load` reads and checks; nothing is contacted and no secret is read. `Deployment.serve` builds what one model needs.
Secrets stand in the file only by reference: `env:NAME` or `file:PATH`.
"""

from privalign.deployment.deployment import AccountTerms, Deployment, ModelSpec, load
from privalign.deployment.policies import PolicySpec
from privalign.deployment.rewards import RewardSpec

__all__ = ["AccountTerms", "Deployment", "ModelSpec", "PolicySpec", "RewardSpec", "load"]
