import json

import pytest

from vitrine.runtime.files import json_text


@pytest.mark.parametrize("name", ["cat", "猫", "caf\udce9"])
def test_any_name_comes_back_from_text_that_is_utf_8(name):
    text = json_text({"classes": [name]}, indent=2)
    assert json.loads(text.encode("utf-8")) == {"classes": [name]}
    assert (name in text) == (name != "caf\udce9"), "what people can read is written as it is"
