"""A real vLLM engine under a real worker: one start for the whole module."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from chat_tokenizers import make_tokenizer
from safetensors.torch import load_file
from small_engine import CONFIG, NO_STOP, UNENDING, add_noise, distributions, perturb, publish, small_model, started
from small_mixture import small_mixture
from transformers import Qwen3ForCausalLM
from vllm.v1.engine import EngineCoreOutput

from asyncrl.core.errors import ComponentFailed, ProcessDied, WeightMismatch
from asyncrl.core.publication import PREPARE, Publication, Shard
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.trajectory import Sampling
from asyncrl.episodes.writer import decoder
from asyncrl.generators.completion import Completion
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import CPU_BLOCK_TOKENS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(660)]  # an engine may take ten minutes to start


SHARING_EXPERTS = msgspec.structs.replace(CONFIG, tensor_parallel=2, engine={"enable_expert_parallel": True})


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return small_model()


@pytest.fixture(scope="module")
def folder(model: Qwen3ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
async def engine(folder: Path) -> AsyncIterator[VllmEngine]:
    engine = await started(folder)
    yield engine
    await engine.close()


def shards(model: Qwen3ForCausalLM) -> list[Shard]:
    named = dict(model.named_parameters())
    return [Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in named.items()]


def flip_bit(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)


def erase(file: Path) -> None:
    with file.open("r+b") as content:
        content.write(bytes(file.stat().st_size))


def sample(
    engine: VllmEngine, prompt: list[int], tokens: int, temperature: float = 1.0, **truncation: float
) -> asyncio.Task[Completion]:
    sampling = Sampling(temperature, **truncation)
    return asyncio.create_task(engine.generate(prompt, max_tokens=tokens, sampling=sampling, stop_token_ids=(NO_STOP,)))


async def received(engine: VllmEngine, requests: int) -> None:
    """Wait until the engine, which is paused, has got this many requests."""
    load = await engine.report_load()
    while load.running + load.waiting < requests:
        load = await engine.report_load()


async def ended(requests: list[asyncio.Task[Completion]]) -> None:
    """Cancel requests that are running."""
    for request in requests:
        assert request.cancel()
    await asyncio.wait(requests)
    assert all(request.cancelled() for request in requests)


def reference_logprobs(model: Qwen3ForCausalLM, prompt: list[int], sampled: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    whole = distributions(model, prompt, sampled.tolist(), temperature)
    return whole.gather(1, torch.tensor(sampled.tolist())[:, None])[:, 0].numpy()


def kept(whole: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """bool [T, vocabulary]: the tokens that min-p, top-k and top-p keep, in the order in which vLLM applies them."""
    probabilities = whole.double().exp()
    mask = probabilities >= sampling.min_p * probabilities.amax(-1, keepdim=True)
    ranked, order = torch.where(mask, probabilities, 0.0).sort(-1, descending=True)
    if sampling.top_k:
        ranked[:, sampling.top_k :] = 0.0
    ranked = ranked / ranked.sum(-1, keepdim=True)
    before = ranked.cumsum(-1) - ranked
    wanted = (before < sampling.top_p) & (ranked > 0)
    return torch.zeros_like(mask).scatter(1, order, wanted)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probabilities_are_of_the_distribution_that_was_sampled(engine, model, temperature: float) -> None:
    prompt = list(range(5, 45))
    completion = await sample(engine, prompt, 30, temperature)
    expected = reference_logprobs(model, prompt, completion.token_ids, temperature)
    assert np.abs(completion.logprobs - expected).max() < 1e-3
    assert [span.version for span in completion.spans] == [0]
    assert distributions(model, prompt, completion.token_ids.tolist())[:, NO_STOP].max() < -50, "requests do not end by chance"


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0, top_p=0.7), Sampling(0.8, top_k=5), Sampling(1.2, min_p=0.2), Sampling(0.9, 0.8, 12, 0.05)],
    ids=str,
)
async def test_truncated_sampling_reports_the_renormalised_distribution_it_sampled_from(engine, model, sampling) -> None:
    """Beside a greedy request and one that is not truncated: a batch is sampled together."""
    prompt = list(range(5, 45))
    truncation = {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p}
    drawn = [sample(engine, prompt, 30, sampling.temperature, **truncation) for _ in range(8)]
    plain, greedy = sample(engine, prompt, 30), sample(engine, prompt, 30, 0.0)
    shares = []
    for each in drawn:
        completion = await each
        whole = distributions(model, prompt, completion.token_ids.tolist(), sampling.temperature)
        mask, tokens = kept(whole, sampling), torch.tensor(completion.token_ids.tolist())[:, None]
        assert mask.gather(1, tokens).all(), "every sampled token lies in the kept set"
        renormalised = torch.log_softmax(whole.masked_fill(~mask, -torch.inf), -1).gather(1, tokens)[:, 0].numpy()
        assert np.abs(completion.logprobs - renormalised).max() < 2e-3
        shares.append(whole.exp().where(mask, 0.0).sum(-1))
    assert torch.cat(shares).mean() < 0.97, "the kept set is smaller than the vocabulary, or this shows nothing"
    assert np.abs((await plain).logprobs - reference_logprobs(model, prompt, (await plain).token_ids)).max() < 1e-3
    assert np.abs((await greedy).logprobs - reference_logprobs(model, prompt, (await greedy).token_ids)).max() < 1e-3


async def test_a_turn_finds_the_full_blocks_of_the_turns_before(engine, model, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, cached = engine.llm.output_processor, []
    read = reader.process_outputs

    def noted(outputs: list[EngineCoreOutput], *arguments: object, **options: object) -> object:
        cached.extend(output.prefill_stats.num_cached_tokens for output in outputs if output.prefill_stats)
        return read(outputs, *arguments, **options)

    monkeypatch.setattr(reader, "process_outputs", noted)
    tokens, computed = list(range(50, 88)), []
    with engine.episode() as sampler:
        for length in (7, 1, 30, 12):
            turn = await sampler.generate(tokens, max_tokens=length, sampling=Sampling(1.0), stop_token_ids=(NO_STOP,))
            expected = reference_logprobs(model, tokens, turn.token_ids)
            assert np.abs(turn.logprobs - expected).max() < 1e-3
            computed.append(len(tokens) + length - 1)
            tokens += [*turn.token_ids.tolist(), 6, 7, 8]
    assert cached[1:] == [each // CPU_BLOCK_TOKENS * CPU_BLOCK_TOKENS for each in computed[:-1]]


async def test_a_stop_token_ends_the_completion_and_is_part_of_it(engine: VllmEngine) -> None:
    prompt = list(range(5, 45))
    (first,) = (await sample(engine, prompt, 1, 0.0)).token_ids.tolist()
    stopped = await engine.generate(prompt, max_tokens=9, sampling=Sampling(0.0), stop_token_ids=(first,))
    assert (stopped.token_ids.tolist(), stopped.finished_by_stop) == ([first], True)


async def test_a_turn_ends_at_a_text_with_the_tokens_that_it_has_without(engine: VllmEngine, folder: Path) -> None:
    prompt, length = list(range(5, 45)), 24
    free = await sample(engine, prompt, length, 0.0)
    decode = decoder(folder)
    for end in (3, 9, 16):
        said = decode(free.token_ids[:end].tolist())
        at = next(place for place in range(1, end + 1) if said[-3:] in decode(free.token_ids[:place].tolist()))
        for stop in ((said[-3:], "never said"), (int(free.token_ids[at - 1]),)):
            stopped = await engine.generate(
                prompt, max_tokens=length, sampling=Sampling(0.0, stop=stop), stop_token_ids=(NO_STOP,)
            )
            first = at if isinstance(stop[0], str) else free.token_ids.tolist().index(stop[0]) + 1
            assert stopped.token_ids.tolist() == free.token_ids[:first].tolist()
            np.testing.assert_allclose(stopped.logprobs, free.logprobs[:first], rtol=1e-5, atol=1e-6)
            assert stopped.finished_by_stop
            assert sum(span.end - span.start for span in stopped.spans) == first
    never = await engine.generate(
        prompt, max_tokens=length, sampling=Sampling(0.0, stop=("never said",)), stop_token_ids=(NO_STOP,)
    )
    assert (never.token_ids.tolist(), never.finished_by_stop) == (free.token_ids.tolist(), False)


async def test_requests_are_told_apart_without_chance(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM adds a random number to a request's name; of two equal names its engine dies."""
    monkeypatch.setattr("vllm.v1.engine.input_processor.random_uuid", lambda: "0" * 16)
    rows = [list(range(5, 45))] * 8
    completions = [sample(engine, row, 20) for row in rows]
    assert {len(scored.logprobs) for scored in await engine.score(rows)} == {39}
    assert {len(completion.token_ids) for completion in await asyncio.gather(*completions)} == {20}


