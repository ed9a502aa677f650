"""The megatron-core that is installed is the one for this Python, and what it says of asyncrl's own doing is left out."""

import logging
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.learners import supported_model
from asyncrl.learners.megatron import versions


def test_the_version_is_the_one_for_this_python():
    assert version("megatron-core") == ("0.16.1" if sys.version_info < (3, 12) else "0.19.2")
    supported_model.check_megatron()


@pytest.mark.parametrize("found", ["0.16.0", "0.18.1", None])
def test_another_is_refused_by_name_with_what_to_install(monkeypatch, found):
    def installed(_):
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr(supported_model.importlib.metadata, "version", installed)
    told = (
        r"is installed, but the learner is tested with 0.16.1 and 0.19.2 only; install megatron-core==0.16.1 with Python 3.11 or "
    )
    with pytest.raises(RecipeError, match=rf"megatron-core {found or 'no version'} {told}megatron-core==0.19.2 with Python 3.12"):
        supported_model.check_megatron()


def test_warnings_about_our_own_doing_are_left_out_and_others_are_not(caplog):
    logger = logging.getLogger("megatron.core.models.gpt.gpt_model")
    versions.silence()
    try:
        logger.warning("GPTModel IS DEPRECATED. %s", "Something else is recommended")
        logger.warning("the weights are not what they should be")
    finally:
        for name in versions._SAID:
            logging.getLogger(name).filters.clear()
    assert [record.getMessage() for record in caplog.records] == ["the weights are not what they should be"]
