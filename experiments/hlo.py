"""What a partitioned program (XLA's HLO as text) computes and sends, counted without running it.

Each figure is of one device and one run of the program: what stands in the body of a loop counts as often as the loop
turns, and of a conditional every branch counts. Pure functions of the text.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8}
OPERATIONS = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute')

_SHAPE = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)$')
_CALLED = re.compile(r'(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.-]+)')
_BRANCHES = re.compile(r'branch_computations=\{(.*?)\}')


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    attributes: str
    root: bool


@dataclasses.dataclass(frozen=True)
class Collective:
    """An instruction by which devices exchange data.

    operation: one of OPERATIONS. dtype: of what is sent (of the first array).
    result: bytes that a device has after it. group: how many devices exchange; stride: from one to the next of them in
      the order of the mesh. times: how often a run of the program comes by.
    """

    operation: str
    dtype: str
    result: int
    group: int
    stride: int
    times: int

    @property
    def sent(self) -> float:
        """Bytes that a device sends in a run, along a ring of its group (Thakur et al. 2005, 4)."""
        n = self.group
        share = {
            'all-reduce': 2 * (n - 1) / n,
            'all-gather': (n - 1) / n,
            'reduce-scatter': n - 1,
            'all-to-all': (n - 1) / n,
            'collective-permute': 1,
        }[self.operation]
        return self.times * self.result * share


def exchanges(text: str) -> list[Collective]:
    """All of a program; those of a group of one device are left out.

    Two things are counted as XLA's passes for GPU leave them (ReduceScatterCreator, AllReduceReassociate), which come
    after the partition: an all-reduce of which each device only takes its share is a reduce-scatter, and of all-reduces
    that are added up there is one.

    Raises:
      ValueError: a loop whose number of turns, or a group whose devices the text does not give in a known form.
    """
    partitions = int(found[1]) if (found := re.search(r'num_partitions=(\d+)', text)) else 1
    counted = []
    for instructions, times in _computations(text):
        added = _added_to_another(instructions, partitions)
        for one in instructions.values():
            if one.operation not in OPERATIONS or one.name in added:
                continue
            group, stride = _group(one, partitions)
            operation, result = one.operation, size(one.shape)
            if operation == 'all-reduce' and _only_a_share(one, instructions, group):
                operation, result = 'reduce-scatter', result // group
            dtype = _SHAPE.search(one.shape)
            assert dtype
            if group > 1:
                counted.append(Collective(operation, dtype[1], result, group, stride, times))
    return counted


def flops(text: str) -> int:
    """Operations of all products of matrices, two for each multiplication and addition; what is recomputed counts."""
    total = 0
    for instructions, times in _computations(text):
        for one in instructions.values():
            if one.operation == 'dot':
                contracted = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', one.attributes)
                left = _dimensions(instructions[one.operands[0]].shape)
                inner = math.prod(left[axis] for axis in _integers(contracted[1])) if contracted else 1
                total += times * 2 * inner * math.prod(_dimensions(one.shape))
    return total


def size(shape: str) -> int:
    """Bytes of 'f32[3,5]{1,0}', or of all of a tuple."""
    return sum(BYTES[dtype] * math.prod(_integers(dims)) for dtype, dims in _SHAPE.findall(shape))


def _dimensions(shape: str) -> list[int]:
    found = _SHAPE.search(shape)
    assert found
    return _integers(found[2])


def _computations(text: str) -> Iterator[tuple[Mapping[str, Instruction], int]]:
    """(instructions by name, how often they are run) of each computation that is run; one may come several times."""
    found: dict[str, dict[str, Instruction]] = {}
    entry = ''
    for line in re.sub(r'/\*.*?\*/', '', text).splitlines():
        if match := _COMPUTATION.match(line):
            current = found[match[2]] = {}
            entry = match[2] if match[1] else entry
        elif found and (match := _INSTRUCTION.match(line)):
            root, name, shape, operation, operands, attributes = match.groups()
            names = tuple(re.findall(r'%([\w.-]+)', operands)) or (operands,)
            current[name] = Instruction(name, shape, operation, names, attributes, bool(root))

    def visit(name: str, times: int) -> Iterator[tuple[Mapping[str, Instruction], int]]:
        yield found[name], times
        for one in found[name].values():
            turns = _turns(one, found) if one.operation == 'while' else 1
            if one.operation in ('while', 'call', 'fusion', 'conditional'):
                branches = [
                    branch.strip(' %') for names in _BRANCHES.findall(one.attributes) for branch in names.split(',')
                ]
                for called in _CALLED.findall(one.attributes) + branches:
                    yield from visit(called, times * turns)

    yield from visit(entry, 1)


def _turns(loop: Instruction, found: Mapping[str, Mapping[str, Instruction]]) -> int:
    """How often a loop turns that counts from 0 up to a constant, as those of JAX's scan do."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(known[1])
    name = re.search(r'condition=%?([\w.-]+)', loop.attributes)
    assert name
    condition = found[name[1]]
    test = next(one for one in condition.values() if one.root)
    sides = [condition[operand] for operand in test.operands]
    while any(side.operation == 'copy' for side in sides):
        sides = [condition[side.operands[0]] if side.operation == 'copy' else side for side in sides]
    bounds = [side for side in sides if side.operation == 'constant']
    if test.operation != 'compare' or 'direction=LT' not in test.attributes or len(bounds) != 1:
        raise ValueError(f'{loop.name}: its condition {name[1]} is not that of a loop up to a constant')
    return int(bounds[0].operands[0])


