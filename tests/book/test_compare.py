"""The pages that compare: numbers are those of mhlib.cost, and nothing is left out in silence."""

import json
from types import SimpleNamespace

import pytest
import torch
from atlas import compare_page, counts
from atlas.project import Project
from bs4 import BeautifulSoup
from mhlib import cost, registry
from mhlib.heads import GroupedQueryAttention


@pytest.fixture(scope="module")
def heads():
    return {one.mechanism.name: one for one in counts.heads(registry.mechanisms().values())}


def test_heads_are_counted_by_the_library(heads):
    size, context = list(counts.HEAD_SIZES.values()).index((2048, 16)), counts.CONTEXTS.index(2048)
    layer = lambda: GroupedQueryAttention(2048, 16, num_kv_heads=4)  # noqa: E731
    prompt, token = cost.prefill(layer, 2048), cost.decode(layer, 2048)
    shown = heads["grouped_query_attention"].numbers[size][context]
    assert shown[:4] == [prompt.parameters, prompt.matmul_flops, token.matmul_flops, 2048 * 2 * 4 * 2 * 128]
    assert shown[4:] == pytest.approx([prompt.intensity, token.intensity], abs=1e-3)


def test_pools_are_counted_by_pytorch():
    (one,) = counts.pools([registry.find("attention_pool")])
    dim, tokens = 768, counts.TOKENS[0]
    parameters, flops, moved, _, out = one.numbers[0][0]
    assert out == dim and parameters == 4 * dim * dim + dim
    assert flops == 2 * dim * (2 * dim + 2 * tokens * dim) + 4 * tokens * dim
    assert moved == 2 * (tokens * dim + parameters + dim)


def test_every_head_and_pool_is_counted_or_named_with_a_reason(heads):
    every = registry.mechanisms().values()
    assert set(heads) == {m.name for m in every if m.kind == "head" and hasattr(m.obj, "stage_costs")}
    assert all(isinstance(one, counts.Counted) or one.reason for one in heads.values())
    text = compare_page.pools(Project.here())
    assert all(m.name in text for m in every if m.kind == "pool")


class Demanding(torch.nn.Module):
    def __init__(self, dim, colour):
        super().__init__()


def test_what_cannot_be_built_is_said():
    (one,) = counts.pools([SimpleNamespace(name="demanding", kind="pool", obj=Demanding)])
    assert one == counts.Uncounted(one.mechanism, "needs colour, for which no size is customary")


def test_the_page_carries_the_numbers_that_it_shows(heads):
    page = BeautifulSoup(compare_page.heads(Project.here()), "html.parser")
    data = json.loads(page.find("script", class_="mh-counts").text)
    for row in page.select("tbody tr"):
        keys = [float(cell["data-key"]) for cell in row.find_all("td")]
        assert keys == data[row["id"]]["numbers"][0][0]


@pytest.mark.parametrize("number, text", [(0, "0"), (12, "12"), (9.994, "9.99"), (9.996, "10.0"), (8.625, "8.63"), (999.4, "999"), (999.9, "1.00 k"), (1.5e12, "1.50 T")])
def test_numbers_are_short(number, text):
    assert compare_page.si(number) == text


