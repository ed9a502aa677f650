"""What the doctor says of machines with all kinds of defects."""

import json
import re
import resource
import shutil
import socket
import tomllib
from pathlib import Path

import msgspec
import pytest
from model_folders import SMALL, write_model
from packaging.requirements import Requirement
from planned import QWEN3_0_6B
from real_tokenizers import tokenizer_of

from asyncrl.cli.main import main
from asyncrl.core.files.cache_folder import CACHE_VARIABLE, cache_folder
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.run.doctor import building, device, examine, packages, system
from asyncrl.run.doctor.device import Probed, judge, probed
from asyncrl.run.doctor.finding import Finding, Level, fine
from asyncrl.run.doctor.model import check_model

REPOSITORY = Path(__file__).parents[2]
H100 = Probed(
    torch="2.13.0", cuda="13.0", available=True, devices=("NVIDIA H100",), capability=(9, 0), nccl="2.29.3", attention=("flash",)
)


def levels(findings):
    return {finding.topic: finding.level for finding in findings}


def test_a_version_is_compared_with_its_range():
    wanted = Requirement("torch>=2.10,<3")
    assert packages.check_version(wanted, "2.13.0+cpu", required=True) is None
    old = packages.check_version(wanted, "2.4.1", required=True)
    assert old.level is Level.PROBLEM
    assert "torch 2.4.1 is outside" in old.found
    assert "torch<3,>=2.10" in old.remedy
    assert "not installed" in packages.check_version(wanted, None, required=True).found
    assert packages.check_version(wanted, None, required=False) is None
    assert packages.check_python(">=3.11,<3.14", "3.12.4").level is Level.FINE
    assert packages.check_python(">=3.11,<3.14", "3.10.1").level is Level.PROBLEM


def test_this_machine_s_packages_are_as_declared():
    assert not [finding for finding in packages.check_packages() if finding.level is Level.PROBLEM]


@pytest.mark.parametrize(
    ("devices", "found", "unused", "topic", "level", "told"),
    [
        (0, Probed(torch="2.13.0+cpu", cuda=None), "", "GPU", Level.FINE, "none"),
        (0, Probed(torch="2.13.0+cpu", cuda=None, errors={"torchvision": "no nms"}), "", "torchvision", Level.PROBLEM, "no nms"),
        (0, Probed(torch="2.13.0+cpu", cuda=None, errors={"torchaudio": "no CUDA"}), "", "torchaudio", Level.PROBLEM, "no CUDA"),
        (2, H100, "torch's CPU build is installed", "GPU", Level.PROBLEM, "2 here, but torch's CPU build"),
        (1, Probed(torch="2.13", cuda="13.0", errors={"cuda": "driver too old"}), "", "torch", Level.PROBLEM, "driver too old"),
        (1, H100, "", "TransformerEngine", Level.NOTE, "not installed"),
    ],
)
def test_what_driver_and_torch_answer_is_compared(devices, found, unused, topic, level, told):
    finding = next(each for each in judge(devices, found, unused) if each.topic == topic)
    assert finding.level is level
    assert told in finding.found


def test_an_engine_that_is_installed_but_unusable_is_a_problem():
    told = {"torch": "2.13.0", "cuda": "13.0", "available": True, "devices": ["a"], "capability": [8, 0], "nccl": "2"}
    broken = probed(told | {"errors": {"transformer_engine.pytorch": "undefined symbol: _ZN"}})
    found = {finding.topic: finding for finding in judge(1, broken, "")}
    assert found["TransformerEngine"].level is Level.PROBLEM
    assert "undefined symbol" in found["TransformerEngine"].found
    assert "--no-build-isolation" in found["TransformerEngine"].remedy
    assert found["GPU"].level is Level.NOTE  # no fp8
    working = probed(told | {"transformer_engine.pytorch": "2.11.0"})
    assert levels(judge(1, working, ""))["TransformerEngine"] is Level.FINE
    newer = probed(told | {"transformer_engine.pytorch": "2.20.0"})
    assert levels(judge(1, newer, ""))["TransformerEngine"] is Level.PROBLEM


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        ("570.86.15", "update NVIDIA's driver, 570.86.15: CUDA 13.0 needs 580 or newer"),
        ("580.95.05", "driver is 580 or newer, as CUDA 13.0 needs"),
        ("", "driver is 580 or newer, as CUDA 13.0 needs"),
    ],
)
def test_the_least_driver_is_told_where_torch_finds_no_gpu(driver, told):
    blind = msgspec.structs.replace(H100, available=False)
    (finding,) = judge(1, blind, "", driver)
    assert told in finding.remedy


