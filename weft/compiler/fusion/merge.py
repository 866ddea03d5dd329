"""Regions that become one after they were opened: elementwise ones that also reduce, and regions of one domain
that share what they read, or are small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.base.tuning import Tuning
from weft.compiler.fusion.draft import Conflict, Draft, Traversal
from weft.compiler.fusion.drafts import (
    Drafts,
    domain_index,
    has_same_chunks,
    is_column_partial,
    is_delayed_by,
    traversal_starts,
)
from weft.compiler.fusion.region import FORMS, Domain, is_reduction
from weft.compiler.fusion.views import base_of
from weft.graph.node import Node


def upgrade(drafts: Drafts, draft: Draft, domain: Domain, node: Node) -> bool:
    """Rebuild an elementwise region as one that also reduces `node`, if all its roots fit the new domain."""
    return rebuild(drafts, Draft(domain, draft.before), [draft], node)


def merge_regions(drafts: Drafts, has_workgroups: bool) -> None:
    """Join regions of one form and domain that share what they read, or are small: fewer kernels, fewer bytes."""
    tuning = drafts.tuning
    alike: dict[tuple, list[Draft]] = {}
    for draft in drafts.regions:
        domain = draft.domain
        if FORMS[domain.form].merges:
            alike.setdefault((domain.form, domain.shape, domain.reduced, domain.pointers), []).append(draft)
    numbered = {draft.domain.number: draft for draft in drafts.regions}
    for group in alike.values():
        for second in range(1, len(group)):
            for first in range(max(0, second - tuning.merge_window), second):
                a, b = group[first], group[second]
                if a is b or not _is_worth_merging(a, b, tuning, has_workgroups):
                    continue
                if not _has_region_between(a, b, numbered):
                    before = (a.before | b.before) & ~(a.bit | b.bit)
                    trial = Draft(b.domain, before)
                    if rebuild(drafts, trial, [a, b], None):
                        group[:] = [trial if draft in (a, b) else draft for draft in group]
                        del numbered[a.domain.number]
                        numbered[trial.domain.number] = trial


def drop_unread_reductions(drafts: Drafts) -> None:
    """Remove regions whose results nobody reads: segment numbers that every region which needs them has from its own
    loops, and reductions that are masked wherever a later region would read them. One that checks indices stays."""
    kept = drafts.roots.results | drafts.windows.keys() | {window.whole for window in drafts.windows.values()}
    kept |= {base_of(node.srcs[0]) for node in drafts.stored if node.op == "after"}
    count = -1
    while count != len(drafts.regions):  # what a removed region read may be unread now
        count = len(drafts.regions)
        read = {node for draft in drafts.regions for node in draft.reads} | kept
        for draft in list(drafts.regions):
            if all(root not in read and _may_be_dropped(root, draft) for root in draft.roots) and not draft.partials:
                drafts.remove(draft)


def _may_be_dropped(root: Node, draft: Draft) -> bool:
    return root.op == "segment_rows" or (is_reduction(root) and not draft.is_checking)


def _is_worth_merging(a: Draft, b: Draft, tuning: Tuning, has_workgroups: bool) -> bool:
    if len(a.known_at) + len(b.known_at) > tuning.max_reductions:
        return False
    if a.operations + b.operations > tuning.max_operations or a.cost + b.cost > tuning.max_cost:
        return False
    stores = len(a.roots) + len(a.partials) + len(b.roots) + len(b.partials)
    if len(a.reads.keys() | b.reads.keys()) + stores > tuning.max_values:
        return False
    if a.cost + b.cost > tuning.max_unrelated_cost and not any(root in b.reads for root in a.roots):
        return False
    if not _is_launch_bound(a, b, tuning, has_workgroups) and not any(root in b.reads for root in a.roots):
        shared = a.reads.keys() & b.reads.keys()
        return any(read.size > 1 and 4 * read.size >= a.domain.volume for read in shared)
    return True


def _is_launch_bound(a: Draft, b: Draft, tuning: Tuning, has_workgroups: bool) -> bool:
    """Whether two regions of one domain do so little that one launch less is worth more than anything else."""
    volume = a.domain.volume
    if volume <= tuning.small_volume:
        return True
    few_reads = len(a.reads) + len(b.reads) <= tuning.max_small_reads
    return has_workgroups and a.domain.form in ("map", "cols") and volume <= tuning.small_gpu_volume and few_reads


def rebuild(drafts: Drafts, trial: Draft, replaced: Sequence[Draft], node: Node | None) -> bool:
    """Put all that `replaced` compute, and `node`, into `trial` instead. False, and no change, where that fails."""
    results = {result: (draft,) for draft in replaced for result in (*draft.roots, *draft.partials)}
    unneeded = drafts.read_only_among(replaced, results)
    members = sorted([*results.keys() - unneeded, *([node] if node else [])], key=drafts.position.__getitem__)
    for result in results:
        del drafts.stored[result]
    try:
        traversal = _collect(drafts, trial, replaced, members)
        if node is not None and not any(result in traversal.inlined for result in results) and len(replaced) == 1:
            _refuse_delay(drafts, trial, replaced[0], node, results)
    except Conflict:
        drafts.stored.update(results)
        return False
    drafts.replace(trial, replaced)
    for result in results:
        if result not in unneeded:
            drafts.store(result, (trial,))
    if node is not None:
        drafts.store(node, (trial,))
    drafts.absorb(trial, traversal)
    return True


def _collect(drafts: Drafts, trial: Draft, replaced: Sequence[Draft], members: Sequence[Node]) -> Traversal:
    """Enter `members` into `trial` and find what they read; Conflict where that is not possible."""
    domain = trial.domain
    traversal = Traversal(
        trial, drafts.stored, lambda value, _: drafts.find_owner_outside(value, replaced), drafts.roots.other_indices
    )
    if domain.pointers is not None:
        traversal.reads[domain.pointers] = None
    for member in members:
        at = domain_index(domain, member)
        if at is None or (is_column_partial(member) and not has_same_chunks(trial.partials, member)):
            raise Conflict
        for source in traversal_starts(member):
            traversal.visit(source, at)
        drafts.add_member(trial, member)
    removed = sum(draft.bit for draft in replaced)
    if any(writer in replaced or writer.before & (trial.bit | removed) for writer in drafts.writers(traversal, trial)):
        raise Conflict
    if not drafts.can_bind(trial, traversal):
        raise Conflict
    return traversal


def _refuse_delay(
    drafts: Drafts, trial: Draft, old: Draft, node: Node, results: Mapping[Node, tuple[Draft, ...]]
) -> None:
    """Raise Conflict where `node`, which uses nothing that `old` computes, would have to wait for what `old` needs."""
    alone = Traversal(trial, {**drafts.stored, **results}, drafts.find_owner, drafts.roots.other_indices)
    at = domain_index(trial.domain, node)
    assert at is not None
    for source in traversal_starts(node):
        alone.visit(source, at)
    if is_delayed_by(old, drafts.writers(alone, trial)):
        raise Conflict


def _has_region_between(a: Draft, b: Draft, numbered: dict[int, Draft]) -> bool:
    """Whether a third region must run between two. Late ones are tried first: in a chain, the last one does."""
    both = a.bit | b.bit
    before = (a.before | b.before) & ~both
    while before:
        number = before.bit_length() - 1
        if numbered[number].before & both:
            return True
        before ^= 1 << number
    return False
