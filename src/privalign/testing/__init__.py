"""What users test their own back-ends with: contract suites to inherit from, a fake OpenAI server, a ledger that nobody keeps.

```python
class TestMine(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return MyPolicy()
```

It needs pytest: `privalign[testing]`.
"""

from privalign.testing.fake_openai import FakeOpenAI
from privalign.testing.ledgers import passing_ledger
from privalign.testing.policies import PolicyContract
from privalign.testing.rewards import RewardContract

__all__ = ["FakeOpenAI", "PolicyContract", "RewardContract", "passing_ledger"]