def _added_to_another(instructions: Mapping[str, Instruction], partitions: int) -> set[str]:
    """All-reduces whose result only goes into a sum with that of another one of the same group."""
    uses = collections.Counter(operand for one in instructions.values() for operand in one.operands)
    groups: dict[str, tuple[object, str]] = {}  # sum → (its shape and group, the all-reduce that stays)
    added = set()
    for one in instructions.values():
        if one.operation == 'all-reduce':
            groups[one.name] = (one.shape, _first_group(one, partitions)), one.name
        elif one.operation == 'add' and all(uses[name] == 1 and name in groups for name in one.operands):
            (of_left, stays), (of_right, goes) = (groups[name] for name in one.operands)
            if of_left == of_right:
                groups[one.name] = of_left, stays
                added.add(goes)
    return added


def _only_a_share(one: Instruction, instructions: Mapping[str, Instruction], group: int) -> bool:
    """Whether all that is done with an array is to take one of as many parts of it as the group has devices."""
    uses = [other for other in instructions.values() if one.name in other.operands]
    return bool(uses) and all(
        use.operation == 'dynamic-slice' and size(use.shape) * group == size(one.shape) for use in uses
    )


def _group(one: Instruction, partitions: int) -> tuple[int, int]:
    """(how many devices exchange, from one to the next of them), of the first group where there are several."""
    if one.operation == 'collective-permute':
        return partitions, 1
    devices = sorted(_first_group(one, partitions))
    return len(devices), devices[1] - devices[0] if len(devices) > 1 else 1


def _first_group(one: Instruction, partitions: int) -> list[int]:
    """The devices, in any of the four ways in which XLA writes them."""
    text = one.attributes
    if mesh := re.search(r'replica_groups=mesh\[(.*?)\](?:, device_ids=\(\[(.*?)\]T\((.*?)\)\))? ?\{(.*?)\}', text):
        axes, shape, order, chosen = mesh.groups()
        devices = np.arange(partitions)
        if shape:
            devices = devices.reshape(_integers(shape)).transpose(_integers(order)).reshape(-1)
        # An axis may stand for a part of itself: 'a':(2)4 are the four in the middle of 'a'=16.
        parts = {name: (before, part) for name, before, part in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen)}
        sizes, index = [], []
        for name, axis in re.findall(r"'(\w+)'=(\d+)", axes):
            before, part = parts.get(name, ('', ''))
            whole = [int(before or 1), int(part or axis)]
            sizes += [*whole, int(axis) // math.prod(whole)]
            index += [0, slice(None) if name in parts else 0, 0]
        return devices.reshape(sizes)[tuple(index)].reshape(-1).tolist()
    if listed := re.search(r'replica_groups=\{\{([\d,]+)\}', text):
        return _integers(listed[1])
    if numbered := re.search(r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', text):
        groups, shape, order = numbered.groups()
        devices = np.arange(partitions).reshape(_integers(shape))
        devices = devices.transpose(_integers(order)) if order else devices
        return devices.reshape(_integers(groups))[0].tolist()
    if 'replica_groups={}' in text:
        return list(range(partitions))
    raise ValueError(f'{one.name}: its devices are given in an unknown form: {text[:200]}')


def _integers(text: str) -> list[int]:
    return [int(n) for n in text.split(',') if n]
