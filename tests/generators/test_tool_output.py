from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.messages import Message
from asyncrl.generators.tool_output import cut_tool_outputs

roles = st.sampled_from(["system", "user", "tool"])


@given(text=st.text(max_size=60), limit=st.integers(1, 40))
def test_a_tool_message_keeps_its_beginning_and_its_end_and_says_what_it_lost(text: str, limit: int) -> None:
    (cut,), lost = cut_tool_outputs([Message("tool", text)], limit)
    assert lost == max(0, len(text) - limit)
    if lost:
        marker = f"\n[{lost} characters cut]\n"
        begin, end = cut.content[: limit - limit // 2], cut.content[limit - limit // 2 + len(marker) :]
        assert cut.content == begin + marker + end
        assert (text.startswith(begin), text.endswith(end), len(begin + end)) == (True, True, limit)
    else:
        assert cut.content == text


@given(messages=st.lists(st.builds(Message, roles, st.text(max_size=20))), limit=st.integers(1, 10))
def test_only_what_tools_say_is_cut(messages: list[Message], limit: int) -> None:
    cut, lost = cut_tool_outputs(messages, limit)
    assert [message.role for message in cut] == [message.role for message in messages]
    same = [before == after for before, after in zip(messages, cut, strict=True)]
    assert same == [message.role != "tool" or len(message.content) <= limit for message in messages]
    assert lost == sum(len(message.content) - limit for message, kept in zip(messages, same, strict=True) if not kept)
