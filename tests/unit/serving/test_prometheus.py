import re

from vitrine.serving.prometheus import Counter, Gauge, Histogram, render

LINE = re.compile(r'^[a-z_]+(\{([a-z]+="(\\.|[^"\\])*",?)+\})? (\+Inf|[0-9.e+-]+)$')


def test_every_line_is_a_comment_or_a_sample_of_the_text_format():
    counter, histogram = Counter("a_total", "Counts."), Histogram("b_seconds", "Times.", bounds=(0.1, 1))
    counter.add(path='/odd"path\\\n', status="200")
    histogram.observe(0.5, path="/")
    text = render([counter, histogram, Gauge("c", "Now.", lambda: 1.5)])
    assert text.endswith("\n")
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.match(line), line


def test_a_histogram_counts_at_or_below_each_bound_and_sums_what_it_saw():
    histogram = Histogram("b", "Times.", bounds=(0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        histogram.observe(value)
    assert histogram.lines() == [
        'b_bucket{le="0.1"} 2', 'b_bucket{le="1"} 3', 'b_bucket{le="+Inf"} 4', "b_sum 7.65", "b_count 4",
    ]  # fmt: skip


def test_a_counter_keeps_a_number_for_each_set_of_labels():
    counter = Counter("a", "Counts.")
    counter.add(path="/x")
    counter.add(2, path="/x")
    counter.add(path="/y")
    assert counter.lines() == ['a{path="/x"} 3', 'a{path="/y"} 1']
    assert counter.total == 4