async def test_a_request_without_an_answer_is_the_engine_s_death(engine: VllmEngine) -> None:
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    running = sample(engine, list(range(5, 45)), 240)
    await received(engine, 1)
    await engine.llm.pause_generation(mode="abort")
    await engine.llm.resume_generation()
    with pytest.raises(ProcessDied, match="without an answer"):
        await running


async def test_weights_arrive_under_running_requests(engine, model, writer) -> None:
    """Spans say which policy sampled what, both sides have the same fingerprint, and what is sampled afterwards has the
    log-probabilities of the new weights, the tied output embedding included, and also where an old prefix was cached. Versions
    are loaded under longer and longer requests until two of them have come in the middle of many."""
    prompt = list(range(5, 105))
    await sample(engine, prompt, 1)
    fingerprints, interrupted, tokens = set(), 0, 240
    while interrupted < 2:
        version = engine.version + 1
        perturb(model)
        publication = publish(writer, version, shards(model))
        running = [sample(engine, [7 + i, 8, 9], tokens) for i in range(16)]
        await sample(engine, [3, 4], 8)  # all have begun before it
        assert await engine.load_publication(publication) == publication.fingerprint
        assert engine.version == version
        fingerprints.add(publication.fingerprint)
        completion = await sample(engine, prompt, 30)
        assert [span.version for span in completion.spans] == [version]
        assert np.abs(completion.logprobs - reference_logprobs(model, prompt, completion.token_ids)).max() < 1e-3
        spans = [completion.spans for completion in await asyncio.gather(*running)]
        assert all(several[0].version == version - 1 and several[0].start == 0 for several in spans)
        assert {span.version for several in spans for span in several} <= {version - 1, version}
        if sum(len(several) == 2 for several in spans) > 8:
            interrupted += 1
        else:
            tokens = min(2 * tokens, UNENDING)
    assert len(fingerprints) == engine.version
    use = engine.use()
    assert set(use.tokens_by_version) == set(range(engine.version + 1))
    assert sum(use.tokens_by_version.values()) == use.tokens_generated
    assert 0 < use.last_pause_seconds < use.paused_seconds