def test_a_machine_without_compiler_or_headers_is_told_what_triton_and_the_engine_s_build_need(monkeypatch, tmp_path):
    tools, headers = tmp_path / "bin", tmp_path / "include"
    tools.mkdir()
    headers.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(headers)})
    (finding,) = building.check_compiler()
    assert finding.level is Level.PROBLEM
    assert "a C compiler (gcc) and Python's headers" in finding.found
    assert "-dev" in finding.remedy
    assert building.lacking_to_build_engine([headers]) == ["nvcc (CUDA's toolkit)", "g++", "cudnn.h", "nccl.h"]
    for name in ("gcc", "g++", "nvcc"):
        (tools / name).write_text("")
        (tools / name).chmod(0o755)
    (headers / "Python.h").touch()
    monkeypatch.setenv("CPATH", str(headers))
    assert [finding.level for finding in building.check_compiler()] == [Level.FINE]
    (headers / "cudnn.h").touch()
    assert building.lacking_to_build_engine() == ["nccl.h"]


def test_the_gpu_extra_is_installed_without_building_anything_against_another_torch():
    """In isolation, pip would build TransformerEngine's part for torch against the newest torch."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [Requirement(line).name for line in extras["gpu"]] == ["vllm"]


def test_the_page_for_gpu_owners_names_what_the_doctor_looks_for():
    page = (REPOSITORY / "docs" / "how-to" / "gpu.md").read_text()
    least = max(device.LEAST_DRIVER.values())
    for word in (
        building.ENGINE,
        "--no-build-isolation",
        "--no-cache-dir",
        "nvcc",
        "cudnn.h",
        "nccl.h",
        "gcc",
        "Python.h",
        f"driver {least}",
    ):
        assert word in page, word


def test_the_probe_runs_here():
    findings = list(device.check_devices())
    assert findings
    assert all(finding.level is Level.FINE for finding in findings if "CPU" in finding.found)


def test_few_descriptors_and_a_full_memory_file_system_are_problems(monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 2048))
    (few,) = system.check_descriptors()
    assert few.level is Level.PROBLEM
    assert "ulimit -n 4096" in few.remedy
    (tmp_path / "asyncrl-old-rank0-even").touch()
    monkeypatch.setattr(system, "memory_file_system", lambda: tmp_path)
    findings = list(system.check_shared_memory())
    assert [finding.level for finding in findings] == [Level.NOTE, Level.NOTE]
    assert "asyncrl-old-rank0-even" in findings[1].found


def test_a_cluster_that_does_not_answer_and_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert levels(system.check_ray()) == {"Ray": Level.FINE}
    assert levels(system.check_ray()) == {"Ray": Level.PROBLEM}
    monkeypatch.setattr("os.access", lambda *_: False)
    assert levels(system.check_folders(tmp_path / "new" / "runs"))["run folder"] is Level.PROBLEM


def test_the_cache_that_a_run_uses_is_looked_at(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    (cache,) = [finding for finding in system.check_folders(tmp_path) if finding.topic == "cache"]
    assert (cache.level, str(tmp_path) in cache.found) == (Level.FINE, True)


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch, tmp_path):
    for variable in (CACHE_VARIABLE, "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)  # a number without a name, as in many containers
    with pytest.raises(OSError, match=rf"user 4000000 has no home folder .* set HOME or {CACHE_VARIABLE}"):
        cache_folder()
    assert levels(system.check_folders(tmp_path))["cache"] is Level.PROBLEM


def model(folder, **keys):
    return ModelConfig(path=str(folder), **keys)


def test_weights_that_are_cut_off_are_a_problem(tmp_path):
    weights = write_model(tmp_path, SMALL) / "model.safetensors"
    assert not [finding for finding in check_model(model(tmp_path)) if finding.level is not Level.FINE]
    weights.write_bytes(weights.read_bytes()[:-2])
    (finding,) = [finding for finding in check_model(model(tmp_path)) if finding.level is not Level.FINE]
    assert "is not a whole safetensors file" in str(finding)


def test_a_template_is_looked_at_as_a_recipe_would_have_it(tmp_path, capsys):
    folder = write_model(tmp_path / "model", SMALL)
    own = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(own + "{{ mood }}")
    said = (
        main(["doctor", "--model", str(folder), "--chat-template-kwargs", '{"mood": "glad"}', "--json"]),
        capsys.readouterr().out,
    )
    assert "model.chat_template_kwargs can set mood ('glad' here)" in said[1]
    (finding,) = [each for each in check_model(model(folder, chat_template_kwargs={"moo": 1})) if each.level is Level.PROBLEM]
    assert (finding.topic, "reads no variable 'moo'; it reads mood" in finding.found) == ("chat template", True)
    another = check_model(model(folder, chat_template=own.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>")))
    assert not [each for each in another if "can set" in each.found]
    with pytest.raises(SystemExit):
        main(["doctor", "--chat-template-kwargs", "mood"])


@pytest.mark.parametrize(
    ("changes", "topic", "told"),
    [
        ({}, "model", "Qwen3ForCausalLM, about 114,688 parameters"),
        ({}, "weights", "1 safetensors file, whole: 24 tensors, "),
        ({}, "output layer", "tied to the embedding"),
        ({}, "vocabulary", "; 512 embeddings"),
        ({}, "turns", "and end at <|im_end|>"),
        ({}, "prompt", "a system message: reaches it; tools: reaches it"),
        ({}, "thoughts", "has no <think>"),
        ({}, "tool calls", "auto is hermes, because its chat template has <tool_call>"),
        ({"tie_word_embeddings": False}, "output layer", "lm_head.weight, a layer of its own"),
        ({"hidden_act": "gelu"}, "model", "with hidden_act gelu is not supported"),
        ({"vocab_size": 256}, "vocabulary", "and the model has embeddings of 256"),
        ({"architectures": ["OtherForCausalLM"]}, "model", "architecture OtherForCausalLM is not supported"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantised weights",
            r"quantised (gptq), and transformers",
        ),
    ],
)
def test_a_model_is_told_in_parts_whatever_is_wrong_with_one(tmp_path, changes, topic, told):
    found = {each.topic: each for each in check_model(model(write_model(tmp_path, SMALL | changes)))}
    assert told in found[topic].found
    assert {"model", "turns", "prompt", "thoughts", "tool calls", "conversations"} <= found.keys()
    assert found.keys() & {"weights", "quantised weights"}
    assert found.keys() & {"vocabulary"}


def test_a_real_tokenizer_is_looked_at_beside_the_machine(tmp_path, capsys):
    write_model(tmp_path, QWEN3_0_6B)
    for file in tokenizer_of("qwen3").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    main(["doctor", "--model", str(tmp_path), "--json"])
    found = {each["topic"]: each["found"] for each in json.loads(capsys.readouterr().out)}
    assert {"packages", "Ray"} < found.keys()
    assert found["vocabulary"] == "151,669 tokens, the last is 151,668; 151,936 embeddings"
    assert found["thoughts"].startswith("the template has <think>, and without a model.reasoning_parser")


def test_a_folder_that_holds_no_model_is_a_problem(tmp_path):
    (finding,) = check_model(model(tmp_path))
    assert finding.level is Level.PROBLEM


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on():
    def breaks():
        yield fine("ports", "open")
        raise ZeroDivisionError("here")

    findings = list(examine.contained("ports", breaks))
    assert [finding.level for finding in findings] == [Level.FINE, Level.PROBLEM]
    assert "ZeroDivisionError: here" in findings[1].found
    assert not examine.is_healthy(findings)


@pytest.mark.parametrize(("level", "code"), [(Level.NOTE, 0), (Level.PROBLEM, 1)])
def test_the_command_s_exit_code_tells_whether_there_is_a_problem(monkeypatch, capsys, level, code):
    found = [Finding("ports", level, "closed", "open them")]
    monkeypatch.setattr(examine, "examine", lambda *_: iter(found))
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "ports", "level": str(level), "found": "closed", "remedy": "open them"}
    ]
    assert main(["doctor"]) == code
    assert "open them" in capsys.readouterr().out


def test_what_a_remedy_sends_people_to_read_is_there():
    """Of every sentence in the code that names a page, and a section of it."""
    named = set()
    for folder in ("asyncrl", "generators", "buffers", "learners"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            text = file.read_text()
            named |= {(page, "") for page in re.findall(r"docs/([\w/-]+\.md)", text)}
            named |= {(page, section) for section, page in re.findall(r'"([^"\n]+)" in docs/([\w/-]+\.md)', text)}
    assert ("reference/models.md", "What a chat template must do") in named
    for page, section in named:
        assert re.search(rf"^#+ {re.escape(section)}", (REPOSITORY / "docs" / page).read_text(), re.MULTILINE), (page, section)
