"""The page as a browser shows it."""

import pytest
from chromium import Page, chromium
from reported import HOSTILE, episode, make_run, page_of

from asyncrl.episodes.visible import visible

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    other = make_run(folder, "name=other", "learner.lr=3e-5", rows=[episode(2, "short")])
    file = folder / "report.html"
    file.write_text(page_of(make_run(folder, tracked=True), other), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False), (390, True)])
def test_it_fits_its_window_loads_nothing_and_throws_nothing(file, width, dark):
    with Page(width, dark=dark) as page:
        page.open(file)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('#list button').length") == 14
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")
        small = (
            "[...document.querySelectorAll('.tick, .legend, td, p')].filter((e) => parseFloat(getComputedStyle(e).fontSize) < 11)"
        )
        assert page.evaluate(f"{small}.length") == 0
        assert page.requested == [file.as_uri()]
        assert page.errors == []


def test_pointing_at_a_chart_and_at_a_token_tells_their_numbers(file):
    with Page(1200) as page:
        page.open(file)
        curve = "document.querySelector('[aria-label=\"reward/mean\"]').closest('figure')"
        page.evaluate(f"{curve}.scrollIntoView()")
        box = page.evaluate(
            f"(() => {{ const b = {curve}.querySelector('.plot').getBoundingClientRect(); return [b.x, b.y, b.width]; }})()"
        )
        page.move_to(box[0] + box[2] * 5 / 11, box[1] + 20)
        assert page.evaluate(f"{curve}.querySelector('.at').textContent") == "step 6"
        assert page.evaluate(f"{curve}.querySelector('.legend b').textContent") == "0.5"

        page.evaluate("document.querySelectorAll('#text span')[7].scrollIntoView({block: 'center'})")
        box = page.evaluate(
            "(() => { const b = document.querySelectorAll('#text span')[7].getBoundingClientRect(); return [b.x, b.y]; })()"
        )
        page.move_to(box[0] + 3, box[1] + 8)
        told = page.evaluate("document.getElementById('token').textContent")
        for expected in (
            "token 7",
            "trained",
            "version 0 · staleness 0",
            "engine -0.5 nats",
            "learner -0.51 nats",
            "advantage 0.7",
            "weight 0.9",
        ):
            assert expected in told
        assert page.errors == []


def test_a_step_is_explained_from_the_curve_to_its_tokens_and_episodes(file):
    with Page(1200) as page:
        page.open(file)
        curve = "document.querySelector('[aria-label=\"reward/mean\"]').closest('figure')"
        page.evaluate(f"{curve}.scrollIntoView()")
        box = page.evaluate(
            f"(() => {{ const b = {curve}.querySelector('.plot').getBoundingClientRect(); return [b.x, b.y, b.width]; }})()"
        )
        page.move_to(box[0] + box[2] * 1 / 11, box[1] + 20)
        other = "document.querySelector('[aria-label=\"staleness\"]').closest('figure')"
        assert page.evaluate(f"{other}.querySelector('.at').textContent") == "step 2", "it is marked in all curves"
        here = "[...document.querySelectorAll('#list button.here')].map((button) => button.dataset.step)"
        assert set(page.evaluate(here)) == {"2"}
        page.evaluate(
            f"{curve}.querySelector('.plot').dispatchEvent(new MouseEvent('click', {{clientX: {box[0] + box[2] / 11}}}))"
        )
        told = page.evaluate("document.getElementById('explained').innerText")
        for expected in (
            "waiting",
            "30 %",
            "backward",
            "reward/mean",
            "made more likely",
            "Tokens that moved the policy most of other",
        ):
            assert expected in told
        assert page.evaluate("document.getElementById('which').value") == "2"
        links = "[...document.querySelectorAll('#explained a')]"
        wanted = page.evaluate(f"{links}.find((link) => link.textContent.startsWith('other')).textContent")
        page.evaluate(f"{links}.find((link) => link.textContent.startsWith('other')).click()")
        assert page.evaluate("document.getElementById('title').textContent") == wanted
        page.evaluate("document.getElementById('later').click()")
        assert page.evaluate("document.getElementById('which').value") == "3"
        # At once, since the pointer still lies on the curve, which may move away from under it.
        enter = "const b = document.querySelector('#list button'); b.dispatchEvent(new PointerEvent('pointerenter'))"
        step, seen = page.evaluate(f"(() => {{ {enter}; return [b.dataset.step, {curve}.querySelector('.at').textContent]; }})()")
        assert seen == f"step {step}"
        assert page.errors == []


def test_the_picker_sorts_and_turns_and_colours(file):
    with Page(1200) as page:
        page.open(file)
        rewards = "data = JSON.parse(document.getElementById('data').textContent).episodes.map((e) => e.reward)"
        lowest = min(page.evaluate(rewards))
        assert f"reward {lowest:g}" in page.evaluate("document.querySelector('#list button').textContent")
        title = "document.getElementById('title').textContent"
        first = page.evaluate(title)
        assert visible(HOSTILE) in first
        page.evaluate("document.getElementById('next').click()")
        assert page.evaluate(title) != first
        page.evaluate("document.getElementById('previous').click()")
        assert page.evaluate(title) == first
        painted = "[...document.querySelectorAll('#text span')].filter((span) => span.style.background).length"
        for colour in ("fate", "version", "gap", "advantage", "weight"):
            page.evaluate(
                f"document.getElementById('colour').value = '{colour}';"
                "document.getElementById('colour').dispatchEvent(new Event('change'))"
            )
            assert page.evaluate(painted) == 8, colour
        page.evaluate(
            "document.getElementById('sort').value = 'best'; document.getElementById('sort').dispatchEvent(new Event('change'))"
        )
        assert "held-out" in page.evaluate(title)
        assert page.errors == []
