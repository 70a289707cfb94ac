"""Numbers in words."""

from appliance.infer.numbers import in_words


def test_numbers_are_spelled() -> None:
    found = ", ".join(in_words(one) for one in (0, 13, 40, 99, 100, 342))
    assert found == "zero, thirteen, forty, ninety nine, one hundred, three hundred forty two"
