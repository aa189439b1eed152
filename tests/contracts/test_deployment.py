"""The files of deploy/ agree with the server: its paths, its port, its options and its limits."""

import re
import shlex
from pathlib import Path

import yaml
from servers import saved_vit, serving

from vitrine.commands.serve import KEY_VARIABLE, serve
from vitrine.serving.admission import Limits
from vitrine.serving.guard import OPEN_PATHS

FOLDER = Path(__file__).parents[2] / "deploy"


def manifests() -> dict[str, dict]:
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())}


def test_probes_ask_paths_that_answer_without_a_key(tmp_path: Path) -> None:
    from urllib.request import urlopen

    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    paths = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths <= OPEN_PATHS
    with serving([saved_vit(tmp_path / "model")], api_key="secret") as server:
        assert {urlopen(server.address + path, timeout=10).status for path in paths} == {200}


def test_the_pod_waits_longer_than_the_server_may_take_to_stop() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    limits = Limits()
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    longest = pause + limits.answer_seconds + 2 * limits.stop_seconds
    assert pod["terminationGracePeriodSeconds"] > longest


def test_names_and_ports_of_the_manifests_fit_together() -> None:
    by_kind = manifests()
    deployment, service, budget = (by_kind[kind] for kind in ("Deployment", "Service", "PodDisruptionBudget"))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": service["spec"]["ports"][0]["targetPort"], "containerPort": 8000}]
    assert [entry["name"] for entry in container["env"]] == [KEY_VARIABLE]
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_container_starts_a_command_that_exists_on_the_port_that_it_names() -> None:
    import inspect

    text = (FOLDER / "Containerfile").read_text()
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", text, flags=re.MULTILINE)
    words = yaml.safe_load(entry)
    assert words[:2] == ["vitrine", "serve"]
    known = inspect.signature(serve).parameters
    assert {word[2:].replace("-", "_") for word in words if word.startswith("--")} <= set(known)
    assert f"EXPOSE {known['port'].default}" in text and "USER 10001" in text
    [extras] = re.findall(r"/source\[([a-z,]+)\]", text)
    assert "serve" in extras and shlex.split(text.split("STOPSIGNAL ")[1])[0] == "SIGTERM"
