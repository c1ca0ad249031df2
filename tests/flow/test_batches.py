"""A step that spikes or turns NaN tells of its batch; nothing is changed, and no hook stays."""

import copy
import gc
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import gradient_flow as gf
from gradient_flow.capture import batch_identity, data_loaders
from gradient_flow.capture.batch_identity import ELEMENTS, STEP, Lying, hash_of, sample_of
from gradient_flow.table import kernels


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))


@pytest.fixture(autouse=True)
def _no_flow_of_another_test():
    gc.collect()


def told(flow):
    flow.close()
    return {event.step: event.data for event in flow.run.events if event.kind == "batch"}


def train(given, parts=1, watched=True, rate=1e-3, **more):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    flow = gf.watch(model, optimizer, describe=False, **more) if watched else None
    for at, (x, y) in enumerate(given):
        (model(x) - y).square().mean().div(parts).backward()
        if (at + 1) % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer, flow


def usual(count=30, bad=(), factor=1e4):
    torch.manual_seed(1)
    found = [(torch.randn(16, 6), torch.randn(16, 1)) for _ in range(count)]
    return [(x, y * factor) if at in bad else (x, y) for at, (x, y) in enumerate(found)]


def test_a_spike_has_the_batch_of_its_step_and_others_have_none():
    _, _, flow = train(usual(bad=[20]))
    assert 21 in told(flow)
    # The steps after it still feel it, by the weights that it moved.
    assert min(told(flow)) == 21
    name = told(flow)[21]["batch"]
    assert len(name) == 12
    assert next(line["batch"] for line in flow.history.lines if line["step"] == 21) == name


def test_the_same_batch_has_the_same_name_in_all_runs_of_a_process_and_another_in_the_next():
    batches = usual(40, bad=[15])
    batches[25] = batches[15]
    first, second = (told(train(batches, rate=1e-9)[2]) for _ in range(2))
    assert first[16]["batch"] == first[26]["batch"] == second[16]["batch"]
    batch_identity.process_salt.cache_clear()  # as in another process
    assert told(train(batches, rate=1e-9)[2])[16]["batch"] != first[16]["batch"]


def test_a_step_with_nan_has_its_batch():
    batches = usual()
    batches[12] = (batches[12][0].index_fill(1, torch.tensor([3]), math.nan), batches[12][1])
    _, _, flow = train(batches)
    assert 13 in told(flow)


def test_the_micro_batch_whose_loss_stands_out_is_named():
    _, _, flow = train(usual(80, bad=[50]), parts=4, rate=1e-9)
    found = told(flow)[13]
    assert found["micro_batch"] == 2
    assert len(found["micro_batches"]) == 4
    assert len(set(found["micro_batches"])) == 4