def erase_once_ready(engine: VllmEngine, publication: Publication, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite the publication's file before the pause begins."""
    core = engine.llm.engine_core
    called = core._call_utility_async

    async def call_and_erase(method: str, *arguments: object, engine: bytes) -> object:
        answer = await called(method, *arguments, engine=engine)
        if method == PREPARE:
            erase(Path(publication.files[0].path))
        return answer

    monkeypatch.setattr(core, "_call_utility_async", call_and_erase)


async def test_weights_are_made_ready_before_the_pause(engine, model, writer, monkeypatch) -> None:
    """What the publication's file holds by the time of the pause does not matter: nothing is read in it."""
    perturb(model)
    publication = publish(writer, engine.version + 1, shards(model))
    erase_once_ready(engine, publication, monkeypatch)
    assert await engine.load_publication(publication) == publication.fingerprint
    prompt = list(range(5, 105))
    completion = await sample(engine, prompt, 30)
    assert np.abs(completion.logprobs - reference_logprobs(model, prompt, completion.token_ids)).max() < 1e-3


async def test_bytes_changed_on_the_way_change_the_fingerprint(engine: VllmEngine, model, writer) -> None:
    publication = publish(writer, engine.version + 1, shards(model))
    flip_bit(Path(publication.files[0].path), publication.shards[1].offset)
    assert await engine.load_publication(publication) != publication.fingerprint


async def test_a_cancelled_request_leaves_the_engine(engine: VllmEngine) -> None:
    abandoned = sample(engine, [1, 2, 3], UNENDING)
    await sample(engine, [1, 2, 3], 2)
    await ended([abandoned])
    assert (await engine.report_load()).running == 0


async def test_the_load_of_an_engine(engine: VllmEngine) -> None:
    running = [sample(engine, [1, 2, 3], UNENDING) for _ in range(3)]
    load = await engine.report_load()
    while load.running < 3:
        load = await engine.report_load()
    assert load.waiting == 0
    assert 0 < load.cache_share < 1
    await sample(engine, [1, 2, 3], 8)  # beside which they are decoded
    await ended(running)
    idle = await engine.report_load()
    assert (idle.running, idle.waiting, idle.cache_share) == (0, 0, 0.0)
    assert idle.cpu_seconds > load.cpu_seconds > engine.use().time.engine_cpu > 0
    assert idle.decode_seconds > load.decode_seconds >= 0 < idle.prefill_seconds
    assert (engine.use().time.prefill, engine.use().time.decode) == (idle.prefill_seconds, idle.decode_seconds)


async def test_what_cannot_be_made_ready_leaves_the_engine_as_it_was(engine: VllmEngine, model, writer) -> None:
    incomplete = publish(writer, engine.version + 1, [shard for shard in shards(model) if "q_proj" not in shard.name])
    running = sample(engine, [1, 2, 3], 20)
    refused = (
        rf"version {incomplete.version} could .* keeps version {engine.version}: .* lacks model\.layers\.0\.self_attn\.q_proj"
    )
    with pytest.raises(WeightMismatch, match=refused):
        await engine.load_publication(incomplete)
    assert {span.version for span in (await running).spans} == {engine.version}
    complete = publish(writer, incomplete.version + 1, shards(model))
    assert await engine.load_publication(complete) == complete.fingerprint
    completion = await sample(engine, [1, 2, 3], 20)
    assert np.abs(completion.logprobs - reference_logprobs(model, [1, 2, 3], completion.token_ids)).max() < 1e-3


async def test_a_publication_that_fails_in_the_pause_ends_the_engine(engine, model, writer, monkeypatch) -> None:
    """The last test of this engine."""
    core = engine.llm.engine_core
    called = core._call_utility_async

    async def unprepared(method: str, *arguments: object, engine: bytes) -> object:
        return None if method == PREPARE else await called(method, *arguments, engine=engine)

    monkeypatch.setattr(core, "_call_utility_async", unprepared)
    incomplete = publish(writer, engine.version + 1, [shard for shard in shards(model) if "q_proj" not in shard.name])
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    running = sample(engine, [1, 2, 3], 20)
    await received(engine, 1)
    with pytest.raises(
        WeightMismatch, match=rf"version {incomplete.version} .* lacks model\.layers\.0\.self_attn\.q_proj\.weight"
    ):
        await engine.load_publication(incomplete)
    for completion in (running, sample(engine, [1, 2, 3], 20)):
        with pytest.raises(ComponentFailed, match=r"unknown weights.*lacks model\.layers\.0"):
            await completion


@pytest.mark.parametrize("config", [CONFIG, SHARING_EXPERTS], ids=["one worker", "two workers that share them out"])
async def test_experts_arrive_as_they_were_sent(config: GeneratorsConfig, writer, tmp_path: Path, monkeypatch) -> None:
    """On CPU vLLM packs them for its kernels, and a publication must not be read as if it were packed. That is done before the
    pause, too."""
    model = small_mixture()
    make_tokenizer().save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    engine = await started(tmp_path, config=config)
    prompt = list(range(5, 45))
    try:
        for version in (0, 1, 2):
            if version:
                add_noise(model)
                model.save_pretrained(tmp_path / str(version))
                tensors = load_file(tmp_path / str(version) / "model.safetensors")
                parts = [Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in tensors.items()]
                publication = publish(writer, 10 + version, parts)
                erase_once_ready(engine, publication, monkeypatch)
                assert await engine.load_publication(publication) == publication.fingerprint
            completion = await sample(engine, prompt, 30)
            assert np.abs(completion.logprobs - reference_logprobs(model, prompt, completion.token_ids)).max() < 1e-3
    finally:
        await engine.close()
