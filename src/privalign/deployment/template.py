"""A deployment file to begin with: it runs on the embedded model, and says what else there is."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = """\
# privalign deployment. `privalign config check` says what is wrong with it, `privalign ask` answers from it.
# Secrets stand here only by reference: api_key = "env:NAME" or "file:PATH".

[ledger]
url = "sqlite:///privalign.db"            # several gateways: "postgresql+psycopg://user@host/database"

[accounts.prefs]                          # one protected preference data set; its terms never change
epsilon = 8.0                             # of all answers together
delta = 1e-6
rule = "renyi"                            # renyi | two-counter | fsrc | basic
relation = "replace"                      # add-remove | replace | flip: how the records of one person, by name, may differ
records_per_person = 1
# dataset = "prefs"                       # its id, by default the account's name, as reward fit --dataset names it;
                                          # a second account over it says also = ["prefs"]

[policies.local]
independent_of_accounts = {confirmed}     # confirm: not tuned, prompted or cached on protected data
kind = "llamacpp"                         # openai | transformers | llamacpp | recorded
# llamacpp without a model is the embedded small one; with model = "model.gguf" any other
# kind = "openai": base_url = "http://127.0.0.1:8000/v1", model = "...", api_key = "env:OPENAI_API_KEY"
slots = 16                                # candidates decoded together
context = 512                             # tokens of one candidate, the prompt included
parameters = {{ max_tokens = 64, temperature = 1.0 }}

[rewards.learned]
kind = "head"                             # vllm-classify | vllm-score | vllm-pooling | sglang | tei | tei-rerank |
certificate = "head.json"                 # transformers | head | ensemble
# served rewards: base_url, model, range = [0.0, 1.0] (known without protected scores; or see `privalign reward range`) and
# sensitivity = "range" | {{ certificate = "c.json" }} | {{ declared = 0.01, reason = "..." }}

[models.aligned]                          # what is asked for by name
policy = "local"
reward = "learned"
account = "prefs"
mechanism = {{ kind = "privbon", n = 16, epsilon = 0.5 }}     # noise for this ε a query; or scale = ...
# mechanism = {{ kind = "privitp", n = 16, beta = 0.05, sigma_x = 0.5, sigma_z = 0.5 }}
max_tokens = 256                          # of one answer; requests for more are refused
on_exhausted = "refuse"                   # or "base": answer from the base policy, free, and say so

# [gateway]                               # of `privalign serve`
# requests_per_minute = 6000.0            # of one key
# show_budget = false                     # hide what remains from clients
# secure_cookies = true                   # where a TLS proxy stands in front
# trusted_proxies = ["127.0.0.1"]         # whose X-Forwarded-For names who tries to log in
"""


def draft(*, independent: bool) -> str:
    """The text of the file.

    Args:
        independent: whether it confirms that the policy does not depend on the protected data.
    """
    return TEMPLATE.format(confirmed="true " if independent else "false")
