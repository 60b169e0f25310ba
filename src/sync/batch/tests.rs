//! Batches and merges against plain lists.

use std::collections::BTreeMap;

use differential_dataflow::trace::implementations::spine_fueled::{Merger, SpineBatch};
use differential_dataflow::trace::{Cursor, Navigable};
use proptest::prelude::*;
use timely::progress::Antichain;

use super::*;
use crate::sync::state::Phase;

type List = BTreeMap<(u128, u32, Epoch), Diff>;

fn update(key: u128, slot: u32, diff: Diff) -> Update {
    Update { key: KeyHash(key), value: State::new(Phase::Waiting, false, 1, 5, slot), diff }
}

fn batch(updates: &[(u128, u32, Diff)], time: Epoch) -> Option<StateBatch> {
    let mut list: BTreeMap<(u128, u32), Diff> = BTreeMap::new();
    for (key, slot, diff) in updates {
        *list.entry((*key, *slot)).or_default() += diff;
    }
    StateBatch::new(
        list.into_iter().filter(|x| x.1 != 0).map(|((key, slot), diff)| update(key, slot, diff)).collect(),
        time,
    )
}

/// Everything in a batch, read by its cursor.
fn list(batch: &StateBatch) -> List {
    let mut list = List::new();
    let mut cursor = batch.cursor();
    while let Some(key) = cursor.get_key(batch) {
        while let Some(value) = cursor.get_val(batch) {
            cursor.map_times(batch, |time, diff| *list.entry((key.0, value.slot(), *time)).or_default() += diff);
            cursor.step_val(batch);
        }
        cursor.step_key(batch);
    }
    list
}

fn merge(one: &StateBatch, two: &StateBatch, since: Epoch, fuel: isize) -> Option<StateBatch> {
    let mut merger = StateMerger::new(one, two, Antichain::from_elem(since).borrow());
    loop {
        let mut left = fuel;
        merger.work(one, two, &mut left);
        if left > 0 {
            return merger.done();
        }
    }
}

fn key() -> impl Strategy<Value = u128> {
    (0u128..6, any::<bool>()).prop_map(|(key, spread)| if spread { key << 125 | key } else { key })
}

fn updates() -> impl Strategy<Value = Vec<(u128, u32, Diff)>> {
    prop::collection::vec((key(), 0u32..3, prop_oneof![Just(-1), Just(1)]), 0..40)
}

proptest! {
    #[test]
    fn merges_agree_with_lists(
        parts in prop::collection::vec(updates(), 2..5), since in 0u64..6, later in 0u64..6, fuel in 1isize..20
    ) {
        let batches: Vec<_> = parts.iter().enumerate().filter_map(|(time, part)| batch(part, time as Epoch)).collect();
        let mut expected = List::new();
        for ((key, slot, time), diff) in batches.iter().flat_map(list) {
            *expected.entry((key, slot, time.max(since))).or_default() += diff;
        }
        let merged = batches.into_iter().map(Some).reduce(|one, two| match (one, two) {
            (Some(one), Some(two)) => merge(&one, &two, since, fuel),
            (one, two) => one.or(two),
        });
        // A batch that met no other is not compacted, so compare what the epochs are worth at `since`.
        let mut got = List::new();
        for ((key, slot, time), diff) in merged.iter().flatten().flat_map(list) {
            *got.entry((key, slot, time.max(since))).or_default() += diff;
        }
        for list in [&mut expected, &mut got] {
            list.retain(|_, diff| *diff != 0);
        }
        prop_assert_eq!(&got, &expected);

        // Lookups find every run, by both ways.
        if let Some(Some(merged)) = &merged {
            prop_assert!(merged.len() > 0 && merged.bytes() > 0);
            let mut cursor = merged.cursor();
            for key in (0..6).flat_map(|key: u128| [key, key << 125 | key]).collect::<std::collections::BTreeSet<_>>() {
                let run: Vec<Update> = merged.updates.iter().filter(|update| update.key.0 == key).copied().collect();
                prop_assert_eq!(merged.run(KeyHash(key)), &run[..]);
                cursor.seek_key(merged, &KeyHash(key));
                prop_assert_eq!(cursor.get_key(merged) == Some(&KeyHash(key)), !run.is_empty());
            }
            let again = merge(merged, merged, since.max(later), fuel);
            let doubled: Diff = again.iter().flat_map(list).map(|x| x.1).sum();
            prop_assert_eq!(doubled, 2 * list(merged).values().sum::<Diff>());
        }
    }
}

#[test]
fn the_newest_statement_counts() {
    let one = batch(&[(7, 1, 1), (8, 1, 1)], 0).unwrap();
    let two = batch(&[(7, 1, -1), (7, 2, 1), (8, 1, -1)], 1).unwrap();
    assert_eq!(two.find(KeyHash(7)), Found::Present(State::new(Phase::Waiting, false, 1, 5, 2)));
    assert_eq!(two.find(KeyHash(8)), Found::Absent);
    assert_eq!(two.find(KeyHash(9)), Found::Nothing);
    // Held back by a reader, both epochs stay, and still the sum is right.
    let held = merge(&one, &two, 0, 1).unwrap();
    assert_eq!(held.find(KeyHash(7)), Found::Present(State::new(Phase::Waiting, false, 1, 5, 2)));
    assert_eq!(held.find(KeyHash(8)), Found::Nothing);
    assert_eq!(merge(&one, &two, 1, 1).unwrap().len(), 1);
}
