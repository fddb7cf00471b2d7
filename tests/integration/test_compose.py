"""docker-compose.yml is valid, pins its images, listens on loopback only, and mounts existing files."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import CONFIGURATION, NatsCluster

from pointsman.authoring.agent import Agent
from pointsman_schemas.team import Team

_ROOT = Path(__file__).parents[2]
_FILE = _ROOT / "docker-compose.yml"
_COMPOSE: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text())
_SERVICES, _VOLUMES = _COMPOSE["services"], _COMPOSE["volumes"]
_NODES = [name for name in _SERVICES if name.startswith("nats-")]
_OURS = [name for name, service in _SERVICES.items() if "build" in service]


def test_the_file_fits_the_compose_specification() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(_FILE)],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", _SERVICES)
def test_every_image_names_a_full_version(name: str) -> None:
    assert re.search(r":\d+\.\d+\.\d+(-[a-z0-9.]+)?$", _SERVICES[name]["image"])


def test_the_dockerfile_names_full_versions_and_is_not_run_by_root() -> None:
    text = (_ROOT / "Dockerfile").read_text()

    assert all(re.search(r":\d+\.\d+\.\d+-", line) for line in re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    assert re.findall(r"^USER (\d+)$", text, re.MULTILINE)[-1] != "0"


@pytest.mark.parametrize("name", _SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in _SERVICES[name].get("ports", []))


def test_no_two_services_publish_the_same_port() -> None:
    published = [port.rsplit(":", 1)[0] for service in _SERVICES.values() for port in service.get("ports", [])]

    assert len(published) == len(set(published))


@pytest.mark.parametrize("name", _SERVICES)
def test_every_service_says_whether_it_is_healthy(name: str) -> None:
    assert _SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", _SERVICES)
def test_every_service_comes_back_by_itself(name: str) -> None:
    assert _SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", _OURS)
def test_our_processes_wait_for_a_healthy_cluster_and_keep_three_copies(name: str) -> None:
    service = _SERVICES[name]

    assert service["depends_on"] == {node: {"condition": "service_healthy"} for node in _NODES}
    assert service["environment"]["POINTSMAN_URL"] == ",".join(f"nats://{node}:4222" for node in _NODES)
    assert service["environment"]["POINTSMAN_REPLICAS"] == "3"
    assert service["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://jaeger:4318"


@pytest.mark.parametrize("name", _OURS)
def test_our_processes_are_asked_whether_they_are_ready_where_they_answer(name: str) -> None:
    service = _SERVICES[name]

    port = service["environment"]["POINTSMAN_HEALTH_PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in service["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", _OURS)
def test_our_processes_write_to_volumes_and_to_tmp_only(name: str) -> None:
    service = _SERVICES[name]

    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    written = service.get("volumes", [])
    assert all(volume.split(":")[0] in _VOLUMES for volume in written)
    assert service["environment"].get("POINTSMAN_CUSTOMER_SERVICE_DATA") in {None, *(v.split(":")[1] for v in written)}


@pytest.mark.parametrize("name", _NODES)
def test_every_node_mounts_the_tested_configuration_and_a_volume_of_its_own(name: str) -> None:
    configuration, store = (volume.split(":") for volume in _SERVICES[name]["volumes"])

    assert (_ROOT / configuration[0]).resolve() == CONFIGURATION.resolve()
    assert configuration[1] == _SERVICES[name]["command"][-1]
    assert store == [name, _SERVICES[name]["environment"]["NATS_STORE"]]


@pytest.mark.parametrize("name", _NODES)
def test_every_node_gets_exactly_the_variables_its_configuration_reads(name: str, tmp_path: Path) -> None:
    lines = [line.split("#")[0] for line in CONFIGURATION.read_text().splitlines()]
    read = set(re.findall(r"\$(\w+)", "\n".join(lines)))

    assert set(_SERVICES[name]["environment"]) == read
    assert set(NatsCluster(tmp_path).environment(0)) == read


def test_there_are_three_nodes_and_each_has_its_own_name() -> None:
    assert [_SERVICES[name]["environment"]["NATS_NODE"] for name in _NODES] == ["nats-1", "nats-2", "nats-3"]


def test_the_dashboard_is_not_reached_without_a_token() -> None:
    service = _SERVICES["dashboard"]

    assert service["command"][0] == "dashboard"
    assert service["environment"]["POINTSMAN_DASHBOARD_TOKEN"].startswith("${POINTSMAN_DASHBOARD_TOKEN:?")
    assert service["ports"] == ["127.0.0.1:8400:8400"]


def test_the_gateway_demands_a_key() -> None:
    service = _SERVICES["gateway"]

    assert service["command"] == ["gateway"]
    assert service["environment"]["POINTSMAN_GATEWAY_REQUIRE_KEY"] == "true"
    assert service["ports"] == ["127.0.0.1:8410:8410"]


def test_webhooks_reach_public_addresses_only() -> None:
    service = _SERVICES["webhooks"]

    assert service["command"] == ["webhooks", "run"]
    assert "POINTSMAN_WEBHOOK_PRIVATE_NETWORKS" not in service["environment"]
    assert "ports" not in service


@pytest.mark.parametrize("name", [name for name in _OURS if name not in ("dashboard", "gateway", "webhooks")])
def test_every_command_names_something_that_exists(name: str) -> None:
    kind, target = _SERVICES[name]["command"]
    module, attribute = target.split(":")

    assert isinstance(getattr(import_module(module), attribute), {"supervisor": Team, "worker": Agent}[kind])


def test_the_image_is_built_from_the_packages_and_nothing_else() -> None:
    lines = (_ROOT / ".dockerignore").read_text().splitlines()

    assert next(line for line in lines if not line.startswith("#")) == "*"
    for kept in (line[1:] for line in lines if line.startswith("!")):
        assert (_ROOT / kept).exists(), kept
