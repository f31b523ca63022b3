"""Seeded workloads: they repeat, follow their distributions, and say what is wrong with a parameter."""

from dataclasses import fields

import numpy as np
import pytest

from splash.core.errors import ConfigError
from splash.sim.generators import GENERATORS, LIMITS, RlDrain
from splash.sim.lengths import REASONING_OUTPUT, Lognormal, LogUniform, correlated_scores
from splash.sim.traces import load
from splash.sim.workload import Arrival, Workload

SMALL = {
    "rl-drain": "rl-drain:prompts=4,samples=3",
    "burst": "burst:duration_s=50",
    "phase-shift": "phase-shift:chat_s=20,long_s=20,prompts=3,samples=2",
    "long-mixed": "long-mixed:duration_s=30",
    "steady": "steady:count=50",
    "agentic": "agentic:sessions=4",
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_repeats_a_workload(name: str) -> None:
    """Red when a generator draws from anything but its seed, or not at all."""
    first, again, other = (load(SMALL[name], seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.arrivals != other.arrivals


@pytest.mark.parametrize("name", GENERATORS)
def test_every_parameter_has_limits_and_is_described(name: str) -> None:
    """Red when a parameter is added without limits, or a result would not say what it was."""
    note = load(SMALL[name], seed=0).note
    for field in fields(GENERATORS[name]):
        assert field.name in LIMITS
        assert f"{field.name}=" in note


def test_rl_drain_has_the_tail_and_the_size_of_the_traces() -> None:
    """Red when the default batch is not about 4.7 M tokens at once, of which few requests own most steps."""
    workload = load("rl-drain", seed=0)
    outputs = np.array([arrival.output_tokens for arrival in workload.arrivals])
    assert len(outputs) == 2048
    assert {arrival.time_ns for arrival in workload.arrivals} == {0}
    assert 3.5e6 < workload.output_tokens < 6e6
    assert outputs.max() > 8 * np.median(outputs)
    prompts = [arrival.prompt_tokens for arrival in workload.arrivals]
    assert 120 < np.mean(prompts) < 165


def test_rl_samples_of_a_prompt_resemble_each_other() -> None:
    """Red when the copula is dropped: then the lengths within a prompt are as far apart as between prompts."""

    def within(rho: float) -> float:
        batch = RlDrain(prompts=200, samples=8, rho=rho).arrivals(np.random.default_rng(0))
        logs = np.log([arrival.output_tokens for arrival in batch]).reshape(200, 8)
        return float(logs.mean(axis=1).var() / logs.var())

    assert within(0.92) > 0.85
    assert within(0.0) < 0.2
    batch = RlDrain(prompts=2, samples=3).arrivals(np.random.default_rng(0))
    assert [arrival.group for arrival in batch] == [0, 0, 0, 1, 1, 1]
    assert len({(arrival.group, arrival.prompt_tokens) for arrival in batch}) == 2


def test_scores_have_the_correlation_asked_for() -> None:
    """Red when rho is used as something else than the correlation of two samples."""
    scores = correlated_scores(np.random.default_rng(0), groups=20000, samples=2, rho=0.6)
    assert np.corrcoef(scores.T)[0, 1] == pytest.approx(0.6, abs=0.02)
    assert scores.std() == pytest.approx(1, abs=0.02)


def test_lengths_follow_their_figures() -> None:
    """Red when mean, deviation, quantiles or ends of a distribution are not those given."""
    rng = np.random.default_rng(0)
    drawn = Lognormal(1155, 1109).draw(rng, 200_000)
    assert drawn.mean() == pytest.approx(1155, rel=0.02)
    assert drawn.std() == pytest.approx(1109, rel=0.05)
    outputs = REASONING_OUTPUT.at(rng.standard_normal(200_000))
    for percent, length in ((50, 1014), (75, 2563), (90, 5423), (95, 7858), (99, 15063)):
        assert np.percentile(outputs, percent) == pytest.approx(length, rel=0.04)
    assert REASONING_OUTPUT.at(np.array([99.0])) == 32768
    long = LogUniform(32768, 262144).draw(rng, 10_000)
    assert (long.min(), long.max()) == pytest.approx((32768, 262144), rel=0.01)
    assert np.median(long) == pytest.approx(2**16.5, rel=0.05)


def test_open_loops_keep_their_rate() -> None:
    """Red when `rate` is not the mean number of requests in a second."""
    for name in ("steady", "burst", "long-mixed"):
        arrivals = load(f"{name}:duration_s=1000", seed=3, rate=7).arrivals
        assert len(arrivals) == pytest.approx(7000, rel=0.05)
        assert arrivals[-1].time_s == pytest.approx(1000, rel=0.05)
    assert load("steady:count=500,rate=2", seed=0).rate == pytest.approx(2, rel=0.15)


def test_a_burst_is_one() -> None:
    """Red when requests are spread evenly: most come within two of every sixty seconds."""
    times = np.array([arrival.time_s for arrival in load("burst", seed=0).arrivals])
    share = np.mean((times % 60 >= 30) & (times % 60 < 32))
    assert 0.7 < share < 0.9


def test_phases_follow_each_other() -> None:
    """Red when a phase is lost or out of its place."""
    arrivals = load("phase-shift", seed=0).arrivals
    chat = [x for x in arrivals if x.time_s < 600]
    long = [x for x in arrivals if 600 <= x.time_s < 900]
    batch = [x for x in arrivals if x.time_s >= 900]
    assert max(x.prompt_tokens for x in chat) < 32768 < max(x.prompt_tokens for x in long)
    assert len(chat) > 2500
    assert 40 < sum(x.prompt_tokens >= 32768 for x in long) < 160
    assert {x.time_s for x in batch} == {960}
    assert len(batch) == 2048


def test_long_prompts_are_mixed_in() -> None:
    """Red when the share of long prompts, or their ends, are not those asked for."""
    arrivals = load("long-mixed:long_share=0.1,longest=100000,count=4000", seed=0).arrivals
    long = [x.prompt_tokens for x in arrivals if x.prompt_tokens >= 32768]
    assert len(long) == pytest.approx(400, rel=0.2)
    assert max(long) <= 100000


def test_an_agents_turns_wait_for_each_other() -> None:
    """Red when a turn forgets the context before it, or comes before that turn has ended."""
    workload = load("agentic:sessions=20,longest=20000", seed=0)
    followers = 0
    for index, arrival in enumerate(workload.arrivals):
        assert arrival.prompt_tokens + arrival.output_tokens <= 20000
        if arrival.after is None:
            assert arrival.delay_ns == 0
            continue
        followers += 1
        before = workload.arrivals[arrival.after]
        assert arrival.after == index - 1
        assert before.session == arrival.session
        assert arrival.prompt_tokens > before.prompt_tokens + before.output_tokens
    assert len({arrival.session for arrival in workload.arrivals}) == 20
    assert followers > 100


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("brst", "unknown workload 'brst' (did you mean 'burst'?); known: rl-drain, burst"),
        ("rl-drian:prompts=3", "did you mean 'rl-drain'?"),
        ("burst:rat=3", "burst has no parameter 'rat' (did you mean 'rate'?); it has rate=4.0, duration_s"),
        ("burst:rate", "burst: parameter rate has no value; write rate=4.0"),
        ("burst:rate=x", "burst: rate is 'x'; it must be a number"),
        ("burst:rate=nan", "burst: rate is nan; it must be a number"),
        ("burst:rate=-1", "burst: rate is -1; it must be from"),
        ("rl-drain:rho=1.5", "rl-drain: rho is 1.5; it must be from 0 to 1"),
        ("rl-drain:prompts=2.5", "prompts is '2.5'; it must be a whole number"),
        ("rl-drain:prompts=0", "prompts is 0; it must be from 1"),
        ("steady:count=5,count=6", "parameter count is given twice"),
    ],
)
def test_a_bad_name_is_explained(text: str, complaint: str) -> None:
    """Red when a typing error is ignored or its message does not name it."""
    with pytest.raises(ConfigError) as error:
        load(text, seed=0)
    assert complaint in str(error.value)


def test_a_batch_has_no_rate() -> None:
    """Red when --rate is swallowed where it means nothing, or is no rate."""
    with pytest.raises(ConfigError, match="all at once"):
        load("rl-drain", seed=0, rate=3)
    with pytest.raises(ConfigError, match="--rate is 0"):
        load("steady", seed=0, rate=0)


def test_a_workload_proves_its_order() -> None:
    """Red when a simulator could meet a request out of order, or one that waits for nothing it knows."""
    with pytest.raises(ValueError, match="no request"):
        Workload("x", ())
    with pytest.raises(ValueError, match="not in order of time at request 1"):
        Workload("x", (Arrival(2, 1, 1), Arrival(1, 1, 1)))
    with pytest.raises(ValueError, match="waits for 1"):
        Workload("x", (Arrival(0, 1, 1), Arrival(0, 1, 1, after=1)))
    with pytest.raises(ValueError, match="at least 1"):
        Arrival(0, 1, 0)
    with pytest.raises(ValueError, match="not below 0"):
        Arrival(-1, 1, 1)
