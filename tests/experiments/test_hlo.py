"""What a program sends and computes, against numbers counted by hand from a text that was written by hand."""

import pytest

from experiments import hlo
from experiments.hlo import Collective

PROGRAM = """HloModule jit_traced, entry_computation_layout={(f32[6]{0})->f32[6]{0}}, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%inner_body (p: (s32[], bf16[3,5])) -> (s32[], bf16[3,5]) {
  %p = (s32[], bf16[3,5]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[3,5]{1,0} get-tuple-element(%p), index=1
  %passed = bf16[3,5]{1,0} collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{1,0}}
  ROOT %t = (s32[], bf16[3,5]{1,0}) tuple(%i, %passed)
}

%inner_condition (p: (s32[], bf16[3,5])) -> pred[] {
  %p = (s32[], bf16[3,5]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %seven = s32[] constant(7)
  %copied = s32[] copy(%seven)
  ROOT %lt = pred[] compare(%i, %copied), direction=LT
}

%body (p: (s32[], bf16[3,5], /*index=2*/f32[4,6])) -> (s32[], bf16[3,5], f32[4,6]) {
  %p = (s32[], bf16[3,5]{1,0}, /*index=2*/f32[4,6]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[3,5]{1,0} get-tuple-element(%p), index=1
  %w = f32[4,6]{1,0} get-tuple-element(%p), index=2
  %start = (s32[], bf16[3,5]{1,0}) tuple(%i, %x)
  %turned = (s32[], bf16[3,5]{1,0}) while(%start), condition=%inner_condition, body=%inner_body
  %gathered = bf16[3,40]{1,0} all-gather(%x), channel_id=2, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={1}
  %y = f32[2,4,9]{2,1,0} constant({...})
  %product = f32[6,2,9]{2,1,0} dot(%w, %y), lhs_contracting_dims={0}, rhs_contracting_dims={1}
  ROOT %t = (s32[], bf16[3,5]{1,0}, f32[4,6]{1,0}) tuple(%i, %x, %w)
}

%condition (p: (s32[], bf16[3,5], f32[4,6])) -> pred[] {
  %p = (s32[], bf16[3,5]{1,0}, f32[4,6]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %three = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %three), direction=LT
}

ENTRY %main (q: f32[6]) -> f32[6] {
  %q = f32[6]{0} parameter(0)
  %rank = u32[] partition-id()
  %w = f32[4,6]{1,0} broadcast(%q), dimensions={1}
  %begin = (s32[], bf16[3,5]{1,0}, f32[4,6]{1,0}) tuple(%rank, %q, %w)
  %loop = (s32[], bf16[3,5]{1,0}, f32[4,6]{1,0}) while(%begin), condition=%condition, body=%body
  %one = f32[6]{0} all-reduce(%q), replica_groups=[4,2]<=[2,2,2]T(2,1,0), to_apply=%sum
  %of_nobody = f32[6]{0} all-reduce(%q), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%sum
  %whole = f32[8,6]{1,0} all-reduce(%w), replica_groups=mesh['a'=4,'b'=2] {'a'}, to_apply=%sum
  %share = f32[2,6]{1,0} dynamic-slice(%whole, %rank, %rank), dynamic_slice_sizes={2,6}
  %left = f32[6]{0} all-reduce(%q), replica_groups={}, to_apply=%sum
  %right = f32[6]{0} all-reduce(%one), replica_groups={}, to_apply=%sum
  %both = f32[6]{0} add(%left, %right)
  %third = f32[6]{0} all-reduce(%of_nobody), replica_groups=[1,8]<=[8], to_apply=%sum
  %all = f32[6]{0} add(%both, %third)
  %swapped = (s32[2]{0}, s32[2]{0}) all-to-all(%q, %q), replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}
  ROOT %given = f32[6]{0} add(%all, %all)
}
"""


def test_every_exchange_is_counted_with_its_bytes_its_group_and_its_turns():
    assert sorted(hlo.exchanges(PROGRAM), key=lambda one: (one.operation, -one.times, one.group)) == [
        Collective('all-gather', 'bf16', 3 * 40 * 2, group=8, stride=1, times=3),
        Collective('all-reduce', 'f32', 6 * 4, group=2, stride=4, times=1),
        Collective('all-reduce', 'f32', 6 * 4, group=8, stride=1, times=1),  # three that are added up
        # Devices 0 2 4 6 1 3 5 7 as two rows of four: 0 and 1 are one below the other.
        Collective('all-to-all', 's32', 2 * 2 * 4, group=2, stride=1, times=1),
        Collective('collective-permute', 'bf16', 3 * 5 * 2, group=8, stride=1, times=3 * 7),
        Collective('reduce-scatter', 'f32', 2 * 6 * 4, group=4, stride=2, times=1),  # an all-reduce, and a share taken
    ]


def test_what_goes_into_other_things_too_is_neither_a_sum_nor_a_share():
    used = PROGRAM.replace('add(%all, %all)', 'add(%whole, %left)')
    reduced = [one for one in hlo.exchanges(used) if one.operation == 'all-reduce']
    assert [(one.result, one.group) for one in reduced] == [(24, 2), (192, 4), (24, 8), (24, 8), (24, 8)]
    assert not [one for one in hlo.exchanges(used) if one.operation == 'reduce-scatter']


@pytest.mark.parametrize(
    ('operation', 'result', 'sent'),
    [
        # Four devices in a ring with 12 bytes each: three times a quarter is passed on, and once more to spread it.
        ('all-reduce', 12, 3 * 3 + 3 * 3),
        ('all-gather', 12, 3 * 3),
        ('reduce-scatter', 3, 3 * 3),
        ('all-to-all', 12, 3 * 3),
        ('collective-permute', 12, 12),
    ],
)
def test_bytes_around_a_ring(operation, result, sent):
    assert Collective(operation, 'f32', result, group=4, stride=1, times=5).sent == 5 * sent


def test_products_count_twice_their_multiplications_in_every_turn():
    assert hlo.flops(PROGRAM) == 3 * 2 * (6 * 2 * 9) * 4


def test_a_known_number_of_turns_is_taken():
    known = PROGRAM.replace('body=%inner_body', 'body=%inner_body, backend_config={"known_trip_count":{"n":"11"}}')
    (passed,) = [one for one in hlo.exchanges(known) if one.operation == 'collective-permute']
    assert passed.times == 3 * 11


def test_of_an_axis_that_is_taken_in_parts():
    text = PROGRAM.replace("mesh['a'=4,'b'=2] {'a'}", "mesh['a'=4,'b'=2] {'a':(1)2}")
    (first, *_) = [one for one in hlo.exchanges(text) if one.result == 8 * 6 * 4]
    assert (first.operation, first.group, first.stride) == ('all-reduce', 2, 4)  # a share of a quarter is not of a half


def test_what_is_not_understood_is_not_counted_as_something_else():
    with pytest.raises(ValueError, match='loop.*constant'):
        hlo.exchanges(PROGRAM.replace('direction=LT', 'direction=NE'))
    with pytest.raises(ValueError, match=r'whole.*unknown form'):
        hlo.exchanges(PROGRAM.replace("mesh['a'=4,'b'=2] {'a'}", 'everybody'))