class Spoilt(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, at):
        numbers = torch.Generator().manual_seed(at)
        return torch.randn(6, generator=numbers), torch.randn(1, generator=numbers) * (1e5 if at == 77 else 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_indices_that_the_sampler_drew(workers):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with gf.watch(model, optimizer, describe=False) as flow:
        loader = DataLoader(Spoilt(), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
    spikes = [data for data in told(flow).values() if 77 in data.get("indices", ())]
    assert len(spikes) >= 2  # once in every epoch, and the first epoch may have it before there is a usual norm
    assert all(len(data["indices"]) == 8 for data in spikes)


def test_a_batch_that_no_loader_gave_has_no_indices():
    batches = usual(bad=[20])
    next(iter(DataLoader(TensorDataset(torch.randn(8, 6)), batch_size=4)))
    assert "indices" not in told(train(batches)[2])[21]


def test_no_bit_changes():
    states = []
    for watched in (False, True):
        model, optimizer, flow = train(usual(bad=[9, 20], factor=30), watched=watched)
        state = [*model.state_dict().values(), torch.get_rng_state()]
        state += [value["momentum_buffer"] for value in optimizer.state.values()]
        states.append(copy.deepcopy(state))
    assert told(flow)
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


def hooks(model):
    return [hook for m in model.modules() for hook in (*m._forward_pre_hooks.values(), *m._forward_hooks.values())]


def test_one_hook_and_none_afterwards():
    before = _BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index
    model, _, flow = train(usual(5), looks=[3])
    assert len(hooks(model)) == 1
    assert (_BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index) != before
    flow.close()
    assert hooks(model) == []
    assert (_BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index) == before
    model, _, flow = train(usual(5), looks=[3])
    del flow
    gc.collect()
    assert hooks(model) == []
    assert (_BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index) == before


@pytest.mark.parametrize("how", [{"batches": False}, {"looks": False}], ids=str)
def test_it_can_be_switched_off(how):
    model, _, flow = train(usual(14, bad=[10]), **how)
    assert hooks(model) == []
    assert told(flow) == {}


def test_a_compiled_model_is_left_alone():
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gf.watch(compiled, optimizer, describe=False) as flow:
        for x, y in usual(12, bad=[10]):
            (compiled(x) - y).square().mean().backward()
            assert hooks(model) == []
            optimizer.step()
            optimizer.zero_grad()
    assert told(flow) == {}


def test_a_replay_is_no_batch_of_the_training():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gf.watch(model, optimizer, describe=False) as flow:
        for at, (x, y) in enumerate(usual(20, bad=[15])):
            optimizer.zero_grad()
            if at == 15:
                gf.find_batch(lambda part: (model(part[0]) - part[1]).square().mean(), (x, y), model)
            (model(x) - y).square().mean().backward()
            optimizer.step()
    assert "micro_batches" not in told(flow)[16]


def test_names_do_not_depend_on_device_layout_or_memory_format():
    x = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    names = {hash_of(sample_of([each]), b"salt") for each in (x, x.to(memory_format=torch.channels_last), x.double())}
    assert len(names) == 1
    assert hash_of(sample_of([x]), b"salt") != hash_of(sample_of([x]), b"pepper")
    assert hash_of(sample_of([x]), b"salt") != hash_of(sample_of([x.flip(0)]), b"salt")


def test_listeners_of_loaders_end_in_any_order():
    before = _BaseDataLoaderIter.__next__
    first, second = (data_loaders.listen(lambda *_: None) for _ in range(2))
    first()
    assert _BaseDataLoaderIter.__next__ is not before
    first()
    second()
    assert _BaseDataLoaderIter.__next__ is before


@pytest.mark.parametrize("shape", [(), (5,), (7, 9), (3, 4, 50), (0,), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_a_batch_is_the_same_however_it_lies_in_memory(shape, dtype):
    torch.manual_seed(0)
    plain = torch.randint(0, 100, shape).to(dtype)
    turned = plain.t().contiguous().t() if plain.dim() == 2 else plain
    as_parameter = nn.Parameter(plain, requires_grad=False)  # read by torch, not by NumPy
    found = [sample_of([each]) for each in (plain, turned, as_parameter)]
    assert len({hash_of(each, b"salt") for each in found}) == 1
    for sample in found:
        assert bool(sample) == (plain.numel() > 0)
        assert all(
            elements.untyped_storage().data_ptr() != plain.untyped_storage().data_ptr() for _, elements in sample
        )


@pytest.mark.skipif(not kernels.NATIVE, reason="the C kernel was not built")
@pytest.mark.parametrize(
    "batch",
    [torch.randn(33, 77), torch.arange(100_001), torch.randint(0, 9, (4, 9)), torch.ones(700, dtype=torch.uint8)],
    ids=["floats", "many", "few", "bytes"],
)
def test_the_kernel_takes_the_same_elements_of_a_batch(batch):
    quick = kernels.native.spreader(ELEMENTS, STEP)
    lying = [(tuple(batch.shape), Lying(quick(batch), batch.dtype))]
    assert hash_of(lying, b"salt") == hash_of(sample_of([batch]), b"salt")
    assert quick(torch.ones(3, 4).t()) is None
    assert quick(torch.ones(3, dtype=torch.complex64)) is None
    assert quick(torch._neg_view(torch.ones(3))) is None
